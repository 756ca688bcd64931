package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

func clientNamed(name string) identity.Identity {
	return identity.Identity{Role: identity.Source, Name: name}
}

func publishOf(name string, size int) *pending {
	return &pending{from: clientNamed(name), size: size, ops: make([]store.Op, 1), done: make(chan struct{})}
}

func TestQueue_AlternatesClients(t *testing.T) {
	q := newQueue(1 << 20)
	for i := range 100 {
		if err := q.put(t.Context(), publishOf("flood", 1000+i)); err != nil {
			t.Fatalf("put: %v", err)
		}
	}
	for i := range 2 {
		if err := q.put(t.Context(), publishOf("other", 2000+i)); err != nil {
			t.Fatalf("put: %v", err)
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

// sent is a publish of a source about a work; n is its number in the output of the test.
func sent(cluster, id string, n int, change ...func(*store.Op)) *pending {
	op := store.Op{Kind: store.PutSpec, Key: store.Key{Cluster: cluster, ResourceID: id}, Version: int64(n), Event: make([]byte, 200<<10)}
	for _, c := range change {
		c(&op)
	}
	return newPending(clientNamed("hub"), []store.Op{op})
}

func deletes(op *store.Op) { op.Deleting, op.Event = true, nil }

// popped pops one publish after the other.
func popped(t *testing.T, q *queue) (list []string) {
	t.Helper()
	for {
		batch := q.pop(nil, 1, 1)
		if len(batch) == 0 {
			return list
		}
		for _, p := range batch {
			if len(p.ops) == 0 {
				list = append(list, "barrier")
				continue
			}
			list = append(list, fmt.Sprintf("%s/%s %d", p.cluster, p.ops[0].Key.ResourceID, p.ops[0].Version))
		}
		q.free(batch)
	}
}

func put(t *testing.T, q *queue, list ...*pending) {
	t.Helper()
	for _, p := range list {
		if err := q.put(t.Context(), p); err != nil {
			t.Fatalf("put: %v", err)
		}
	}
}

// TestQueue_AlternatesClustersOfOneClient: a source that floods one of its clusters does not delay its others.
// Deletions go first in their cluster, but never before publishes about the same work.
func TestQueue_AlternatesClustersOfOneClient(t *testing.T) {
	q := newQueue(64 << 20)
	put(t, q, sent("flood", "w", 1), sent("flood", "w", 2), sent("flood", "x", 3))
	put(t, q, sent("quiet", "w", 4), sent("flood", "y", 5, deletes), sent("flood", "w", 6, deletes))
	want := []string{"flood/y 5", "quiet/w 4", "flood/w 1", "flood/w 2", "flood/x 3", "flood/w 6"}
	if diff := cmp.Diff(want, popped(t, q)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestQueue_BarrierWaitsForAllOfItsClient: a flush waits for all earlier publishes of its client, on all
// clusters, and for no later ones.
func TestQueue_BarrierWaitsForAllOfItsClient(t *testing.T) {
	q := newQueue(64 << 20)
	barrier := func() *pending { return newPending(clientNamed("hub"), nil) }
	put(t, q, sent("a", "w", 1), sent("b", "w", 2), sent("a", "x", 3), barrier(), sent("c", "w", 4), sent("c", "x", 5, deletes))
	want := []string{"a/w 1", "b/w 2", "c/x 5", "c/w 4", "a/x 3", "barrier"}
	if diff := cmp.Diff(want, popped(t, q)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	put(t, q, barrier())
	if got := popped(t, q); len(got) != 1 || q.budget.Used() != 0 {
		t.Errorf("%v, %d bytes in use", got, q.budget.Used())
	}
}

// TestQueue_KeepsListBehindEventsOfItsCluster: no later publish overtakes the list, because it may create a
// record again that the list drops.
func TestQueue_KeepsListBehindEventsOfItsCluster(t *testing.T) {
	q := newQueue(64 << 20)
	drop := store.Op{Kind: store.Drop, Key: store.Key{Cluster: "a", ResourceID: "w"}}
	put(t, q, sent("a", "x", 1), newPending(clientNamed("hub"), []store.Op{drop, drop}), sent("a", "w", 2, deletes))
	want := []string{"a/x 1", "a/w 0", "a/w 2"}
	if diff := cmp.Diff(want, popped(t, q)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestQueue_ClientFillsAShareOfACommit: a publish that arrives during a commit waits only for that commit, even
// if another client floods the queue.
func TestQueue_ClientFillsAShareOfACommit(t *testing.T) {
	q := newQueue(64 << 20)
	for n := range 40 {
		put(t, q, sent("flood", "w", n))
	}
	batch := q.pop(nil, commitOps, commitBytes)
	if len(batch) != 3 {
		t.Errorf("%d publishes of 200 KiB in one commit, want those that fill a quarter of it", len(batch))
	}
	put(t, q, publishOf("other", 1))
	if next := q.pop(nil, commitOps, commitBytes); next[0].from != clientNamed("other") && next[1].from != clientNamed("other") {
		t.Error("what came while a commit was written is not among the first of the next one")
	}
}

// TestQueue_ClusterLeavesCapacityForTheOthersOfItsSource: one cluster cannot use the whole share of its source.
func TestQueue_ClusterLeavesCapacityForTheOthersOfItsSource(t *testing.T) {
	q := newQueue(16 << 20)
	fill := func(cluster string) (bytes int) {
		for {
			p := sent(cluster, "w", 0)
			if isFull(t, q.put(t.Context(), p), true) {
				return bytes
			}
			bytes += p.size
		}
	}
	if n := fill("flood"); n < 3<<20 || n > 4<<20 {
		t.Errorf("one cluster has %d bytes of 16 MiB, want half of its source's half", n)
	}
	if n := fill("quiet"); n < 1<<20 {
		t.Errorf("the next one has %d bytes", n)
	}
}

// isFull reports whether refused is the error of a full queue. clusterOnly is true if only the share of one
// cluster must be full.
func isFull(t *testing.T, refused *transport.Error, clusterOnly bool) bool {
	t.Helper()
	if refused != nil && (refused.Code != transport.CodeOverloaded || refused.ClusterOnly != clusterOnly || refused.Next != transport.NextBackOff) {
		t.Fatalf("refused with %+v", refused)
	}
	return refused != nil
}

func TestQueue_FloodLeavesCapacityForOthers(t *testing.T) {
	q := newQueue(64 << 10)
	const size = 1 << 10
	fill := func(name string) (n int) {
		for {
			if isFull(t, q.put(t.Context(), publishOf(name, size)), false) {
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
		if err := q.put(t.Context(), p); err != nil {
			t.Fatalf("put: %v", err)
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
	if err := q.put(t.Context(), publishOf("a", 1)); err != nil {
		t.Fatalf("put: %v", err)
	}
	q.close()
	if err := q.put(t.Context(), publishOf("a", 1)); transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("put after close: %v", err)
	}
	if batch := q.pop(nil, 10, 10); len(batch) != 1 {
		t.Errorf("%d publishes left of those before close, want 1", len(batch))
	}
	if n := q.budget.Used(); n != 1 {
		t.Errorf("%d bytes in use, want those of the batch", n)
	}
}

// recorder is a store that accepts and records all ops.
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

// TestCommitter_WritesQueueAtStop: a committer that stops writes the queued ops and rejects new ones.
func TestCommitter_WritesQueueAtStop(t *testing.T) {
	s := &recorder{}
	c := New(&settings.Config{Store: s, QueueBytes: 1 << 20, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: time.Now}, nil).commits
	queued := publishOf("a", 1)
	if err := c.queue.put(t.Context(), queued); err != nil {
		t.Fatalf("put: %v", err)
	}
	c.finish()
	select {
	case <-queued.done:
		a := queued.answer
		if a.err != nil || len(a.outcomes) != 1 {
			t.Errorf("answer %+v", a)
		}
	default:
		t.Error("the queued event was not answered")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.run(ctx); err != nil {
		t.Errorf("run: %v", err)
	}
	if _, err := c.commit(t.Context(), clientNamed("a"), nil, store.Op{}); transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("a publish after the end: %v", err)
	}
}
