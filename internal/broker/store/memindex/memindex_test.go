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

// TestSubscriptions: a stored uid stays if a later agent sends none.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	s := make(Subscriptions)
	p := ClusterKey{DataType: codec.ManifestBundles, Cluster: "c"}
	for _, c := range []struct {
		uid  string
		news bool
	}{{"", true}, {"", false}, {"u", true}, {"", false}, {"u", false}, {"v", true}} {
		if got := s.IsNew(p, c.uid); got != c.news {
			t.Errorf("%q after %q: news %v", c.uid, s[p], got)
		}
		if c.news {
			s[p] = c.uid
		}
	}
	if got := s.Clusters(NewTally(), codec.ManifestBundles); !slices.Equal(got, []string{"c"}) {
		t.Errorf("clusters %v", got)
	}
	s.Forget("c")
	if got := s.Clusters(NewTally(), codec.ManifestBundles); len(got) != 0 {
		t.Errorf("clusters %v after it was forgotten", got)
	}
}
