package taskgroup_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

func waits(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestGroup_FirstFailureCancelsTheOthers(t *testing.T) {
	boom := errors.New("boom")
	err := taskgroup.Group(t.Context(), taskgroup.Task{Name: "waiter", Run: waits}, taskgroup.Task{Name: "bad", Run: func(context.Context) error { return boom }})
	if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "bad: ") {
		t.Fatalf("got %v, want boom named after its task", err)
	}
}

func TestGroup_CancelledCleanly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	go func() { <-started; cancel() }()
	err := taskgroup.Group(ctx, taskgroup.Task{Name: "a", Run: func(ctx context.Context) error { close(started); return waits(ctx) }}, taskgroup.Task{Name: "b", Run: waits})
	if err != nil {
		t.Fatalf("got %v, want nil", err)
	}
}

func TestGroup_ErrorWhileStoppingIsReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	flush := errors.New("flush failed")
	err := taskgroup.Group(ctx, taskgroup.Task{Name: "store", Run: func(ctx context.Context) error { <-ctx.Done(); return flush }})
	if !errors.Is(err, flush) {
		t.Fatalf("got %v, want %v", err, flush)
	}
}

func TestGroup_ReportsEarlyEndOfTask(t *testing.T) {
	err := taskgroup.Group(t.Context(), taskgroup.Task{Name: "short", Run: func(context.Context) error { return nil }})
	if err == nil {
		t.Fatal("a task that ended before the group must be reported")
	}
}

// endedEarly is a context whose end has not reached its children yet.
type endedEarly struct{ context.Context }

func (endedEarly) Err() error { return context.Canceled }

func TestGroup_FirstStoppedTaskEndsCleanly(t *testing.T) {
	err := taskgroup.Group(endedEarly{t.Context()}, taskgroup.Task{Name: "worker", Run: func(context.Context) error { return nil }})
	if err != nil {
		t.Fatalf("got %v, want nil", err)
	}
}
