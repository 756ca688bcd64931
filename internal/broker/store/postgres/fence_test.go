package postgres_test

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestReplicas_Fence:
//
// Scenario:
//
//	t1: a source publishes at replica A.
//	t2: its later subscription takes over at replica B.
//	t3: a late publish of the first subscription arrives at A.
//
// Result: A rejects it, although A may not have followed t2 yet. It also does after B has ended.
func TestReplicas_Fence(t *testing.T) {
	t.Parallel()
	_, _, r := replicas(t, 2)
	a, b := r[0], r[1]
	source := store.Scope{DataType: codec.ManifestBundles, Owner: "hub"}
	former := store.FenceOf(source, a.Head().Revision, "former")
	commit := func(s store.Store, f store.Fence, op store.Op, want store.ResultCode) {
		t.Helper()
		op.Fence = f
		out, err := s.Commit(t.Context(), []store.Op{op})
		if err != nil {
			t.Fatal(err)
		}
		if out[0].Result != want {
			t.Errorf("result %d, want %d", out[0].Result, want)
		}
	}
	commit(a, former, work(1, 1, []byte("1")), store.Accepted)
	if err := b.Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := store.FenceOf(source, b.Head().Revision, "now")
	commit(b, now, store.Op{Kind: store.Supersede}, store.Accepted)
	commit(a, former, work(1, 2, []byte("2")), store.Fenced)
	commit(a, former, store.Op{Kind: store.Supersede}, store.Fenced)
	commit(a, now, work(1, 2, []byte("2")), store.Accepted)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	commit(a, former, work(1, 3, []byte("3")), store.Fenced)
}
