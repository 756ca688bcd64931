package memindex

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestRevisions_Model compares the list with a set, and checks the limit of its holes.
func TestRevisions_Model(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var list revisions
		set := make(map[uint64]bool)
		last := uint64(0)
		for range rapid.IntRange(0, 50).Draw(t, "loaded") {
			r := rapid.Uint64Range(1, 1000).Draw(t, "revision")
			if !set[r] {
				list.load(r)
				set[r] = true
				last = max(last, r)
			}
		}
		list.sort()
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				last += rapid.Uint64Range(1, 3).Draw(t, "further")
				list.add(last)
				set[last] = true
			case 2: // a revision that was added before
				if r := rapid.Uint64Range(1, max(last, 1)).Draw(t, "revision"); !set[r] {
					list.add(r)
					set[r] = true
					last = max(last, r)
				}
			default:
				r := rapid.Uint64Range(0, last+1).Draw(t, "revision")
				list.remove(r)
				delete(set, r)
			}
			if n := len(list.list); list.count() != len(set) || n > len(set)+len(set)/2+2*fewHoles {
				t.Fatalf("%d entries and %d revisions, want %d", n, list.count(), len(set))
			}
		}
		all := slices.Sorted(maps.Keys(set))
		at := rapid.Uint64Range(0, last+1).Draw(t, "at")
		limit := rapid.IntRange(1, 10).Draw(t, "limit")
		above := slices.DeleteFunc(slices.Clone(all), func(r uint64) bool { return r <= at })
		below := slices.DeleteFunc(slices.Clone(all), func(r uint64) bool { return r > at })
		for what, pair := range map[string][2][]uint64{
			"after": {above, list.after(at)},
			"up to": {below[:min(limit, len(below))], list.upTo(at, limit)},
		} {
			if d := cmp.Diff(pair[0], pair[1], cmpopts.EquateEmpty()); d != "" {
				t.Fatalf("%s %d (-set +list):\n%s", what, at, d)
			}
		}
	})
}

// TestRevisions_ShrinksAgain: a list that was long frees its memory.
func TestRevisions_ShrinksAgain(t *testing.T) {
	t.Parallel()
	var list revisions
	for r := range uint64(100_000) {
		list.add(r + 1)
	}
	for r := range uint64(99_990) {
		list.remove(r + 1)
	}
	if cap(list.list) > 1000 {
		t.Errorf("%d revisions are kept in room for %d", list.count(), cap(list.list))
	}
}

// BenchmarkTally_Count measures the cost of the tally per work in a commit. One of 10,000 works, with 100 per
// cluster, gets a newer spec.
func BenchmarkTally_Count(b *testing.B) {
	t := NewTally()
	const works = 10_000
	metas := make([]*store.Meta, works)
	revision := uint64(0)
	for n := range metas {
		revision++
		metas[n] = &store.Meta{
			Key:   store.Key{DataType: codec.ManifestBundles, Cluster: fmt.Sprintf("cluster-%d", n/100), ResourceID: fmt.Sprintf("0dd0c9a2-8f3c-4d2f-9a5b-%012d", n)},
			State: store.Live, Owner: "hub", SpecRevision: revision, Sequence: "4198400",
		}
		t.Count(nil, metas[n])
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n = (n + 1) % works
		m := *metas[n]
		revision++
		m.SpecRevision = revision
		m.Tag[0]++
		t.Count(metas[n], &m)
		*metas[n] = m
	}
}

// TestTally_ForgetsClusters: memory depends on the clusters with records, not on all cluster names that a
// source ever used.
func TestTally_ForgetsClusters(t *testing.T) {
	tally := NewTally()
	m := &store.Meta{Key: store.Key{Cluster: "c1", ResourceID: "1"}, State: store.Live, Owner: "s", SpecRevision: 1, Version: 1}
	n := *m
	n.ResourceID, n.SpecRevision = "2", 2
	tally.Count(nil, m)
	tally.Count(nil, &n)
	tally.Count(m, nil)
	if len(tally.clusters) != 1 || tally.ClusterHead(m.DataType, "c1").Digest.Count != 1 {
		t.Errorf("holds %d clusters", len(tally.clusters))
	}
	tally.Count(&n, nil)
	if len(tally.clusters) != 0 {
		t.Errorf("holds %d clusters without records", len(tally.clusters))
	}
}
