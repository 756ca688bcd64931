package taskgroup_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

// TestWait checks what ends a wait: the signal, which is taken, the delay, or the end of the context.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, rung := time.Now(), make(chan struct{}, 1)
		rung <- struct{}{}
		if !taskgroup.Wait(ctx, rung) || len(rung) != 0 || time.Since(began) != 0 {
			t.Error("Wait does not take the signal at once")
		}
		rung <- struct{}{}
		if !taskgroup.WaitFor(ctx, rung, time.Minute) || len(rung) != 0 || time.Since(began) != 0 {
			t.Error("WaitFor does not take the signal at once")
		}
		if !taskgroup.WaitFor(ctx, rung, time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("WaitFor ends after %v, not after the delay", time.Since(began))
		}
		time.AfterFunc(time.Second, cancel)
		if taskgroup.Wait(ctx, rung) || taskgroup.WaitFor(ctx, rung, time.Minute) || taskgroup.Sleep(ctx, time.Minute) || time.Since(began) != time.Minute+time.Second {
			t.Error("the end of the context ends no wait")
		}
	})
}

func TestSemaphore(t *testing.T) {
	s := taskgroup.NewSemaphore(1)
	if !s.Acquire(t.Context()) {
		t.Fatal("no slot is free")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if s.Acquire(ended) {
		t.Error("two callers hold one slot")
	}
	s.Release()
	if !s.Acquire(t.Context()) {
		t.Error("a released slot is not free")
	}
}
