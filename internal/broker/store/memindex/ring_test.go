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
