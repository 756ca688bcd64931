package intake

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

func party(name string) identity.Identity {
	return identity.Identity{Role: identity.Source, Name: name}
}

func publishOf(name string, size int) *pending {
	return &pending{from: party(name), size: size, ops: make([]store.Op, 1), done: make(chan answer, 1)}
}

func TestQueue_PartiesTakeTurns(t *testing.T) {
	q := newQueue(1 << 20)
	for i := range 100 {
		if ok, err := q.put(t.Context(), publishOf("flood", 1000+i)); !ok || err != nil {
			t.Fatalf("put: %v, %v", ok, err)
		}
	}
	for i := range 2 {
		if ok, err := q.put(t.Context(), publishOf("other", 2000+i)); !ok || err != nil {
			t.Fatalf("put: %v, %v", ok, err)
		}
	}
	batch := q.pop(nil, 5, 1<<20)
	var got []string
	for _, p := range batch {
		got = append(got, fmt.Sprint(p.from.Name, p.size))
	}
	want := []string{"flood1000", "other2000", "flood1001", "other2001", "flood1002"}
	if !slices.Equal(got, want) {
		t.Errorf("batch %v, want %v", got, want)
	}
}

func TestQueue_FloodLeavesRoomForOthers(t *testing.T) {
	q := newQueue(64 << 10)
	const size = 1 << 10
	fill := func(name string) (n int) {
		for {
			ok, err := q.put(t.Context(), publishOf(name, size))
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				return n
			}
			n++
		}
	}
	if n := fill("flood"); n != 32 {
		t.Errorf("one alone queued %d of 64 KiB, want half", n)
	}
	if n := fill("other"); n != 16 {
		t.Errorf("the second one queued %d KiB, want half of the rest", n)
	}
	batch := q.pop(nil, 1<<20, 1<<30)
	q.free(batch)
	if n := q.budget.Used(); n != 0 {
		t.Errorf("%d bytes in use when all are answered", n)
	}
	if n := fill("other"); n != 32 {
		t.Errorf("after that the other one queued %d KiB, want half", n)
	}
}

func TestQueue_TakesWithinBoundsAndAtLeastOne(t *testing.T) {
	q := newQueue(64 << 20)
	big := publishOf("a", 16<<20)
	for _, p := range []*pending{big, publishOf("a", 1)} {
		if ok, err := q.put(t.Context(), p); !ok || err != nil {
			t.Fatalf("put: %v, %v", ok, err)
		}
	}
	if batch := q.pop(nil, 10, 8<<20); len(batch) != 1 || batch[0] != big {
		t.Errorf("first batch has %d publishes, want the one that fills it", len(batch))
	}
	if batch := q.pop(nil, 10, 8<<20); len(batch) != 1 {
		t.Errorf("second batch has %d publishes", len(batch))
	}
	if batch := q.pop(nil, 10, 8<<20); len(batch) != 0 {
		t.Errorf("third batch has %d publishes", len(batch))
	}
}

func TestQueue_RefusesWhenClosed(t *testing.T) {
	q := newQueue(1 << 20)
	if ok, err := q.put(t.Context(), publishOf("a", 1)); !ok || err != nil {
		t.Fatalf("put: %v, %v", ok, err)
	}
	q.close()
	if _, err := q.put(t.Context(), publishOf("a", 1)); transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("put after close: %v", err)
	}
	if batch := q.pop(nil, 10, 10); len(batch) != 1 {
		t.Errorf("%d publishes left of those before close, want 1", len(batch))
	}
	if n := q.budget.Used(); n != 1 {
		t.Errorf("%d bytes in use, want those of the batch", n)
	}
}

// recorder is a store that takes everything.
type recorder struct {
	store.Store
	commits int
}

func (*recorder) Err() error { return nil }

func (r *recorder) Commit(_ context.Context, ops []store.Op) ([]store.Outcome, error) {
	r.commits++
	return make([]store.Outcome, len(ops)), nil
}

func (*recorder) Head() store.Head { return store.Head{} }

// TestCommitter_WritesWhatIsQueuedWhenItEnds, and takes nothing more.
func TestCommitter_WritesWhatIsQueuedWhenItEnds(t *testing.T) {
	s := &recorder{}
	c := New(&call.Config{Store: s, QueueBytes: 1 << 20, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: time.Now}, nil).commits
	queued := publishOf("a", 1)
	if ok, err := c.queue.put(t.Context(), queued); !ok || err != nil {
		t.Fatalf("put: %v, %v", ok, err)
	}
	c.finish()
	select {
	case a := <-queued.done:
		if a.err != nil || len(a.outcomes) != 1 {
			t.Errorf("answer %+v", a)
		}
	default:
		t.Error("what was queued was not answered")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.run(ctx); err != nil {
		t.Errorf("run: %v", err)
	}
	if _, err := c.commit(t.Context(), party("a"), nil, store.Op{}); transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("a publish after the end: %v", err)
	}
}
