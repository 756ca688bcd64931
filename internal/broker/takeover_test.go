package broker_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
)

// settled subscribes an agent of c1 and sends it the work u1. It returns the agent and its last cursor.
func (w *world) settled() (agent *tap, c codec.Cursor) {
	w.Helper()
	agent = w.open(w.agent("c1"), hawser)
	w.request(agent)
	w.put(w.source("src"), work{id: "u1", name: "n", version: 5}.event())
	pass(time.Second)
	agent.receives("u1 v5")
	list := agent.checkpoints()
	return agent, list[len(list)-1].Cursor
}

// receives compares the set of sent works. A work may be sent twice, because the router may post a change that
// the comparison has seen.
func (s *tap) receives(want ...string) {
	s.w.Helper()
	var got []string
	for _, e := range s.take() {
		line := fmt.Sprintf("%s v%d", e.ResourceID, e.Version)
		if e.Deleting {
			line += " deleted"
		}
		got = append(got, line)
	}
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		s.w.Errorf("%s/%s got %q, want %q", s.peer.Role, s.peer.Name, got, want)
	}
}

// forced is the deletion of u1 by a hub-source that finds it removed from the hub.
var forced = work{id: "u1", name: "n", version: 6, deleting: true}

// recreate publishes u2 under the name of u1. The outcome must be queued.
func (w *world) recreate() {
	w.Helper()
	if got := w.put(w.source("src"), work{id: "u2", name: "n", version: 1}.event()); got != codec.OutcomeQueued {
		w.Errorf("the recreated work: %s", got)
	}
}

func (w *world) leave(s *tap) {
	s.cancel()
	synctest.Wait()
}

// TestTakeOver_RecreatedWhileAway checks a work that is recreated while its agent is disconnected.
//
// Scenario:
//
//	t1: the agent disconnects.
//	t2: its work is removed from the hub without its finalizer, and recreated under its name.
//	t3: the agent reconnects.
//
// Result: the agent gets no deletion if the broker knows that it was sent nothing of t2.
func TestTakeOver_RecreatedWhileAway(t *testing.T) {
	const deletion, next = "u1 v6 deleted", "u2 v1"
	same := `{"manifests":[],"v":5}` // the data of u1
	for name, c := range map[string]struct {
		meanwhile func(w *world, c *codec.Cursor)
		want      string
	}{
		"proven":                     {func(w *world, _ *codec.Cursor) { w.put(w.source("src"), forced.event()); w.recreate() }, next},
		"deleted with the same spec": {func(w *world, _ *codec.Cursor) { w.put(w.source("src"), withData(forced, same)); w.recreate() }, next},
		"deleted twice": {func(w *world, _ *codec.Cursor) {
			f := forced
			f.version = 5
			w.put(w.source("src"), f.event())
			w.put(w.source("src"), forced.event())
			w.recreate()
		}, next},
		"deleted with another spec": {func(w *world, _ *codec.Cursor) {
			w.put(w.source("src"), withData(forced, `{"orphan":true}`))
			w.recreate()
		}, deletion},
		"changed before": {func(w *world, _ *codec.Cursor) {
			w.put(w.source("src"), work{id: "u1", name: "n", version: 6, action: codec.UpdateRequest}.event())
			w.put(w.source("src"), forced.event())
			w.recreate()
		}, deletion},
		"an agent got the deletion": {func(w *world, _ *codec.Cursor) {
			w.put(w.source("src"), forced.event())
			s := w.open(w.agent("c1"), hawser)
			w.request(s)
			s.take()
			w.leave(s)
			w.recreate()
		}, deletion},
		"an OCM agent was connected": {func(w *world, _ *codec.Cursor) {
			s := w.open(w.agent("c1"), nil)
			w.put(w.source("src"), forced.event())
			w.leave(s)
			w.recreate()
		}, deletion},
		"another agent is there": {func(w *world, _ *codec.Cursor) {
			w.put(w.source("src"), forced.event())
			w.recreate()
			w.open(w.agent("c1"), nil)
		}, deletion},
		"the agent has a newer state": {func(w *world, c *codec.Cursor) {
			w.put(w.source("src"), forced.event())
			c.Revision = w.Store.Head().Revision
			w.recreate()
		}, deletion},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, broker.Config{}, func(w *world) {
				agent, cursor := w.settled()
				w.leave(agent)
				c.meanwhile(w, &cursor)
				agent = w.open(w.agent("c1"), from(cursor))
				pass(time.Second)
				agent.receives(c.want)
				r, err := w.Store.Get(w.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "u1"})
				if want := map[string]store.State{next: store.ConfirmedTombstone, deletion: store.Tombstone}[c.want]; err != nil || r.State != want {
					t.Errorf("u1 is %+v, %v", r.Meta, err)
				}
			})
		})
	}
}

func withData(k work, data string) []byte {
	x := map[string]any{
		codec.ExtResourceID: k.id, codec.ExtResourceVersion: k.version, codec.ExtDeletionTimestamp: time.Unix(1_700_000_000, 5),
		codec.ExtMetadata: `{"name":"n","namespace":"c1"}`,
	}
	return build("src", "c1", specType(codec.DeleteRequest), x, nil, data)
}

// TestTakeOver_OwnerGetsTheDeletedStatus checks that the owner gets the Deleted status as for every deletion.
// The new work can be deleted as usual.
func TestTakeOver_OwnerGetsTheDeletedStatus(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, cursor := w.settled()
		w.leave(agent)
		source := w.subscribe(w.source("src"))
		w.put(source.peer, forced.event())
		w.recreate()
		agent = w.open(w.agent("c1"), from(cursor))
		pass(time.Second)
		agent.receives("u2 v1")
		events := source.expect("status update_request u1 v6")
		if gone, err := codec.ReportsDeleted(events[0].Data); err != nil || !gone {
			t.Errorf("the data is %s: %v", events[0].Data, err)
		}
		w.put(source.peer, work{id: "u2", name: "n", version: 1, deleting: true}.event())
		agent.receives("u2 v1 deleted")
		if got := w.put(agent.peer, w.event(report{id: "u2", version: 1, deleted: true})); got != codec.OutcomeConfirmed {
			t.Errorf("the end of the new work: %s", got)
		}
	})
}

// TestTakeOver_NotAfterARestart checks that there is no takeover after a restart, because the new process does
// not know which events the previous one sent.
func TestTakeOver_NotAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := testkit.NewIDs("store")
		var w *world
		serve := func(backup *mem.Backup) (*mem.Store, func()) {
			s := mem.Open(mem.Options{NewID: ids, From: backup})
			w = &world{T: t}
			w.Broker = testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Store: s, NewID: testkit.NewIDs("id")}})
			return s, func() {
				w.Stop()
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		s, stop := serve(nil)
		agent, cursor := w.settled()
		w.leave(agent)
		w.put(w.source("src"), forced.event())
		backup := s.Backup()
		stop()

		_, stop = serve(backup)
		defer stop()
		if got := w.put(w.source("src"), forced.event()); got != codec.OutcomeAccepted {
			t.Errorf("the deletion again: %s", got)
		}
		w.recreate()
		agent = w.open(w.agent("c1"), from(cursor))
		pass(time.Second)
		agent.receives("u1 v6 deleted")
	})
}

// slowTakeOvers delays the commits of takeovers.
type slowTakeOvers struct {
	store.Store
	hold chan struct{}
}

func (s *slowTakeOvers) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	if len(ops) > 0 && ops[0].Kind == store.TakeOver {
		<-s.hold
	}
	return s.Store.Commit(ctx, ops)
}

// TestTakeOver_OthersWait checks a second agent of the cluster.
//
// Scenario:
//
//	t1: an agent connects, and a work is about to take over.
//	t2: another agent of the cluster connects.
//	t3: the work takes over.
//
// Result: the second agent does not get the deletion at t2, even if the first agent disconnects.
func TestTakeOver_OthersWait(t *testing.T) {
	for _, gone := range []bool{false, true} {
		slow := &slowTakeOvers{hold: make(chan struct{})}
		wrap := func(s store.Store) store.Store {
			slow = &slowTakeOvers{Store: s, hold: make(chan struct{})}
			return slow
		}
		inWrapped(t, broker.Config{}, wrap, func(w *world) {
			agent, cursor := w.settled()
			w.leave(agent)
			w.put(w.source("src"), forced.event())
			w.recreate()
			first := w.open(w.agent("c1"), from(cursor))
			second := w.open(w.agent("c1"), hawser)
			w.request(second, codec.ResourceVersion{ResourceID: "u1", ResourceVersion: 5})
			if gone {
				w.leave(first)
			}
			pass(time.Second)
			second.receives()
			close(slow.hold)
			pass(time.Second)
			// It gets u1's deletion because it listed u1; by then u2 has the name.
			second.receives("u1 v6 deleted", "u2 v1")
			if gone {
				first.receives()
			} else {
				first.receives("u2 v1")
			}
		})
	}
}
