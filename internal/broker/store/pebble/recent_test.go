package pebble

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestRecent_ReturnsLastWrites: the cache returns only the last written value, and keeps no more than its
// limit.
func TestRecent_ReturnsLastWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRecent[int](100, func(s string) int { return len(s) })
		written := map[int]string{}
		for range rapid.IntRange(0, 200).Draw(t, "writes") {
			k := rapid.IntRange(0, 40).Draw(t, "key")
			if rapid.IntRange(0, 4).Draw(t, "gone") == 0 {
				r.remove(k)
				delete(written, k)
			} else {
				written[k] = rapid.StringMatching(`[a-z]{0,40}`).Draw(t, "value")
				r.put(k, written[k])
			}
			for n := range 41 {
				if got, ok := r.get(n); ok && got != written[n] {
					t.Fatalf("%d: got %q, want %q", n, got, written[n])
				}
			}
			young, old := 0, 0
			for _, v := range r.young {
				young += len(v)
			}
			for _, v := range r.old {
				old += len(v)
			}
			if young != r.used || young > r.limit || old > r.limit {
				t.Fatalf("holds %d and %d, counted %d", young, old, r.used)
			}
		}
	})
}

func TestRecent_KeepsRewrittenEntries(t *testing.T) {
	r := newMetas()
	used := store.Key{ResourceID: "used"}
	for n := range 10 * recentMetas {
		k := store.Key{ResourceID: fmt.Sprint(n)}
		r.put(k, &store.Meta{Key: k})
		if n%recentMetas == 0 {
			r.put(used, &store.Meta{Key: used})
		}
		if _, ok := r.get(used); !ok {
			t.Fatalf("forgotten after %d others", n)
		}
	}
	if _, ok := r.get(store.Key{ResourceID: "0"}); ok {
		t.Error("a value that was not written again is still there")
	}
	r.remove(used)
	if _, ok := r.get(used); ok {
		t.Error("a removed entry still exists")
	}
}

// TestRecent_HoldsUpToItsLimit: the cache keeps as many values as one half holds, in any order.
func TestRecent_HoldsUpToItsLimit(t *testing.T) {
	r := newMetas()
	for n := range 5 * recentMetas {
		k := store.Key{ResourceID: fmt.Sprint(n % recentMetas)}
		if _, ok := r.get(k); !ok && n >= recentMetas {
			t.Fatalf("forgotten after %d", n)
		}
		r.put(k, &store.Meta{Key: k})
	}
}

// TestRecent_KeepsNoLargeEvent: a large event is not cached and evicts no others.
func TestRecent_KeepsNoLargeEvent(t *testing.T) {
	r := newEvents()
	small, large := memindex.RecordPart{Key: store.Key{ResourceID: "a"}, Part: store.SpecPart}, memindex.RecordPart{Key: store.Key{ResourceID: "b"}, Part: store.SpecPart}
	r.put(small, make([]byte, 1000))
	r.put(large, make([]byte, 1000))
	for range 10 {
		r.put(large, make([]byte, recentBytes/2))
	}
	if _, ok := r.get(large); ok {
		t.Error("the previous content is still there")
	}
	if _, ok := r.get(small); !ok {
		t.Error("another entry is removed")
	}
}

// TestGet_ReturnsValueOnDisk: records are the same whether they are cached, partly cached, or read from disk.
func TestGet_ReturnsValueOnDisk(t *testing.T) {
	s := mustOpen(t, Options{Dir: dir, FS: vfs.NewMem()})
	defer mustClose(t, s)
	cluster := 0
	rapid.Check(t, func(t *rapid.T) {
		cluster++
		s.metas, s.events = newMetas(), newEvents()
		s.metas.limit = rapid.IntRange(4, 12).Draw(t, "metas") // at least four times the cost of one put
		s.events.limit = rapid.IntRange(0, 20*keyBytes).Draw(t, "bytes")
		in := []string{fmt.Sprint("c", cluster)}
		get := func(id string) *store.Record {
			r, err := s.Get(t.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: in[0], ResourceID: id})
			if errors.Is(err, store.ErrNotFound) {
				return nil
			}
			if err != nil {
				t.Fatal(err)
			}
			return &r
		}
		revision := func(k store.Key) uint64 {
			if r := get(k.ResourceID); r != nil {
				return r.SpecRevision
			}
			return 0
		}
		for range rapid.IntRange(1, 20).Draw(t, "commits") {
			var ops []store.Op
			for range rapid.IntRange(1, 4).Draw(t, "ops") {
				ops = append(ops, storetest.Draw(t, in, revision))
			}
			if _, err := s.Commit(t.Context(), ops); err != nil {
				t.Fatal(err)
			}
			remembered := map[string]*store.Record{}
			for _, id := range []string{"u1", "u2", "u3", "u4"} {
				remembered[id] = get(id)
			}
			metas, events := s.metas, s.events
			s.metas, s.events = newMetas(), newEvents()
			for id, r := range remembered {
				if d := cmp.Diff(get(id), r); d != "" {
					t.Fatalf("%s (-read +remembered):\n%s", id, d)
				}
			}
			s.metas, s.events = metas, events
		}
	})
}
