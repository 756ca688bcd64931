package pebble

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestOpen_StoreOfFormer: a release without bookmarks and without the index of changes wrote testdata/format-1.
// It has one record in each state, a queued spec and a record of another owner, written in two openings. This
// release reads all of it and continues the store in its own format.
func TestOpen_StoreOfFormer(t *testing.T) {
	t.Parallel()
	d := filepath.Join(t.TempDir(), dir)
	noError(t, os.CopyFS(d, os.DirFS("testdata/format-1")))
	before, err := Check(t.Context(), d)
	if err != nil || before.Err() != nil || before.Values != 29 || !before.Closed {
		t.Fatalf("check: %+v, %v", before, err)
	}

	s := mustOpen(t, Options{Dir: d})
	key := func(id string) store.Key {
		return store.Key{DataType: codec.ManifestBundles, Cluster: "cluster1", ResourceID: id}
	}
	r, err := s.Get(t.Context(), key("lives"))
	if err != nil || string(r.Spec) != "spec of lives, version 2" || string(r.Status) != "status of lives" {
		t.Errorf("a live record: %+v, %v", r, err)
	}
	var got []string
	collect := func(what string) func(store.Meta) error {
		return func(m store.Meta) error {
			got = append(got, fmt.Sprintf("%s %s %d %d", what, m.ResourceID, m.SpecRevision, m.StatusRevision))
			return nil
		}
	}
	scope := store.Scope{DataType: codec.ManifestBundles, Cluster: "cluster1"}
	noError(t, s.Since(t.Context(), scope, store.SpecPart, 2, collect("spec")))
	noError(t, s.Tombstones(t.Context(), codec.ManifestBundles, "cluster1", collect("tombstone")))
	scope = store.Scope{DataType: codec.ManifestBundles, Owner: "hub1"}
	noError(t, s.Since(t.Context(), scope, store.StatusPart, 6, collect("status")))
	for _, k := range must(s.ConfirmedTombstones(t.Context(), codec.ManifestBundles, "hub1", s.Head().Revision, 10)) {
		got = append(got, "confirmed "+k.ResourceID)
	}
	for _, owner := range []string{"hub1", "ci"} {
		for _, c := range s.Digests(codec.ManifestBundles, owner) {
			got = append(got, fmt.Sprintf("%s has %d on %s", owner, c.Digest.Count, c.Cluster))
		}
	}
	h := s.ClusterHead(codec.ManifestBundles, "cluster1")
	got = append(got, fmt.Sprintf("head %d, %d live, %d deleted, %s", h.SpecRevision, h.Digest.Count, h.Tombstones, h.Sequence))
	want := []string{
		"spec lives 5 6", "spec goes 8 7", "tombstone goes 8 7", "status goes 8 7", "status gone 10 10", "confirmed gone",
		"hub1 has 2 on cluster1", "ci has 1 on cluster1", "head 8, 2 live, 1 deleted, 37752832",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}

	old := store.Cursor{StoreID: before.StoreID, Incarnation: before.Incarnation, Revision: 10}
	if !s.ValidCursor(old) {
		t.Errorf("cursor %v is refused", old)
	}
	noError(t, store.WriteBookmarks(t.Context(), s, map[string][]byte{"hub/hub1": []byte("here")}))
	must(s.Commit(t.Context(), []store.Op{testOp(1, 1)}))
	mustClose(t, s)
	after, err := Check(t.Context(), d)
	if err != nil || after.Err() != nil || after.Bookmarks != 1 || after.Revision != 13 { // the binding of former times, the bookmark, the work
		t.Errorf("check afterwards: %+v, %v", after, err)
	}
}
