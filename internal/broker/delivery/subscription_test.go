package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const second = time.Second

// newStream returns a stream whose subscription was accepted at time 0 of its clock.
func newStream(part codec.Subresource) *stream {
	scope := store.Scope{DataType: codec.ManifestBundles, Cluster: "c"}
	if part == codec.Status {
		scope = store.Scope{DataType: codec.ManifestBundles, Owner: "s"}
	}
	cfg := &settings.Config{Heartbeat: 10 * second, QueueBytes: 1 << 30, Comparisons: 1, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Store: mem.Open(mem.Options{NewID: func() string { return "id" }})}
	cfg.Beats = settings.NewBeats(cfg)
	return &stream{
		cfg:    cfg,
		beats:  cfg.Beats.Schedule(transport.Peer{Name: "c"}, 0),
		agenda: agenda{nextBeat: at(10), graceEnd: at(30)},
		sub: &subscription{
			id: "1", scope: scope, part: part, wake: taskgroup.NewTurns(), intake: noIntake{},
			list: syncstate.New(cfg).Lists.Open(scope, identity.Identity{}), orphans: orphanReport{budget: bytebudget.NewBudget(1 << 30)},
		},
	}
}

// noIntake is an Intake whose methods do nothing.
type noIntake struct{}

func (noIntake) Open(string, identity.Identity, store.Scope, func(*transport.Error)) {}
func (noIntake) End(string)                                                          {}
func (noIntake) Close(string)                                                        {}
func (noIntake) Supersede(context.Context, string, identity.Identity) error          { return nil }
func (noIntake) AckStatuses(store.Scope, uint64)                                     {}

func at(s int) time.Time { return time.Unix(1000, 0).Add(time.Duration(s) * second) }

func (t *stream) nextAt(now int) step { return t.next(at(now), true, 0) }

func workKey(n int) deliveryqueue.Key {
	return deliveryqueue.Key{Cluster: "c", ResourceID: fmt.Sprint("w", n)}
}

func TestSubscription_HeartbeatBeforeBacklog(t *testing.T) {
	s := newStream(codec.Spec)
	for i := range 100 {
		s.sub.post(workKey(i), uint64(i+1), 0)
	}
	beats, delivered := 0, 0
	for now := range 50 { // one step per second
		switch st := s.nextAt(now); st.kind {
		case sendHeartbeat:
			beats++
		case deliver:
			delivered++
		case idle, finish, fillFromCursor, compare, inventory, recheckAhead, requestStatuses, checkpoint:
			if st.kind != compare || !st.list.timedOut {
				t.Fatalf("step %+v at %d s", st, now)
			}
		}
	}
	if beats != 5 || delivered != 44 {
		t.Errorf("%d heartbeats and %d deliveries in 50 steps, want 5 and 44", beats, delivered)
	}
}

func TestSubscription_TimeoutCountsAsEmptyList(t *testing.T) {
	s := newStream(codec.Spec)
	s.nextBeat = at(1000)
	if st := s.nextAt(29); st.kind != idle || !st.until.Equal(at(30)) {
		t.Errorf("at 29 s: %+v, want idle until 30 s", st)
	}
	if st := s.nextAt(30); st.kind != compare || !st.list.timedOut || st.list.versions != nil {
		t.Errorf("at 30 s: %+v, want a comparison with nothing", st)
	}
	if st := s.nextAt(90); st.kind != idle || !st.until.Equal(at(1000)) {
		t.Errorf("at 90 s: %+v, want idle until the next heartbeat", st)
	}

	requested := newStream(codec.Spec)
	requested.nextBeat = at(1000)
	if !requested.sub.request(&list{free: func() {}}) {
		t.Fatal("the list was not accepted")
	}
	if st := requested.nextAt(29); st.kind != compare || st.list.timedOut {
		t.Errorf("%+v, want the requested comparison", st)
	}
	if st := requested.nextAt(31); st.kind != idle {
		t.Errorf("%+v after an answered request, want idle", st)
	}
}

func TestSubscription_LastListOfAnAgentCounts(t *testing.T) {
	freed := 0
	s := newStream(codec.Spec)
	first := &list{free: func() { freed++ }}
	second := &list{free: func() {}}
	if !s.sub.request(first) || !s.sub.request(second) {
		t.Fatal("a list was not accepted")
	}
	if st := s.nextAt(0); st.kind != compare || st.list != second {
		t.Errorf("%+v, want the second list", st)
	}
	if st := s.nextAt(0); st.kind != idle || freed != 1 {
		t.Errorf("%+v, %d lists freed, want idle and one", st, freed)
	}
}

func TestSubscription_ListsOfASourceAddUpWithinBounds(t *testing.T) {
	s := newStream(codec.Status)
	for i := range maxRequests {
		if !s.sub.request(&list{cluster: fmt.Sprint(i), free: func() {}}) {
			t.Fatalf("list %d was not accepted", i)
		}
	}
	if s.sub.request(&list{}) {
		t.Error("one more than the bound was accepted")
	}
	for i := range maxRequests {
		if st := s.nextAt(0); st.kind != compare || st.list.cluster != fmt.Sprint(i) {
			t.Fatalf("step %d: %+v", i, st)
		}
	}
}

func TestSubscription_ComparisonsArePaced(t *testing.T) {
	s := newStream(codec.Spec)
	s.sub.post(workKey(1), 1, 0)
	s.calm = at(5)
	if !s.sub.request(&list{free: func() {}}) {
		t.Fatal("the list was not accepted")
	}
	if st := s.nextAt(0); st.kind != deliver {
		t.Errorf("%+v, want a delivery while comparisons rest", st)
	}
	if st := s.nextAt(0); st.kind != idle || !st.until.Equal(at(5)) {
		t.Errorf("%+v, want idle until the rest is over", st)
	}
	if st := s.next(at(5), false, 0); st.kind != idle || !s.wantsToCompare(at(5)) {
		t.Errorf("%+v without a slot, want idle", st)
	}
	if st := s.nextAt(5); st.kind != compare {
		t.Errorf("%+v, want the comparison", st)
	}
}

func TestSubscription_AlternatesHashesAndDeliveries(t *testing.T) {
	s := newStream(codec.Spec)
	s.hashes = [][]codec.StatusHash{{{ResourceID: "a"}}, {{ResourceID: "b"}}}
	for i := range 3 {
		s.sub.post(workKey(i), uint64(i+1), 0)
	}
	var kinds []stepKind
	for range 6 {
		kinds = append(kinds, s.nextAt(0).kind)
	}
	want := []stepKind{deliver, requestStatuses, deliver, requestStatuses, deliver, idle}
	if !slices.Equal(kinds, want) {
		t.Errorf("steps %v, want %v", kinds, want)
	}
}

func TestSubscription_StopComesFirst(t *testing.T) {
	s := newStream(codec.Spec)
	s.sub.post(workKey(1), 1, 0)
	s.sub.stop(request.ErrDraining())
	s.sub.stop(&transport.Error{Code: transport.CodeInternal})
	if st := s.nextAt(100); st.kind != finish || st.err.Code != transport.CodeUnavailable {
		t.Errorf("%+v, want the first reason", st)
	}
}

func TestSubscription_CountsItsMail(t *testing.T) {
	s := newStream(codec.Spec)
	s.sub.post(workKey(1), 1, 0)
	s.sub.post(workKey(1), 2, 0)
	s.sub.answer(workKey(2), 1, 0)
	s.sub.answer(workKey(3), 1, 0)
	s.sub.discard(workKey(3))
	s.sub.discard(workKey(4))
	if count := s.sub.mailed(); count != 2 {
		t.Errorf("%d keys counted, want 2", count)
	}
	s.nextAt(0)
	if count := s.sub.mailed(); count != 1 {
		t.Errorf("%d keys counted after a delivery, want 1", count)
	}
	s.sub.leave()
	if count := s.sub.mailed(); count != 0 {
		t.Errorf("%d keys counted after the end, want 0", count)
	}
	if s.sub.request(&list{}) {
		t.Error("a list was accepted after the end")
	}
}
