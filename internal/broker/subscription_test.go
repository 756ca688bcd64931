package broker

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const second = time.Second

// newSubscription is one accepted at time 0 of its clock.
func newSubscription(part codec.Subresource) *subscription {
	scope := route.Scope{DataType: codec.ManifestBundles, Cluster: "c"}
	if part == codec.Status {
		scope = route.Scope{DataType: codec.ManifestBundles, Owner: "s"}
	}
	return &subscription{
		id: "1", scope: scope, part: part, wake: make(chan struct{}, 1), mailed: func(int) {},
		nextBeat: at(10), graceEnd: at(30),
	}
}

func at(s int) time.Time { return time.Unix(1000, 0).Add(time.Duration(s) * second) }

func (s *subscription) nextAt(t int) step { return s.next(at(t), 10*second, true, 0) }

func workKey(n int) route.Key { return route.Key{Cluster: "c", ResourceID: fmt.Sprint("w", n)} }

func TestSubscription_HeartbeatBeforeBacklog(t *testing.T) {
	s := newSubscription(codec.Spec)
	for i := range 100 {
		s.post(workKey(i), uint64(i+1), 0)
	}
	beats, delivered := 0, 0
	for now := range 50 { // one step per second
		switch st := s.nextAt(now); st.kind {
		case beat:
			beats++
		case deliver:
			delivered++
		case idle, finish, fill, compare, inventory, overrule, ask, checkpoint:
			if st.kind != compare || !st.list.silent {
				t.Fatalf("step %+v at %d s", st, now)
			}
		}
	}
	if beats != 4 || delivered != 45 {
		t.Errorf("%d heartbeats and %d deliveries in 50 steps, want 4 and 45", beats, delivered)
	}
}

func TestSubscription_SilenceCountsAsHoldingNothing(t *testing.T) {
	s := newSubscription(codec.Spec)
	s.nextBeat = at(1000)
	if st := s.nextAt(29); st.kind != idle || !st.until.Equal(at(30)) {
		t.Errorf("at 29 s: %+v, want idle until 30 s", st)
	}
	if st := s.nextAt(30); st.kind != compare || !st.list.silent || st.list.versions != nil {
		t.Errorf("at 30 s: %+v, want a comparison with nothing", st)
	}
	if st := s.nextAt(90); st.kind != idle || !st.until.Equal(at(1000)) {
		t.Errorf("at 90 s: %+v, want idle until the next heartbeat", st)
	}

	asked := newSubscription(codec.Spec)
	asked.nextBeat = at(1000)
	if !asked.request(&list{settle: func() {}}) {
		t.Fatal("the list was not taken")
	}
	if st := asked.nextAt(29); st.kind != compare || st.list.silent {
		t.Errorf("%+v, want the comparison that was asked for", st)
	}
	if st := asked.nextAt(31); st.kind != idle {
		t.Errorf("%+v after an answered request, want idle", st)
	}
}

func TestSubscription_LastListOfAnAgentCounts(t *testing.T) {
	settled := 0
	s := newSubscription(codec.Spec)
	first := &list{settle: func() { settled++ }}
	second := &list{settle: func() {}}
	if !s.request(first) || !s.request(second) {
		t.Fatal("a list was not taken")
	}
	if st := s.nextAt(0); st.kind != compare || st.list != second {
		t.Errorf("%+v, want the second list", st)
	}
	if st := s.nextAt(0); st.kind != idle || settled != 1 {
		t.Errorf("%+v, %d lists settled, want idle and one", st, settled)
	}
}

func TestSubscription_ListsOfASourceAddUpWithinBounds(t *testing.T) {
	s := newSubscription(codec.Status)
	for i := range maxRequests {
		if !s.request(&list{cluster: fmt.Sprint(i), settle: func() {}}) {
			t.Fatalf("list %d was not taken", i)
		}
	}
	if s.request(&list{}) {
		t.Error("one more than the bound was taken")
	}
	for i := range maxRequests {
		if st := s.nextAt(0); st.kind != compare || st.list.cluster != fmt.Sprint(i) {
			t.Fatalf("step %d: %+v", i, st)
		}
	}
}

func TestSubscription_ComparisonsLeaveRoomAndRest(t *testing.T) {
	s := newSubscription(codec.Spec)
	s.post(workKey(1), 1, 0)
	s.calm = at(5)
	if !s.request(&list{settle: func() {}}) {
		t.Fatal("the list was not taken")
	}
	if st := s.nextAt(0); st.kind != deliver {
		t.Errorf("%+v, want a delivery while comparisons rest", st)
	}
	if st := s.nextAt(0); st.kind != idle || !st.until.Equal(at(5)) {
		t.Errorf("%+v, want idle until the rest is over", st)
	}
	if st := s.next(at(5), 10*second, false, 0); st.kind != idle || !s.wantsToCompare(at(5)) {
		t.Errorf("%+v without a slot, want idle", st)
	}
	if st := s.nextAt(5); st.kind != compare {
		t.Errorf("%+v, want the comparison", st)
	}
}

func TestSubscription_HashesAndDeliveriesTakeTurns(t *testing.T) {
	s := newSubscription(codec.Spec)
	s.hashes = [][]codec.StatusHash{{{ResourceID: "a"}}, {{ResourceID: "b"}}}
	for i := range 3 {
		s.post(workKey(i), uint64(i+1), 0)
	}
	var kinds []stepKind
	for range 6 {
		kinds = append(kinds, s.nextAt(0).kind)
	}
	want := []stepKind{deliver, ask, deliver, ask, deliver, idle}
	if !slices.Equal(kinds, want) {
		t.Errorf("steps %v, want %v", kinds, want)
	}
}

func TestSubscription_StopComesFirst(t *testing.T) {
	s := newSubscription(codec.Spec)
	s.post(workKey(1), 1, 0)
	s.stop(goingAway())
	s.stop(&transport.Error{Code: transport.CodeInternal})
	if st := s.nextAt(100); st.kind != finish || st.err.Code != transport.CodeUnavailable {
		t.Errorf("%+v, want the first reason", st)
	}
}

func TestSubscription_CountsItsMail(t *testing.T) {
	s := newSubscription(codec.Spec)
	count := 0
	s.mailed = func(d int) { count += d }
	s.post(workKey(1), 1, 0)
	s.post(workKey(1), 2, 0)
	s.answer(workKey(2), 1, 0)
	s.answer(workKey(3), 1, 0)
	s.discard(workKey(3))
	s.discard(workKey(4))
	if count != 2 {
		t.Errorf("%d keys counted, want 2", count)
	}
	s.nextAt(0)
	if count != 1 {
		t.Errorf("%d keys counted after a delivery, want 1", count)
	}
	s.release()
	if count != 0 {
		t.Errorf("%d keys counted after the end, want 0", count)
	}
	if s.request(&list{}) {
		t.Error("a list was taken after the end")
	}
}
