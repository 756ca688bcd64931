package syncstate

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// FuzzLastPosition: a stored hub position is invalid, or means the same after it is stored again.
func FuzzLastPosition(f *testing.F) {
	f.Add(`{"uid":"u","resourceVersion":"4711"}`)
	f.Add("")
	f.Add("1//id")
	b := newSources(0)
	f.Fuzz(func(t *testing.T, text string) {
		if err := store.WriteBookmarks(t.Context(), b.store, map[string][]byte{bookmarkOf("src"): []byte(text)}); err != nil {
			return // longer than the maximum of a bookmark
		}
		p, err := b.Sources.LastPosition("src")
		if err != nil {
			return
		}
		b.report(t, syncReport{owner: owned("src"), position: p})
		if again, err := b.Sources.LastPosition("src"); err != nil || !cmp.Equal(p, again) || p == (*codec.HubPosition)(nil) {
			t.Errorf("%q is %+v, then %+v, %v", text, p, again, err)
		}
	})
}

// FuzzRows: a row with any name and value is ignored, or followed and removed again.
func FuzzRows(f *testing.F) {
	s := owned("s")
	f.Add(stateRow(s, "c"), stateValue{synced, "i"}.encode())
	f.Add(stateRow(s, ""), []byte("blocked"))
	f.Add(withheldRow(s, "c", 1), encodeWithheld("i", "1", "why", works("w1"))[0])
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		n, ok := parseRow(name)
		if !ok {
			return
		}
		r := syncRows{all: map[store.Scope]*source{}}
		r.follow(n, value)
		r.follow(n, nil)
		if o := r.all[n.owner]; o.at(n.cluster, "i") != unknown || r.works.Load() != 0 {
			t.Errorf("%q %q leaves %+v", name, value, o)
		}
	})
}
