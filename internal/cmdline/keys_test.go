package cmdline

import (
	"slices"
	"testing"
)

// part is an embedded struct, with keys that several files share.
type part struct {
	CAFile string `json:"caFile"`
}

type foreign struct {
	part
	URL    string `json:"url,omitempty"`
	Topics struct {
		Events string `json:"events"`
	} `json:"topics"`
	Note    string `json:"-"`
	noticed []string
}

func TestUnknownKeys(t *testing.T) {
	for file, want := range map[string][]string{
		"":                                       nil,
		"url: a\ncaFile: b\ntopics: {events: c}": nil,
		"topics: null":                           nil,
		"zone: 1\nURL: a\n-: b\nnoticed: [c]":    {"-", "URL", "noticed", "zone"},
		`{"topics": {"events": "a", "spec": "b"}}`: {"topics.spec"},
		"part: {caFile: a}":                        {"part"},
	} {
		if got, err := UnknownKeys([]byte(file), &foreign{}); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v; want %q", file, got, err, want)
		}
	}
	for _, file := range []string{"a: [", "- a", "topics: [a]"} {
		if got, err := UnknownKeys([]byte(file), &foreign{noticed: nil}); err == nil {
			t.Errorf("%q: got %q, want an error", file, got)
		}
	}
}
