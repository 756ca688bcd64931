package broker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/pkg/codec"
)

// FuzzParsePageToken: what a source says of the page before is refused, or is a
// place and means the same when it is said again. The same holds for what the
// store keeps of its hub.
func FuzzParsePageToken(f *testing.F) {
	f.Add(pageToken{revision: 7, cluster: "c1", id: "u/1"}.String())
	f.Add(pageToken{revision: 1<<64 - 1, cluster: "%"}.String())
	f.Add("")
	f.Add("1//id")
	f.Add(`{"uid":"u","resourceVersion":"4711"}`)
	s := mem.Open(mem.Options{NewID: func() string { return "id" }})
	f.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.Error(err)
		}
	})
	b, err := New(Config{Store: s})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if token, ok := parsePageToken(text); ok && text != "" {
			if again, ok := parsePageToken(token.String()); !ok || again != token || token.cluster == "" {
				t.Errorf("%q is %+v, then %+v", text, token, again)
			}
		}
		if err := s.SetBookmarks(t.Context(), map[string][]byte{hubBookmark("src"): []byte(text)}); err != nil {
			return // longer than a bookmark may be
		}
		p, err := b.lastPosition("src")
		if err != nil {
			return
		}
		if err := b.notePosition(t.Context(), outcome{ownership: ownership{owner: "src"}}, p); err != nil {
			t.Fatal(err)
		}
		if again, err := b.lastPosition("src"); err != nil || !cmp.Equal(p, again) || p == (*codec.HubPosition)(nil) {
			t.Errorf("%q is %+v, then %+v, %v", text, p, again, err)
		}
	})
}
