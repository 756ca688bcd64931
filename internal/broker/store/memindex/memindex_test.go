package memindex

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestTerms_Valid: a cursor is valid up to the start of the next incarnation, and only for remembered
// incarnations.
func TestTerms_Valid(t *testing.T) {
	t.Parallel()
	var terms Incarnations
	for n := range uint64(store.MaxIncarnations + 2) {
		before := slices.Clone(terms)
		terms = terms.Begin(Incarnation{ID: fmt.Sprint(n), First: 10 * n})
		if n < store.MaxIncarnations && !slices.Equal(terms[:len(terms)-1], before) {
			t.Fatalf("term %d changed those before: %v", n, terms)
		}
	}
	last := uint64(store.MaxIncarnations + 1)
	head := store.Head{StoreID: "e", Revision: 10*last + 5}
	for name, c := range map[string]struct {
		cursor store.Cursor
		want   bool
	}{
		"the head":               {store.Cursor{StoreID: "e", Incarnation: fmt.Sprint(last), Revision: head.Revision}, true},
		"above the head":         {store.Cursor{StoreID: "e", Incarnation: fmt.Sprint(last), Revision: head.Revision + 1}, false},
		"another epoch":          {store.Cursor{StoreID: "f", Incarnation: fmt.Sprint(last), Revision: 1}, false},
		"the end of a term":      {store.Cursor{StoreID: "e", Incarnation: "5", Revision: 59}, true},
		"in the next term":       {store.Cursor{StoreID: "e", Incarnation: "5", Revision: 60}, false},
		"a term of long ago":     {store.Cursor{StoreID: "e", Incarnation: "1", Revision: 12}, false},
		"the oldest one":         {store.Cursor{StoreID: "e", Incarnation: "2", Revision: 22}, true},
		"an unknown incarnation": {store.Cursor{StoreID: "e", Incarnation: "x", Revision: 1}, false},
		"nothing that it names":  {store.Cursor{}, false},
	} {
		if got := terms.Valid(head, c.cursor); got != c.want {
			t.Errorf("%s: valid %v, want %v", name, got, c.want)
		}
	}
}

// TestBookmarks: bindings are found by cluster and by name, and are not listed with the bookmarks.
func TestBookmarks(t *testing.T) {
	t.Parallel()
	b := NewBookmarks()
	binding := store.BindingName(codec.ManifestBundles, "c/1")
	b.Set(binding, &store.Bookmark{Value: []byte("uid"), Revision: 1})
	b.Set("a", &store.Bookmark{Value: []byte("v"), Revision: 2})
	copied := b.Clone()
	if uid, ok := b.Subscribed(codec.ManifestBundles, "c/1"); uid != "uid" || !ok || b.Get(binding).Revision != 1 {
		t.Errorf("binding %q, %v, %+v", uid, ok, b.Get(binding))
	}
	if got := b.Clusters(NewTally(), codec.ManifestBundles); !slices.Equal(got, []string{"c/1"}) {
		t.Errorf("clusters %v", got)
	}
	if _, named := b.Named(binding); named || b.Len() != 1 || len(b.WithPrefix("")) != 1 || b.Get("a").Revision != 2 {
		t.Errorf("the binding is a bookmark: %v, of %d", named, b.Len())
	}
	for name := range copied.All() {
		b.Set(name, nil)
	}
	if n := len(b.Clusters(NewTally(), codec.ManifestBundles)) + b.Len(); n != 0 || b.Get("a") != nil || copied.Get("a") == nil {
		t.Errorf("%d are left", n)
	}
}
