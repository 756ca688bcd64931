package resync_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

func TestStatuses_Needs(t *testing.T) {
	for name, c := range map[string]struct {
		list   []codec.StatusHash
		status resync.Status
		want   bool
	}{
		"empty list":      {nil, resync.Status{ID: "w", Hash: "h"}, true},
		"equal":           {[]codec.StatusHash{{ResourceID: "w", StatusHash: "h"}}, resync.Status{ID: "w", Hash: "h"}, false},
		"differs":         {[]codec.StatusHash{{ResourceID: "w", StatusHash: "x"}}, resync.Status{ID: "w", Hash: "h"}, true},
		"not listed":      {[]codec.StatusHash{{ResourceID: "v", StatusHash: "h"}}, resync.Status{ID: "w", Hash: "h"}, false},
		"no hash":         {[]codec.StatusHash{{ResourceID: "w"}}, resync.Status{ID: "w"}, true},
		"final and equal": {[]codec.StatusHash{{ResourceID: "w", StatusHash: "h"}}, resync.Status{ID: "w", Hash: "h", Final: true}, true},
		"final, unlisted": {[]codec.StatusHash{{ResourceID: "v"}}, resync.Status{ID: "w", Hash: "h", Final: true}, false},
		"listed twice": {[]codec.StatusHash{{ResourceID: "w", StatusHash: "x"}, {ResourceID: "w", StatusHash: "h"}},
			resync.Status{ID: "w", Hash: "h"}, true},
	} {
		if got := resync.NewStatuses(c.list).Needs(c.status); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestStatuses_Unknown(t *testing.T) {
	s := resync.NewStatuses([]codec.StatusHash{{ResourceID: "b"}, {ResourceID: "a"}, {ResourceID: "c"}})
	s.Needs(resync.Status{ID: "b"})
	if diff := cmp.Diff([]string{"a", "c"}, s.Unknown()); diff != "" {
		t.Error(diff)
	}
}

func TestStatuses_BothSidesAreEqualAfterwards(t *testing.T) {
	hash := rapid.SampledFrom([]string{"", "h1", "h2", "h3"})
	rapid.Check(t, func(t *rapid.T) {
		kept := rapid.MapOf(rapid.StringMatching(`w[0-9]`), hash).Draw(t, "kept")
		requesting := rapid.MapOf(rapid.StringMatching(`w[0-9]`), hash).Draw(t, "asking")
		var list []codec.StatusHash
		for id, h := range requesting {
			list = append(list, codec.StatusHash{ResourceID: id, StatusHash: h})
		}
		all := len(requesting) == 0
		s := resync.NewStatuses(list)
		for id, h := range kept {
			listed, has := requesting[id]
			naive := all || has && (h == "" || h != listed)
			if got := s.Needs(resync.Status{ID: id, Hash: h}); got != naive {
				t.Fatalf("%s with hash %q, listed %q (%v): %v", id, h, listed, has, got)
			}
			if naive {
				requesting[id] = h
			}
		}
		for id := range requesting {
			if h, has := kept[id]; has && h != requesting[id] {
				t.Fatalf("%s: kept %q, the requesting side has %q", id, h, requesting[id])
			}
		}
	})
}

func TestChunks_KeepEverythingWithinTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 60, 400, 5000}).Draw(t, "size")
		text := rapid.SampledFrom([]string{"a", "<", "\x00", "ü", "\xff"}).Draw(t, "text")
		n := rapid.IntRange(0, 2500).Draw(t, "n")
		hashes := make([]codec.StatusHash, n)
		for i := range hashes {
			hashes[i] = codec.StatusHash{ResourceID: strings.Repeat(text, size), StatusHash: strings.Repeat("0", 64)}
		}
		var all []codec.StatusHash
		for c := range resync.Chunks(hashes) {
			b, err := json.Marshal(codec.StatusHashList{Hashes: c})
			if err != nil {
				t.Fatal(err)
			}
			if len(c) == 0 || len(c) > resync.MaxHashes || len(c) > 1 && len(b) > resync.MaxHashesSize+64 {
				t.Fatalf("chunk of %d entries and %d bytes", len(c), len(b))
			}
			all = append(all, c...)
		}
		if !slices.Equal(all, hashes) {
			t.Fatalf("%d entries went in, %d came out, or in another order", len(hashes), len(all))
		}
	})
}

func TestChunks_StopsWhenCanceled(t *testing.T) {
	n := 0
	for range resync.Chunks(make([]codec.StatusHash, 5*resync.MaxHashes)) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d chunks after a break at 2", n)
	}
}
