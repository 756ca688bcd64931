package pebble

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// Whatever recent says is what was written last, and it says little.
func TestRecent_IsWhatWasWrittenLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r recent
		written := map[store.Key]*store.Meta{}
		key := func(n int) store.Key { return store.Key{ResourceID: fmt.Sprint(n)} }
		for range rapid.IntRange(0, 20).Draw(t, "rounds") {
			from := rapid.IntRange(0, 2*recentMetas).Draw(t, "from")
			gone := rapid.Bool().Draw(t, "gone")
			for n := from; n < from+rapid.IntRange(0, recentMetas).Draw(t, "count"); n++ {
				m := &store.Meta{Key: key(n)}
				if gone {
					m = nil
				}
				r.put(key(n), m)
				written[key(n)] = m
			}
			for n := from; n < from+100; n++ {
				if m := r.get(key(n)); m != nil && m != written[key(n)] {
					t.Fatalf("record %d: got %p, want %p", n, m, written[key(n)])
				}
			}
		}
		if len(r.young) > recentMetas || len(r.old) > recentMetas {
			t.Fatalf("holds %d and %d", len(r.young), len(r.old))
		}
	})
}

func TestRecent_KeepsWhatIsUsed(t *testing.T) {
	var r recent
	used := store.Key{ResourceID: "used"}
	r.put(used, &store.Meta{Key: used})
	for n := range 10 * recentMetas {
		k := store.Key{ResourceID: fmt.Sprint(n)}
		r.put(k, &store.Meta{Key: k})
		if r.get(used) == nil {
			t.Fatalf("forgotten after %d others", n)
		}
	}
	if k := (store.Key{ResourceID: "0"}); r.get(k) != nil {
		t.Error("what nobody used is still there")
	}
	r.put(used, nil)
	if r.get(used) != nil {
		t.Error("what is gone is still there")
	}
}
