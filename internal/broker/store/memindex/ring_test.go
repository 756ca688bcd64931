package memindex

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestRing_ForgetsGone: a removal is remembered while its entry is in the ring.
func TestRing_ForgetsGone(t *testing.T) {
	t.Parallel()
	const size = 512
	r := NewRing(size, 1)
	for n := range uint64(3 * size) {
		k := store.Key{DataType: codec.ManifestBundles, Cluster: "c", ResourceID: string(rune('a' + n%2))}
		r.Append(store.Change{Revision: n + 1, Key: k, Part: store.SpecPart, Gone: n%2 == 0})
	}
	if len(r.gone) > size {
		t.Errorf("%d removals are remembered", len(r.gone))
	}
	if r.next-r.First != size {
		t.Errorf("the ring holds %d to %d", r.First, r.next)
	}
}

// TestRing_LastSpec: a deletion names the spec that it replaced, also when it is repeated, while the ring has it.
func TestRing_LastSpec(t *testing.T) {
	t.Parallel()
	r := NewRing(4, 1)
	var old *store.Meta
	put := func(s store.State) {
		n := &store.Meta{State: s, SpecRevision: r.next}
		r.Append(store.Change{Revision: r.next, Part: store.SpecPart, State: s})
		r.Forget(old, n)
		old = n
	}
	for step, c := range []struct {
		state store.State
		want  uint64
	}{{store.Live, 0}, {store.Live, 0}, {store.Tombstone, 2}, {store.Tombstone, 2}, {store.Live, 0}, {store.Tombstone, 5}} {
		put(c.state)
		if got := r.at(r.next - 1).LastSpec; got != c.want {
			t.Errorf("step %d: last spec %d, want %d", step, got, c.want)
		}
	}
	for range 4 {
		r.Append(store.Change{Revision: r.next, Part: store.StatusPart})
	}
	if put(store.Tombstone); r.at(r.next-1).LastSpec != 0 {
		t.Error("a deletion names a spec that the ring may no longer have")
	}
}
