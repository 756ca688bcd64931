package pebble

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
)

const ringSize = 512

// TestChanges_BehindTheRing: from any start, a reader continues from disk to memory without a gap, and gets
// each part once.
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
	write(works-10, works, 3) // within the ring again
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
					t.Fatalf("from %d: %v is missing", from, c.Key)
				}
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("from %d (-want +got):\n%s", from, d)
		}
	}
	mustClose(t, s)
}

// TestClose_OfUnusedStore: a store that was opened and not written can be closed during a read. Then it rejects
// new reads.
func TestClose_OfUnusedStore(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{Dir: dir, FS: vfs.NewMem()})
	if s.Err() != nil {
		t.Errorf("a healthy store reports %v", s.Err())
	}
	closed := make(chan error, 1)
	err := s.read(t.Context(), func() {}, func(v *view) error {
		go func() { closed <- s.Close() }()
		<-s.calls.Closing
		if _, err := s.Get(context.Background(), testKey(1)); !errors.Is(err, store.ErrClosed) {
			t.Errorf("a store that is being closed reads: %v", err)
		}
		_, err := getMeta(v.snapshot, testKey(1))
		return err
	})
	if err != nil {
		t.Errorf("a call that began before: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
}
