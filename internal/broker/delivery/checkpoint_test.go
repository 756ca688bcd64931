package delivery

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// newHawser returns the stream of a Hawser client.
func newHawser(part codec.Subresource) *stream {
	s := newStream(part)
	s.sub.hello.Protocol = transport.Protocol
	s.nextBeat, s.graceEnd = at(10_000), at(10_000)
	return s
}

func (t *stream) nextFrom(now int, position uint64) step { return t.next(at(now), true, position) }

func TestSubscription_FillComesFirst(t *testing.T) {
	s := newHawser(codec.Spec)
	s.sub.cursor = &codec.Cursor{StoreID: "e", Incarnation: "t", Revision: 7}
	s.sub.on(changed)
	if !s.sub.request(&list{free: func() {}}) {
		t.Fatal("not accepted")
	}
	if st := s.next(at(0), false, 9); st.kind != idle || !s.wantsToCompare(at(0)) {
		t.Errorf("without a slot: %+v", st)
	}
	if st := s.nextFrom(0, 9); st.kind != fillFromCursor || !st.reads() {
		t.Errorf("%+v, want the fill", st)
	}
	s.sub.complete(at(0), nil)
	if st := s.nextFrom(0, 9); st.kind != compare {
		t.Errorf("%+v, want the comparison", st)
	}
	s.sub.complete(at(0), &list{})
	if st := s.nextFrom(0, 9); st.kind != checkpoint || st.checkpoint != (pendingCheckpoint{revision: 9, complete: true, position: 9}) {
		t.Errorf("%+v, want a checkpoint", st)
	}
}

func TestSubscription_NoCheckpointWhileAListWaits(t *testing.T) {
	for _, part := range []codec.Subresource{codec.Spec, codec.Status} {
		s := newHawser(part)
		s.sub.begin(at(0))
		s.calm = at(20)
		if !s.sub.request(&list{free: func() {}}) {
			t.Fatal("not accepted")
		}
		s.sub.post(workKey(1), 5, 0)
		s.sub.post(workKey(2), 6, 0)
		if st := s.nextFrom(6, 9); st.kind != deliver {
			t.Errorf("%s: %+v, want a delivery and no checkpoint", part, st)
		}
		if st := s.nextFrom(6, 9); st.kind != deliver {
			t.Errorf("%s: %+v, want a delivery", part, st)
		}
		if st := s.nextFrom(6, 9); st.kind != idle || !st.until.Equal(at(20)) {
			t.Errorf("%s: %+v, want to wait for the comparison", part, st)
		}
		st := s.nextFrom(20, 9)
		if st.kind != compare {
			t.Errorf("%s: %+v, want the comparison", part, st)
		}
		s.sub.complete(at(20), &list{})
		if st := s.nextFrom(20, 9); st.kind != checkpoint || st.checkpoint.revision != 9 {
			t.Errorf("%s: %+v, want the checkpoint", part, st)
		}
		if s.sub.sync.answered != 1 || !s.sub.sync.listed {
			t.Errorf("%s: %d lists, %v", part, s.sub.sync.answered, s.sub.sync.listed)
		}
	}
}

// TestSubscription_TimeoutIsNoList: an agent that sent no list in time has a base, but its orphans are unknown.
func TestSubscription_TimeoutIsNoList(t *testing.T) {
	s := newHawser(codec.Spec)
	s.graceEnd = at(30)
	st := s.nextFrom(30, 9)
	if st.kind != compare || !st.list.timedOut {
		t.Fatalf("%+v", st)
	}
	s.sub.complete(at(30), st.list)
	if st := s.nextFrom(30, 9); st.kind != checkpoint || s.sub.sync.listed || s.sub.sync.answered != 0 {
		t.Errorf("%+v, listed %v", st, s.sub.sync.listed)
	}
}

// TestSubscription_CheckpointWaitsForTheRouter: the stream is idle until the router has reached the position.
func TestSubscription_CheckpointWaitsForTheRouter(t *testing.T) {
	s := newHawser(codec.Spec)
	s.sub.begin(at(0))
	if st := s.nextFrom(0, 9); st.kind != checkpoint {
		t.Fatalf("%+v", st)
	}
	s.sub.await(12) // the store has changes that were not sent
	if st := s.nextFrom(0, 9); st.kind != idle || !st.until.Equal(at(10_000)) {
		t.Errorf("%+v, want to wait until something happens", st)
	}
	if st := s.nextFrom(0, 12); st.kind != checkpoint || st.checkpoint.revision != 12 {
		t.Errorf("%+v", st)
	}
}

// TestSubscription_HeldBackSpecWasNotSent: no checkpoint covers a spec that is held back.
func TestSubscription_HeldBackSpecWasNotSent(t *testing.T) {
	s := newHawser(codec.Spec)
	s.sub.begin(at(0))
	s.sub.rest(workKey(1).ResourceID, "name", at(50))
	s.sub.post(workKey(1), 5, 0)
	s.sub.post(workKey(2), 6, 0)
	st := s.nextFrom(0, 9)
	if st.kind != deliver || !s.sub.postpone(st.entry, "name", at(0)) {
		t.Fatalf("%+v", st)
	}
	if oldest, ok := s.sub.oldest(); !ok || oldest != 5 {
		t.Errorf("oldest %d, %v", oldest, ok)
	}
	if st := s.nextFrom(6, 9); st.kind != checkpoint || st.checkpoint != (pendingCheckpoint{revision: 4}) {
		t.Errorf("%+v, want a checkpoint below the held-back spec", st)
	}
	s.sub.sync.progress.Reported(4, at(7), at(11))
	if st := s.nextFrom(7, 9); st.kind != deliver {
		t.Errorf("%+v", st)
	}
	if st := s.nextFrom(8, 9); st.kind != idle {
		t.Errorf("%+v, want no complete checkpoint while a spec is held back", st)
	}
	if st := s.nextFrom(50, 9); st.kind != deliver || st.entry.Key != workKey(1) {
		t.Errorf("%+v", st)
	}
	if st := s.nextFrom(50, 9); st.kind != checkpoint || st.checkpoint.revision != 9 {
		t.Errorf("%+v", st)
	}
}

func TestSubscription_AlternatesPagesAndDeliveries(t *testing.T) {
	s := newHawser(codec.Status)
	s.sub.begin(at(0))
	freed := 0
	for range 3 {
		if !s.sub.requestPage(&pageRequest{free: func() { freed++ }}) {
			t.Fatal("not accepted")
		}
	}
	for i := range 3 {
		s.sub.post(workKey(i), uint64(i+1), 0)
	}
	var kinds []stepKind
	for range 7 {
		kinds = append(kinds, s.nextFrom(0, 3).kind)
	}
	for i, want := range []stepKind{deliver, inventory, deliver, inventory, deliver, inventory, checkpoint} {
		if kinds[i] != want {
			t.Fatalf("steps %v", kinds)
		}
	}
	for s.sub.requestPage(&pageRequest{free: func() { freed++ }}) {
	}
	if len(s.sub.pages) != maxPages {
		t.Errorf("%d requests wait", len(s.sub.pages))
	}
	s.sub.leave()
	if freed != maxPages || s.sub.requestPage(&pageRequest{free: func() {}}) {
		t.Errorf("%d of %d requests were freed at the end", freed, maxPages)
	}
}

// TestSubscription_ComparedSourcesAreLookedAtOnce: a recheck runs once, and only if the agent has ahead works.
func TestSubscription_ComparedSourcesAreLookedAtOnce(t *testing.T) {
	s := newHawser(codec.Spec)
	s.sub.begin(at(0))
	s.sub.recheck()
	if st := s.nextFrom(0, 3); st.kind != checkpoint {
		t.Errorf("%+v, want a checkpoint where nothing waits", st)
	}
	s.sub.list.Replace(syncstate.Mismatch{Newer: map[string]syncstate.AheadWork{"w1": {Owner: "a"}}})
	s.sub.recheck()
	s.sub.recheck()
	if st := s.nextFrom(0, 3); st.kind != recheckAhead {
		t.Errorf("%+v", st)
	}
	if st := s.nextFrom(0, 3); st.kind != checkpoint {
		t.Errorf("%+v", st)
	}
	s.sub.sync.progress.Reported(3, at(1), at(5))
	if st := s.nextFrom(1, 3); st.kind != idle {
		t.Errorf("%+v", st)
	}
}

// TestSubscription_OCMClientsGetNoCheckpoints: no event makes a checkpoint due for an OCM client.
func TestSubscription_OCMClientsGetNoCheckpoints(t *testing.T) {
	s := newStream(codec.Spec)
	s.sub.complete(at(0), &list{})
	s.sub.recheck()
	s.sub.on(unchanged)
	for i := range 5 {
		s.sub.post(workKey(i), uint64(i+1), deliveryqueue.Deletion)
	}
	for now := range 9 {
		if st := s.nextFrom(now, 9); st.kind == checkpoint {
			t.Fatalf("%+v", st)
		}
	}
}
