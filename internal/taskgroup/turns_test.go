package taskgroup_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

// TestTurns: each ring is followed by a turn, turns never overlap, and the last one is the last.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns, running, work atomic.Int32
		gate := make(chan struct{})
		over := false
		w := taskgroup.NewTurns()
		w.Ring() // kept until Start
		w.Start(func() bool {
			if running.Add(1) != 1 {
				t.Error("two turns at the same time")
			}
			defer running.Add(-1)
			if turns.Add(1) == 2 {
				<-gate
			}
			work.Store(0)
			return !over
		})
		if turns.Load() != 1 {
			t.Fatalf("%d turns at the start, want one", turns.Load())
		}
		w.Ring()
		synctest.Wait()
		for range 3 { // during the second turn
			work.Add(1)
			w.Ring()
			w.Take() // does not take a turn, because one runs
		}
		close(gate)
		synctest.Wait()
		if work.Load() != 0 || turns.Load() > 3 {
			t.Errorf("%d left and %d turns, want none left after the third turn", work.Load(), turns.Load())
		}
		before := turns.Load()
		over = true
		w.Take()
		w.Take()
		w.Ring()
		synctest.Wait()
		if turns.Load() != before+1 {
			t.Errorf("%d turns after the last one", turns.Load()-before-1)
		}
	})
}

// TestTurns_NoRingIsLost rings from many goroutines, each after it has added work.
func TestTurns_NoRingIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var added, done atomic.Int64
		w := taskgroup.NewTurns()
		w.Start(func() bool { done.Store(added.Load()); return true })
		for range 8 {
			go func() { // the bubble waits for it
				for range 1000 {
					added.Add(1)
					w.Ring()
				}
			}()
		}
		synctest.Wait()
		if done.Load() != 8000 {
			t.Errorf("the last turn saw %d of 8000", done.Load())
		}
	})
}
