package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// endedOf counts the streams that have ended, and checks that each has the advice to use another server.
func (w *world) endedOf(taps []*tap) (n int) {
	w.Helper()
	synctest.Wait()
	for _, s := range taps {
		select {
		case err := <-s.ended:
			if e := w.refused(err, transport.CodeUnavailable); e.Next != transport.NextUseAnotherServer || e.Delay != 0 {
				w.Errorf("stream: %+v", e)
			}
			s.ended <- err
			n++
		default:
		}
	}
	return n
}

// TestMoveClients checks that clients move at a rate, and that publishes are accepted until the last one has moved.
func TestMoveClients(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(w, _ *world) {
		var taps []*tap
		for i := range 2000 {
			taps = append(taps, w.open(w.agent(fmt.Sprint("c", i)), nil))
		}
		done := make(chan struct{})
		go func() { w.MoveClients(w.Context(), 5*time.Second); close(done) }() // done is received from below
		synctest.Wait()
		if w.Ready() == nil {
			t.Error("ready while the clients move")
		}
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{0, 0}, {time.Second, 400}, {time.Second, 800}, {2 * time.Second, 1600}, {time.Second, 2000}} {
			pass(c.after)
			if n := w.endedOf(taps); n < c.want-4 || n > c.want+4 {
				t.Errorf("%d clients have moved, want about %d", n, c.want)
			}
			w.put(w.source("src"), work{id: fmt.Sprint("w", c.want), version: 1}.event())
		}
		late := w.open(w.agent("late"), nil)
		if w.endedOf([]*tap{late}) != 1 {
			t.Error("a new subscription is accepted")
		}
		<-done
		w.Stop()
	})
}

// TestMoveClients_Few checks that few clients move sooner.
func TestMoveClients_Few(t *testing.T) {
	inShared(t, joining(), nil, func(w, _ *world) {
		h := w.hub()
		h.snapshot(true, clusterOf("c1", 1, true))
		begun := time.Now()
		taps := []*tap{w.open(w.agent("c1"), nil), w.watch(w.agent("c1"), codec.ManagedClusters, "c1")}
		w.MoveClients(w.Context(), 5*time.Second)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("took %v", took)
		}
		if n := w.endedOf(taps); n != 2 {
			t.Errorf("%d clients have moved, want 2", n)
		}
		if e := w.refused(<-h.ended, transport.CodeUnavailable); e.Next != transport.NextUseAnotherServer {
			t.Errorf("the source of registration: %+v", e)
		}
		if w.endedOf([]*tap{w.watch(w.agent("c1"), codec.ManagedClusters, "c1")}) != 1 {
			t.Error("a new subscription is accepted")
		}
	})
}

// TestMoveClients_NoOtherReplica checks that the only broker moves no client: they come back after its restart.
func TestMoveClients_NoOtherReplica(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		s, begun := w.open(w.agent("c1"), nil), time.Now()
		w.MoveClients(w.Context(), 5*time.Second)
		if n := w.endedOf([]*tap{s}); n != 0 || w.Ready() != nil || time.Since(begun) != 0 {
			t.Errorf("%d clients have moved, ready: %v", n, w.Ready())
		}
	})
}
