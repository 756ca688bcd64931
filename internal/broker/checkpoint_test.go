package broker_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// from edits a subscription into that of a Hawser client that continues from a cursor.
func from(c codec.Cursor) func(*transport.RawSubscription, *tap) {
	return func(raw *transport.RawSubscription, _ *tap) {
		raw.Hello = transport.Hello{Protocol: transport.Protocol, Cursor: c.String()}
	}
}

// checkpoints returns the checkpoints that arrived since the last call.
func (s *tap) checkpoints() (list []codec.Checkpoint) {
	s.w.Helper()
	for _, e := range s.takeSync(codec.TypeCheckpoint) {
		c, err := codec.ParseCheckpoint(e)
		if err != nil {
			s.w.Fatalf("checkpoint: %v", err)
		}
		list = append(list, c)
	}
	return list
}

// checkpoint returns the only checkpoint that arrived since the last call.
func (s *tap) checkpoint() codec.Checkpoint {
	s.w.Helper()
	list := s.checkpoints()
	if len(list) != 1 {
		s.w.Fatalf("%s/%s got %d checkpoints, want 1: %+v", s.peer.Role, s.peer.Name, len(list), list)
	}
	return list[0]
}

func (s *tap) takeSync(kind string) (taken []codec.Event) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []codec.Event
	for _, e := range s.syncs {
		if e.Type() == kind {
			taken = append(taken, e)
		} else {
			rest = append(rest, e)
		}
	}
	s.syncs = rest
	return taken
}

// params returns the envelope of an event about the subscription.
func (s *tap) params() codec.SyncParams {
	p := codec.SyncParams{ID: "sync", Time: time.Unix(1_700_000_000, 0), Source: s.peer.Name}
	if s.peer.Role == "agent" {
		p.Cluster = s.peer.Name
	} else {
		p.Owner = s.peer.Name
	}
	return p
}

func marshal(t testing.TB, e codec.Event, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// send publishes on the subscription.
func (s *tap) send(event []byte) error {
	_, err := s.w.Publish(s.w.Context(), s.peer, event, s.accepted.SubscriptionID)
	return err
}

func (s *tap) ack(c codec.Cursor, d *codec.Digest) error {
	e, err := codec.NewAck(s.params(), codec.Ack{Cursor: c, Digest: d})
	return s.send(marshal(s.w, e, err))
}

func (s *tap) mustAck(c codec.Checkpoint) {
	s.w.Helper()
	if err := s.ack(c.Cursor, c.Digest); err != nil {
		s.w.Fatalf("ack: %v", err)
	}
}

// digestOf returns the digest of the live works among the events.
func digestOf(events ...codec.Envelope) (d codec.Digest) {
	for _, e := range events {
		d.Count++
		d.Sum = d.Sum.Add(codec.RecordHash(e.ResourceID, e.Tag))
	}
	return d
}

// TestCheckpoint_FollowsTheBase checks that the first checkpoint comes after the answer to the list. It has a
// digest, the highest sequence id and the store's position.
func TestCheckpoint_FollowsTheBase(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for i := range 3 {
			w.put(source, work{id: fmt.Sprint("w", i), version: 1}.event())
		}
		w.put(w.agent("c1"), w.event(report{id: "w0", version: 1}))
		agent := w.open(w.agent("c1"), hawser)
		if agent.accepted.Resync != codec.ResyncList {
			t.Errorf("resync %q", agent.accepted.Resync)
		}
		w.put(source, work{id: "w3", version: 1}.event())
		first := agent.expect("spec create_request w3 v1")
		if got := agent.checkpoints(); len(got) != 0 {
			t.Errorf("%+v before the list", got)
		}
		w.request(agent)
		works := agent.expectAny("spec resync_response w0 v1", "spec resync_response w1 v1", "spec resync_response w2 v1", "spec resync_response w3 v1")
		c := agent.checkpoint()
		head := w.Store.Head()
		want := codec.Checkpoint{
			Cursor:       codec.Cursor{StoreID: head.StoreID, Incarnation: head.Incarnation, Revision: head.Revision},
			ListAnswered: true, HighestSequenceID: strconv.FormatInt(w.seq<<22|1<<12, 10),
		}
		d := digestOf(works...)
		want.Digest = &d
		if diff := cmp.Diff(want, c); diff != "" {
			t.Error(diff)
		}
		if first[0].Tag != works[slices.IndexFunc(works, func(e codec.Envelope) bool { return e.ResourceID == "w3" })].Tag {
			t.Error("two tags of one spec")
		}
		pass(time.Minute)
		if got := agent.checkpoints(); len(got) != 0 {
			t.Errorf("%+v although nothing happened", got)
		}
	})
}

// TestCheckpoint_ReportsHowHighSequenceIDsAre:
//
// Scenario:
//
//	t1: an agent sends a status, and its process ends.
//	t2: the next process starts, and its clock is behind. The broker has no sequence id to report.
//	t3: the status of t1 arrives late, and is accepted.
//	t4: a status of the process at t2 arrives; its id is too low.
//
// Result: the broker reports the highest sequence id again; otherwise the agent could never continue.
func TestCheckpoint_ReportsHowHighSequenceIDsAre(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.put(w.source("src"), work{version: 1}.event())
		now, before := w.open(w.agent("c1"), hawser), w.open(w.agent("c1"), hawser)
		w.request(now, held("w1", 1))
		if c := now.checkpoint(); c.HighestSequenceID != "" {
			t.Fatalf("there is no status yet: %+v", c)
		}
		low, high := w.event(report{version: 1}), w.event(report{version: 1})
		w.put(before.peer, high)
		pass(time.Minute)
		if got := now.checkpoints(); len(got) != 0 {
			t.Errorf("%+v although the agent is not concerned", got)
		}
		if outcome := w.put(now.peer, low); outcome != codec.OutcomeStale {
			t.Fatalf("outcome %q", outcome)
		}
		if c, want := now.checkpoint(), strconv.FormatInt(w.seq<<22|1<<12, 10); c.HighestSequenceID != want {
			t.Errorf("the highest is %q, want %s", c.HighestSequenceID, want)
		}
	})
}

// TestCheckpoint_OCMClientsSeeNothingOfIt checks that OCM clients get no checkpoints.
func TestCheckpoint_OCMClientsSeeNothingOfIt(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.subscribe(w.agent("c1")), w.subscribe(w.source("src"))
		ours := w.open(w.agent("c1"), hawser)
		w.request(ours)
		w.put(source.peer, work{version: 1}.event())
		w.put(agent.peer, w.event(report{version: 1}))
		pass(time.Minute)
		agent.expect("spec create_request w1 v1")
		source.expect("status update_request w1 v1")
		if len(agent.syncs) != 0 || len(source.syncs) != 0 {
			t.Errorf("OCM clients got %v and %v", agent.syncs, source.syncs)
		}
		if len(ours.checkpoints()) == 0 {
			t.Error("the Hawser agent got none")
		}
		// Without the protocol version, a cursor is ignored.
		odd := w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) { raw.Hello.Cursor = "a/b/1" })
		if odd.accepted.Resync != "" {
			t.Errorf("an OCM agent got %+v", odd.accepted)
		}
	})
}

// TestCheckpoint_OneForManyEvents checks that under load there is one checkpoint per pause, and that the last
// one covers everything.
func TestCheckpoint_OneForManyEvents(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		agent.checkpoint()
		source := w.source("src")
		for i := range 100 { // 10 seconds
			w.put(source, work{version: int32(i + 1)}.event())
			pass(100 * time.Millisecond)
		}
		pass(time.Second)
		events := agent.take()
		got := agent.checkpoints()
		if len(events) != 100 || len(got) < 8 || len(got) > 12 {
			t.Errorf("%d events, %d checkpoints", len(events), len(got))
		}
		last := got[len(got)-1]
		if d := digestOf(events[99]); last.Cursor.Revision != 101 || last.Digest == nil || *last.Digest != d {
			t.Errorf("the last checkpoint is %+v", last)
		}
	})
}

// TestCheckpoint_PartialWhileALongDeliveryRuns checks that a partial checkpoint covers no queued record.
func TestCheckpoint_PartialWhileALongDeliveryRuns(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for i := range 200 {
			w.put(source, work{id: fmt.Sprintf("w%03d", i), version: 1}.event())
		}
		cursor := codec.Cursor{StoreID: w.Store.Head().StoreID, Incarnation: w.Store.Head().Incarnation}
		agent := w.open(w.agent("c1"), func(raw *transport.RawSubscription, s *tap) {
			from(cursor)(raw, s)
			s.hold = func() { pass(100 * time.Millisecond) }
		})
		pass(19 * time.Second)
		synctest.Wait()
		got := agent.checkpoints()
		if len(got) != 3 {
			t.Fatalf("%d checkpoints in 19 s of a delivery that takes 20, want one every 5: %+v", len(got), got)
		}
		sent := map[uint64]bool{}
		for _, e := range agent.take() {
			sent[e.Revision] = true
		}
		for i, c := range got {
			if c.Digest != nil || i > 0 && c.Cursor.Revision <= got[i-1].Cursor.Revision {
				t.Errorf("checkpoint %+v", c)
			}
			for r := uint64(2); r <= c.Cursor.Revision; r++ {
				if !sent[r] {
					t.Fatalf("a checkpoint covers %d, which was not sent", r)
				}
			}
		}
		pass(10 * time.Second)
		got = agent.checkpoints()
		if c := got[len(got)-1]; c.Digest == nil || c.Cursor.Revision != 201 || c.Digest.Count != 200 {
			t.Errorf("at the end %+v", c)
		}
	})
}

// TestAck_ProvesOrDiffers checks that an ack shows whether the agent is in sync.
func TestAck_ProvesOrDiffers(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, broker.Config{Registry: registry}, func(w *world) {
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		w.put(w.source("src"), work{version: 1}.event())
		pass(time.Second)
		list := agent.checkpoints()
		c := list[len(list)-1]
		other := codec.Digest{Count: 7}
		for _, d := range []*codec.Digest{c.Digest, &other, nil} {
			if err := agent.ack(c.Cursor, d); err != nil {
				t.Fatal(err)
			}
		}
		for name, want := range map[string]float64{"InSync": 1, "OutOfSync": 1, "Noted": 1} {
			if got := value(t, registry, "hawser_broker_acks_total result="+name+" subresource=spec"); got != want {
				t.Errorf("%v acks are %s", got, name)
			}
		}
		for what, cursor := range map[string]codec.Cursor{
			"another epoch": {StoreID: "x", Incarnation: c.Cursor.Incarnation, Revision: 1},
			"another term":  {StoreID: c.Cursor.StoreID, Incarnation: "x", Revision: 1},
			"never sent":    {StoreID: c.Cursor.StoreID, Incarnation: c.Cursor.Incarnation, Revision: c.Cursor.Revision + 1},
		} {
			if e := w.refused(agent.ack(cursor, nil), transport.CodeInvalid); e.Hint == "" {
				t.Errorf("%s: %v", what, e)
			}
		}
	})
}

// TestSync_BelongsToALiveSubscriptionOfItsClient checks that sync events need a running subscription of their
// client.
func TestSync_BelongsToALiveSubscriptionOfItsClient(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, ocm, foreign := w.open(w.agent("c1"), hawser), w.open(w.agent("c1"), nil), w.open(w.agent("c2"), hawser)
		source, other := w.open(w.source("src"), hawser), w.open(w.source("other"), hawser)
		for _, s := range []*tap{agent, foreign, source, other} {
			w.request(s)
		}
		ended := w.open(w.agent("c1"), hawser)
		ended.cancel()
		synctest.Wait()
		cursor := agent.checkpoint().Cursor
		ack := func(by *tap, params codec.SyncParams, id string) error {
			e, err := codec.NewAck(params, codec.Ack{Cursor: cursor})
			_, err = w.Publish(w.Context(), by.peer, marshal(t, e, err), id)
			return err
		}
		if err := ack(agent, agent.params(), agent.accepted.SubscriptionID); err != nil {
			t.Fatal(err)
		}
		for what, id := range map[string]string{
			"none": "", "unknown": "x", "ended": ended.accepted.SubscriptionID, "ocm": ocm.accepted.SubscriptionID,
			"another cluster's": foreign.accepted.SubscriptionID, "a source's": source.accepted.SubscriptionID,
		} {
			if e := w.refused(ack(agent, agent.params(), id), transport.CodeInvalid); e.Attribute != codec.HeaderSubscriptionID {
				t.Errorf("%s: %v", what, e)
			}
		}
		// Another client, with any id.
		w.wantCode(ack(foreign, agent.params(), agent.accepted.SubscriptionID), transport.CodeDenied)
		w.wantCode(ack(other, source.params(), source.accepted.SubscriptionID), transport.CodeDenied)
		w.wantCode(ack(other, other.params(), source.accepted.SubscriptionID), transport.CodeInvalid)
		// Events that only sources may send.
		req, err := codec.NewInventoryRequest(agent.params(), codec.InventoryRequest{})
		w.wantCode(agent.send(marshal(t, req, err)), transport.CodeDenied)
		compared, err := codec.NewSyncReport(agent.params(), codec.SyncReport{AllClusters: true})
		w.wantCode(agent.send(marshal(t, compared, err)), transport.CodeDenied)
		// Events that only a broker sends.
		for _, kind := range []string{codec.TypeCheckpoint, codec.TypeInventory} {
			e, err := codec.NewCheckpoint(agent.params(), codec.Checkpoint{Cursor: cursor})
			e.SetType(kind)
			w.wantCode(agent.send(marshal(t, e, err)), transport.CodeDenied)
		}
	})
}

// lateRouter delays the router until hold is closed.
type lateRouter struct {
	store.Store
	hold chan struct{}
	// If one is true, each call returns a single change, even if there are more.
	one bool
}

func (s *lateRouter) Changes(ctx context.Context, after uint64, limit int) ([]store.Change, error) {
	select {
	case <-s.hold:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.one {
		limit = 1
	}
	return s.Store.Changes(ctx, after, limit)
}

// TestRouter_FindsADeletionInsteadOfASpec:
//
// Scenario:
//
//	t1: a source publishes a work with Orphan, and it is accepted. The router has not read it yet.
//	t2: the source deletes the work. The deletion replaces the spec in the feed.
//	t3: the router reads the deletion.
//
// Result: an OCM agent gets the spec first. It ignores the spec of a deletion, and would delete the objects.
func TestRouter_FindsADeletionInsteadOfASpec(t *testing.T) {
	const orphan = `{"manifests":[],"deleteOption":{"propagationPolicy":"Orphan"}}`
	var late *lateRouter
	wrap := func(s store.Store) store.Store {
		late = &lateRouter{Store: s, hold: make(chan struct{})}
		return late
	}
	inWrapped(t, broker.Config{}, wrap, func(w *world) {
		source, ocm := w.source("src"), w.subscribe(w.agent("c1"))
		routes := func() { late.hold <- struct{}{} }
		routes() // the binding of the cluster
		routes()
		w.put(source, work{version: 1}.event())
		ocm.expect("spec create_request w1 v1")
		w.put(source, work{version: 2, data: orphan}.event())
		w.put(source, work{version: 2, deleting: true}.event())
		routes()
		got := ocm.expect("spec create_request w1 v2", "spec delete_request w1 v2 deleting")
		if string(got[0].Data) != orphan {
			t.Errorf("spec before the deletion: %s", got[0].Data)
		}

		w.put(source, work{id: "w2", version: 1}.event())
		routes()
		ocm.expect("spec create_request w2 v1")
		w.put(source, work{id: "w2", version: 1, deleting: true}.event())
		routes()
		ocm.expect("spec delete_request w2 v1 deleting") // the agent has seen the last spec
	})
}

// TestDeletion_ReceivedBeforeListIsCompared:
//
// Scenario:
//
//	t1: an OCM agent subscribes. It holds nothing, and its list is empty.
//	t2: it gets version 1 of a work. Its list has not arrived.
//	t3: the source changes the work to Orphan and deletes it.
//	t4: the list arrives, without the work; the agent has version 1.
//
// Result: the agent gets the last spec before the deletion; otherwise it would delete the objects.
func TestDeletion_ReceivedBeforeListIsCompared(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source, ocm := w.source("src"), w.open(w.agent("c1"), nil)
		w.put(source, work{version: 1}.event())
		ocm.expect("spec create_request w1 v1")
		w.put(source, work{version: 2, data: `{"manifests":[],"deleteOption":{"propagationPolicy":"Orphan"}}`}.event())
		w.put(source, work{version: 2, deleting: true}.event())
		ocm.take()
		w.request(ocm)
		ocm.expect("spec resync_response w1 v2", "spec resync_response w1 v2 deleting")

		w.put(source, work{id: "w2", version: 1}.event())
		ocm.expect("spec create_request w2 v1")
		w.put(source, work{id: "w2", version: 1, deleting: true}.event())
		ocm.expect("spec delete_request w2 v1 deleting")
	})
}

// TestRouter_FindsADeletionLongBehindItsSpec:
//
// Scenario:
//
//	t1: a spec is accepted at revision 2, another work at 3, the deletion of the first one at 4.
//	t2: the store returns only revision 3 to the router, which is less than the router asked for.
//	t3: the router reads revision 4.
//
// Result: the router still knows that revision 2 was sent to no agent. It forgets that only at the head.
func TestRouter_FindsADeletionLongBehindItsSpec(t *testing.T) {
	var late *lateRouter
	wrap := func(s store.Store) store.Store {
		late = &lateRouter{Store: s, hold: make(chan struct{}), one: true}
		return late
	}
	inWrapped(t, broker.Config{}, wrap, func(w *world) {
		source, ocm := w.source("src"), w.subscribe(w.agent("c1"))
		routes := func() { late.hold <- struct{}{} }
		routes() // the binding of the cluster
		w.put(source, work{version: 1}.event())
		routes()
		ocm.expect("spec create_request w1 v1")
		w.put(source, work{version: 2}.event())
		w.put(source, work{id: "w2", version: 1}.event())
		w.put(source, work{version: 2, deleting: true}.event())
		routes()
		ocm.expect("spec create_request w2 v1")
		routes()
		ocm.expect("spec create_request w1 v2", "spec delete_request w1 v2 deleting")
	})
}

// TestCheckpoint_DigestCoversSentEvents checks that the digest covers only what was sent. Records that are not
// in the delivery queue yet are left out. Progress of the router alone is enough for a checkpoint, even without
// events for the agent.
func TestCheckpoint_DigestCoversSentEvents(t *testing.T) {
	var late *lateRouter
	wrap := func(s store.Store) store.Store {
		late = &lateRouter{Store: s, hold: make(chan struct{})}
		return late
	}
	inWrapped(t, broker.Config{}, wrap, func(w *world) {
		agent := w.open(w.agent("c1"), hawser)
		late.hold <- struct{}{} // the binding of the cluster
		source := w.open(w.source("src"), hawser)
		w.request(agent)
		agent.checkpoint()
		w.put(source.peer, work{version: 1}.event())
		compared := make(chan error, 1)
		go func() { compared <- source.syncReport(clusters("c1")) }() // news for the next checkpoint
		pass(time.Minute)
		agent.expect()
		if got := agent.checkpoints(); len(got) != 0 {
			t.Errorf("%+v before the work was routed", got)
		}
		late.hold <- struct{}{}
		if err := <-compared; err != nil {
			t.Error(err)
		}
		works := agent.expect("spec create_request w1 v1")
		c := agent.checkpoint()
		if d := digestOf(works...); *c.Digest != d || c.Cursor.Revision != w.Store.Head().Revision {
			t.Errorf("checkpoint %+v", c)
		}
		// Force-delete changes only the status of a record.
		pass(time.Second)
		if _, err := w.ForceDeleteWork(admincall.By(w.Context(), olga), &hawserv1.ForceDeleteWorkRequest{Cluster: "c1", ResourceId: "w1"}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if got := agent.checkpoints(); len(got) != 0 {
			t.Errorf("%+v before that was routed", got)
		}
		late.hold <- struct{}{}
		c = agent.checkpoint()
		if c.Digest.Count != 0 || len(c.SyncedSources) != 0 {
			t.Errorf("checkpoint %+v", c)
		}
	})
}

// TestSync_WithoutIdentities checks that without authentication the events name their owner.
func TestSync_WithoutIdentities(t *testing.T) {
	inWorld(t, broker.Config{Insecure: true}, func(w *world) {
		anonymous := func(role, name string) *tap {
			return w.open(transport.Peer{Conn: 1}, func(raw *transport.RawSubscription, s *tap) {
				raw.Hello.Protocol = transport.Protocol
				if raw.Cluster, raw.Source = name, ""; role == "source" {
					raw.Cluster, raw.Source = "", name
				}
				s.peer.Role, s.peer.Name = role, name // for the events that the helpers build
			})
		}
		agent, source := anonymous("agent", "c1"), anonymous("source", "src")
		for _, s := range []*tap{agent, source} {
			named := s.peer
			req := versions("c1")
			if named.Role == "source" {
				req = hashes("src", "")
			}
			s.peer = transport.Peer{Conn: 1, Role: named.Role, Name: named.Name}
			if _, err := w.Publish(w.Context(), transport.Peer{Conn: 1}, req, s.accepted.SubscriptionID); err != nil {
				t.Fatal(err)
			}
			c := s.checkpoint()
			e, err := codec.NewAck(s.params(), codec.Ack{Cursor: c.Cursor, Digest: c.Digest})
			if _, err := w.Publish(w.Context(), transport.Peer{Conn: 1}, marshal(t, e, err), s.accepted.SubscriptionID); err != nil {
				t.Errorf("%s: %v", named.Role, err)
			}
		}
		e, err := codec.NewInventoryRequest(source.params(), codec.InventoryRequest{})
		if _, err := w.Publish(w.Context(), transport.Peer{Conn: 1}, marshal(t, e, err), source.accepted.SubscriptionID); err != nil {
			t.Error(err)
		}
		if got := source.takeSync(codec.TypeInventory); len(got) != 1 {
			t.Errorf("%d pages", len(got))
		}
	})
}
