package resident

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestRing_ForgetsGone: what is gone is remembered as long as the ring is.
func TestRing_ForgetsGone(t *testing.T) {
	t.Parallel()
	const size = 512
	r := NewRing(size, 1)
	for n := range uint64(3 * size) {
		k := store.Key{DataType: codec.ManifestBundles, Cluster: "c", ResourceID: string(rune('a' + n%2))}
		r.Append(store.Change{Revision: n + 1, Key: k, Part: store.SpecPart, Gone: n%2 == 0})
	}
	if len(r.gone) > size {
		t.Errorf("%d entries say what is gone", len(r.gone))
	}
	if r.next-r.First != size {
		t.Errorf("the ring holds %d to %d", r.First, r.next)
	}
}

// TestRing_Clone: what comes after is in one of the two only.
func TestRing_Clone(t *testing.T) {
	t.Parallel()
	r := NewRing(4, 1)
	change := func(revision uint64, id string) store.Change {
		return store.Change{Revision: revision, Key: store.Key{DataType: codec.ManifestBundles, Cluster: "c", ResourceID: id}, Part: store.SpecPart, Gone: true}
	}
	r.Append(change(1, "a"))
	c := r.Clone()
	r.Append(change(2, "a"))
	c.Append(change(2, "b"))
	if got := r.From(1, 10); len(got) != 1 || got[0].Key.ResourceID != "a" || got[0].Revision != 2 {
		t.Errorf("the original holds %+v", got)
	}
	if got := c.From(1, 10); len(got) != 2 || got[1].Key.ResourceID != "b" {
		t.Errorf("the copy holds %+v", got)
	}
}
