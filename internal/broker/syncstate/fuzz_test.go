package syncstate

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/pkg/codec"
)

// FuzzLastPosition: a stored hub position is invalid, or means the same after it is stored again.
func FuzzLastPosition(f *testing.F) {
	f.Add(`{"uid":"u","resourceVersion":"4711"}`)
	f.Add("")
	f.Add("1//id")
	s := mem.Open(mem.Options{NewID: func() string { return "id" }})
	f.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.Error(err)
		}
	})
	sources := newSources()
	sources.cfg.Store = s
	f.Fuzz(func(t *testing.T, text string) {
		if err := s.SetBookmarks(t.Context(), map[string][]byte{bookmarkOf("src"): []byte(text)}); err != nil {
			return // longer than the maximum of a bookmark
		}
		p, err := sources.LastPosition("src")
		if err != nil {
			return
		}
		if err := sources.notePosition(t.Context(), &syncReport{owner: store.Scope{Owner: "src"}}, p); err != nil {
			t.Fatal(err)
		}
		if again, err := sources.LastPosition("src"); err != nil || !cmp.Equal(p, again) || p == (*codec.HubPosition)(nil) {
			t.Errorf("%q is %+v, then %+v, %v", text, p, again, err)
		}
	})
}
