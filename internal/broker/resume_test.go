package broker_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// countingStore counts the records that are read.
type countingStore struct {
	store.Store
	reads []string
}

func (s *countingStore) Get(ctx context.Context, k store.Key) (store.Record, error) {
	s.reads = append(s.reads, "get "+k.ResourceID)
	return s.Store.Get(ctx, k)
}

func (s *countingStore) Scan(ctx context.Context, sc store.Scope, f func(store.Meta) error) error {
	s.reads = append(s.reads, "scan")
	return s.Store.Scan(ctx, sc, f)
}

func (s *countingStore) Since(ctx context.Context, sc store.Scope, p store.Part, after uint64, f func(store.Meta) error) error {
	return s.Store.Since(ctx, sc, p, after, func(m store.Meta) error {
		s.reads = append(s.reads, "since "+m.ResourceID)
		return f(m)
	})
}

func (s *countingStore) Tombstones(ctx context.Context, d codec.DataType, c string, f func(store.Meta) error) error {
	return s.Store.Tombstones(ctx, d, c, func(m store.Meta) error {
		s.reads = append(s.reads, "tombstone "+m.ResourceID)
		return f(m)
	})
}

// TestResume_CostsOnlyChanges checks that a resume reads only the changes, and nothing without changes.
// Tombstones are sent until they are confirmed.
func TestResume_CostsOnlyChanges(t *testing.T) {
	var counted *countingStore
	wrap := func(s store.Store) store.Store {
		counted = &countingStore{Store: s}
		return counted
	}
	inWrapped(t, broker.Config{}, wrap, func(w *world) {
		source := w.source("src")
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		agent.expect()
		for i := range 50 {
			w.put(source, work{id: fmt.Sprint("w", i), version: 1}.event())
		}
		w.put(source, work{cluster: "c2", id: "other", version: 1}.event())
		pass(time.Second)
		works := agent.take()
		list := agent.checkpoints()
		c := list[len(list)-1]
		agent.cancel()
		synctest.Wait()
		resume := func(c codec.Cursor) *tap {
			counted.reads = nil
			s := w.open(w.agent("c1"), from(c))
			if s.accepted.Resync != codec.ResyncCursor {
				t.Errorf("resync %q", s.accepted.Resync)
			}
			pass(time.Second)
			return s
		}

		agent = resume(c.Cursor)
		agent.expect()
		again := agent.checkpoint()
		if len(counted.reads) != 0 {
			t.Errorf("a resume in sync read %q", counted.reads)
		}
		if d := digestOf(works...); again.ListAnswered || again.Digest == nil || *again.Digest != d {
			t.Errorf("checkpoint %+v, digest %+v, want %+v", again, again.Digest, d)
		}
		agent.cancel()
		synctest.Wait()

		w.put(source, work{id: "w7", version: 2, action: codec.UpdateRequest}.event())
		w.put(source, work{id: "w9", version: 1, deleting: true}.event())
		w.put(source, work{cluster: "c2", id: "other", version: 2}.event())
		synctest.Wait()
		agent = resume(again.Cursor)
		agent.expectAny("spec resync_response w7 v2", "spec resync_response w9 v1 deleting")
		slices.Sort(counted.reads)
		if diff := cmp.Diff([]string{"get w7", "get w9", "since w7", "since w9", "tombstone w9"}, counted.reads); diff != "" {
			t.Errorf("reads: %s", diff)
		}
		third := agent.checkpoint()
		if third.Digest.Count != 49 {
			t.Errorf("digest of %d works", third.Digest.Count)
		}
		agent.cancel()
		synctest.Wait()

		agent = resume(third.Cursor) // the deletion is still not confirmed
		agent.expect("spec resync_response w9 v1 deleting")
		w.put(agent.peer, w.event(report{id: "w9", version: 1, deleted: true}))
		pass(time.Second)
		list = agent.checkpoints()
		agent.cancel()
		synctest.Wait()
		agent = resume(list[len(list)-1].Cursor)
		agent.expect()
	})
}

// TestResume_OtherHistoriesList checks that a client must list if the store was replaced or restored, or is
// another store (guarantee E2: never a gap).
func TestResume_OtherHistoriesList(t *testing.T) {
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
		cursorAfter := func(works ...string) codec.Cursor {
			agent := w.open(w.agent("c1"), hawser)
			w.request(agent)
			for _, id := range works {
				w.put(w.source("src"), work{id: id, version: 1}.event())
			}
			pass(time.Second)
			list := agent.checkpoints()
			agent.cancel()
			return list[len(list)-1].Cursor
		}
		resync := func(c string) string {
			s := w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) {
				raw.Hello = transport.Hello{Protocol: transport.Protocol, Cursor: c}
			})
			s.cancel()
			return s.accepted.Resync
		}
		first, stop := serve(nil)
		early := cursorAfter("w1", "w2")
		backup := first.Backup()
		late := cursorAfter("w3", "w4")
		if resync(early.String()) != codec.ResyncCursor || resync(late.String()) != codec.ResyncCursor {
			t.Error("cursors of this store are refused")
		}
		ahead := late
		ahead.Revision += 1000
		for _, c := range []string{"", "nonsense", "a/b/c", ahead.String(), "other/" + late.Incarnation + "/1", late.StoreID + "/other/1"} {
			if got := resync(c); got != codec.ResyncList {
				t.Errorf("cursor %q: resync %q", c, got)
			}
		}
		whole := first.Backup()
		stop()

		_, stop = serve(whole) // a restart
		if resync(early.String()) != codec.ResyncCursor || resync(late.String()) != codec.ResyncCursor {
			t.Error("a restart loses cursors")
		}
		stop()

		_, stop = serve(backup) // yesterday's backup
		cursorAfter("x1", "x2", "x3", "x4")
		if resync(early.String()) != codec.ResyncCursor {
			t.Error("a restore loses cursors that it covers")
		}
		if resync(late.String()) != codec.ResyncList {
			t.Error("a cursor of the lost history is accepted, although its revision exists again")
		}
		stop()

		_, stop = serve(nil) // the disk is lost
		if resync(early.String()) != codec.ResyncList {
			t.Error("a cursor of another store is taken")
		}
		stop()
	})
}

// TestResume_SourcesToo checks that a source gets the statuses since its cursor and no digest. Confirmed
// tombstones that it has seen are removed.
func TestResume_SourcesToo(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, broker.Config{Registry: registry}, func(w *world) {
		w.subscribe(w.agent("c1")).cancel() // an agent has subscribed once
		source := w.open(w.source("src"), hawser)
		w.request(source)
		c := source.checkpoint()
		if c.AnsweredStatusRequests != 1 || c.Digest != nil || c.ListAnswered {
			t.Errorf("checkpoint %+v", c)
		}
		agent := w.agent("c1")
		for _, id := range []string{"w1", "w2"} {
			w.put(source.peer, work{id: id, version: 1}.event())
			w.put(agent, w.event(report{id: id, version: 1}))
		}
		pass(2 * time.Second)
		source.expect("status update_request w1 v1", "status update_request w2 v1")
		list := source.checkpoints()
		c = list[len(list)-1]
		source.mustAck(c)
		source.cancel()

		w.put(source.peer, work{id: "w1", version: 1, deleting: true}.event())
		w.put(agent, w.event(report{id: "w1", version: 1, deleted: true}))
		source = w.open(w.source("src"), from(c.Cursor))
		pass(time.Second)
		source.expect("status resync_response w1 v1")
		last := source.checkpoint()
		key := store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "w1"}
		if r, err := w.Store.Get(w.Context(), key); err != nil || r.State != store.ConfirmedTombstone {
			t.Fatalf("the confirmed tombstone that was not acknowledged: %+v, %v", r.Meta, err)
		}
		source.mustAck(last)
		pass(time.Second)
		if _, err := w.Store.Get(w.Context(), key); err == nil {
			t.Error("the confirmed tombstone that was acknowledged still exists")
		}
		if n := value(t, registry, "hawser_broker_tombstones_collected_total reason=acknowledged"); n != 1 {
			t.Errorf("%v confirmed tombstones counted", n)
		}
		if got := source.checkpoints(); len(got) != 0 {
			t.Errorf("the source gets its own ack: %+v", got)
		}
	})
}

// TestResume_CollectsConfirmedTombstones checks a source that lost its connection before it could acknowledge.
// Confirmed tombstones before its cursor are removed in batches.
func TestResume_CollectsConfirmedTombstones(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source, agent := w.source("src"), w.subscribe(w.agent("c1"))
		confirm := func(id string) {
			w.put(source, work{id: id, version: 1}.event())
			w.put(source, work{id: id, version: 1, deleting: true}.event())
			w.put(agent.peer, w.event(report{id: id, version: 1, deleted: true}))
		}
		for i := range 600 {
			confirm(fmt.Sprint("w", i))
		}
		confirmedTombstones := func() int {
			keys, err := w.Store.ConfirmedTombstones(w.Context(), codec.ManifestBundles, "src", 1<<60, 1000)
			if err != nil {
				t.Fatal(err)
			}
			return len(keys)
		}
		if confirmedTombstones() != 600 {
			t.Fatalf("%d confirmed tombstones", confirmedTombstones())
		}
		head := w.Store.Head()
		confirm("late")
		s := w.open(source, from(codec.Cursor{StoreID: head.StoreID, Incarnation: head.Incarnation, Revision: head.Revision}))
		s.expect("status resync_response late v1")
		if confirmedTombstones() != 1 {
			t.Errorf("%d confirmed tombstones are left, want that of the last one", confirmedTombstones())
		}
	})
}
