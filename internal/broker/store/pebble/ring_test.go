package pebble

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

const ringSize = 512

// TestChanges_BehindTheRing: wherever a reader begins, it reads on from disk to
// memory without a gap, and each half once.
func TestChanges_BehindTheRing(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{Dir: dir, FS: vfs.NewMem(), ringSize: ringSize})
	const works = 3 * ringSize
	latest := make(map[store.Key]uint64)
	write := func(from, to int, version int64) {
		var ops []store.Op
		for n := from; n < to; n++ {
			op := testOp(n, version)
			op.Event = []byte("x")
			ops = append(ops, op)
		}
		out, err := s.Commit(t.Context(), ops)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			latest[ops[i].Key] = o.Revision
		}
	}
	for n := 0; n < works; n += 128 {
		write(n, n+128, 1)
	}
	write(100, 200, 2)        // from the disk into the ring
	write(works-10, works, 2) // within the ring
	write(works-10, works, 3) // and again
	drop := store.Op{Kind: store.Drop, Key: testKey(50)}
	if _, err := s.Commit(t.Context(), []store.Op{drop}); err != nil {
		t.Fatal(err)
	}
	delete(latest, drop.Key)
	head := s.Head().Revision
	for _, from := range []uint64{0, 99, works - 10, head - ringSize - 1, head - ringSize, head - ringSize + 1, head - 115, head - 1} {
		want, got := make(map[store.Key]uint64), make(map[store.Key]uint64)
		for k, r := range latest {
			if r > from {
				want[k] = r
			}
		}
		for after := from; after < head; {
			page, err := s.Changes(t.Context(), after, 77)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range page {
				if c.Revision <= after {
					t.Fatalf("from %d: revision %d after %d", from, c.Revision, after)
				}
				after = c.Revision
				if _, twice := got[c.Key]; twice {
					t.Fatalf("from %d: %v twice", from, c.Key)
				}
				if !c.Gone {
					got[c.Key] = c.Revision
				} else if c.Key != drop.Key {
					t.Fatalf("from %d: %v is gone", from, c.Key)
				}
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("from %d (-want +got):\n%s", from, d)
		}
	}
	mustClose(t, s)
}

// TestRing_ForgetsGone: what is gone is remembered as long as the ring is.
func TestRing_ForgetsGone(t *testing.T) {
	t.Parallel()
	r := newRing(ringSize, 1)
	for n := range uint64(3 * ringSize) {
		k := store.Key{DataType: codec.ManifestBundles, Cluster: "c", ResourceID: string(rune('a' + n%2))}
		r.append(store.Change{Revision: n + 1, Key: k, Part: store.SpecPart, Gone: n%2 == 0})
	}
	if len(r.gone) > ringSize {
		t.Errorf("%d entries say what is gone", len(r.gone))
	}
	if r.next-r.first != ringSize {
		t.Errorf("the ring holds %d to %d", r.first, r.next)
	}
}

// TestClose_OfUnusedStore: nothing is left of a store that was only opened.
func TestClose_OfUnusedStore(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{Dir: dir, FS: vfs.NewMem()})
	if s.Err() != nil {
		t.Errorf("a store that is well says %v", s.Err())
	}
	v, done, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-s.closing
	if _, err := s.Get(context.Background(), testKey(1)); err == nil {
		t.Error("a store that is being closed reads")
	}
	if _, err := getMeta(v.snapshot, s.failure, testKey(1)); err != nil {
		t.Errorf("a call that began before: %v", err)
	}
	done()
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
}
