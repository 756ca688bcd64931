package pebble

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// The broker of commit 0647681f wrote testdata/format-3, and sent testdata/format-3-backup. TestFormer_Write
// of package broker in that commit contains the events. The files RESERVE and LOCK are left out, because each
// opening makes them. testdata/format-3.txt is the output of describeStore for both directories.
const (
	formerStore  = "testdata/format-3"
	formerBackup = "testdata/format-3-backup"
)

// copyFormer returns a copy of a directory that a former broker wrote.
func copyFormer(t *testing.T, from string) string {
	t.Helper()
	d := filepath.Join(t.TempDir(), dir)
	noError(t, os.CopyFS(d, os.DirFS(from)))
	return d
}

// describeEvent shows the attributes of a stored event and its data.
func describeEvent(t *testing.T, b []byte) string {
	t.Helper()
	if b == nil {
		return "none"
	}
	e, err := codec.Unmarshal(b)
	noError(t, err)
	attributes := fmt.Sprint(slices.Sorted(maps.Keys(e.Extensions())))
	return e.Source() + " " + e.Type()[strings.LastIndexByte(e.Type(), '.')+1:] + " " + attributes + " " + string(e.Data())
}

// describeStore returns all data that a store serves, one line per value.
func describeStore(t *testing.T, s *Store) (lines []string) {
	t.Helper()
	send := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	noError(t, s.Scan(t.Context(), store.Scope{DataType: codec.ManifestBundles}, func(m store.Meta) error {
		send("%s/%s %d %s %s v%d tag %.6s spec %d superseded %d status %d v%d sequence %s hash %s failing %t deleted %s confirmed %s sizes %d %d %d",
			m.Cluster, m.ResourceID, m.State, m.Owner, m.Name, m.Version, m.Tag, m.SpecRevision, m.Superseded, m.StatusRevision, m.StatusVersion,
			m.Sequence, m.StatusHash, m.Failing, m.DeletedAt.Format("060102150405.0"), m.ConfirmedAt.Format("060102150405"), m.Sizes.Spec, m.Sizes.Status, m.Sizes.Queued)
		if w := m.Queued; w != nil {
			send("  waiting %s %s %s v%d tag %.6s deleting %t %s", w.ResourceID, w.Owner, w.Name, w.Version, w.Tag, w.Deleting, w.DeletedAt.Format("060102150405"))
		}
		r, err := s.Get(t.Context(), m.Key)
		noError(t, err)
		send("  spec %s", describeEvent(t, r.Spec))
		send("  status %s", describeEvent(t, r.Status))
		return nil
	}))
	changes, err := s.Changes(t.Context(), 0, 1000)
	noError(t, err)
	for _, c := range changes {
		if c.Part == store.BookmarkPart {
			continue // former bookmarks have no revision; see below
		}
		send("change %d %s/%s %s part %d state %d", c.Revision, c.Key.Cluster, c.Key.ResourceID, c.Owner, c.Part, c.State)
	}
	for _, cluster := range []string{"c1", "c2", "c3", "c4"} {
		uid, ok := s.Subscribed(codec.ManifestBundles, cluster)
		h := s.ClusterHead(codec.ManifestBundles, cluster)
		send("cluster %s subscribed %t uid %q head %d live %d tombstones %d failing %d unanswered %d sequence %s",
			cluster, ok, uid, h.SpecRevision, h.Digest.Count, h.Tombstones, h.Failing, h.Unanswered, h.Sequence)
	}
	for _, of := range []quota.Scope{quota.Source, quota.Cluster} {
		for _, r := range s.Rows(of, "", 10) {
			send("use of %s works %d records %d bytes %d statuses %d clusters %d", r.Name, r.Works, r.Records, r.Bytes, r.Statuses, r.Clusters)
		}
	}
	bookmarks := s.Bookmarks("")
	for _, name := range slices.Sorted(maps.Keys(bookmarks)) {
		send("bookmark %s %s", name, bookmarks[name])
	}
	for _, owner := range []string{"src", "ci"} {
		for _, c := range s.Digests(codec.ManifestBundles, owner) {
			send("digest %s %s %d %.6s", owner, c.Cluster, c.Digest.Count, c.Digest.Sum)
		}
		for _, k := range must(s.ConfirmedTombstones(t.Context(), codec.ManifestBundles, owner, s.Head().Revision, 10)) {
			send("collectable %s %s/%s", owner, k.Cluster, k.ResourceID)
		}
	}
	return lines
}

// TestFormer_Store checks a store that a former broker wrote, and the backup that it sent. They serve every
// value, and continue as a store of this release.
func TestFormer_Store(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(formerStore + ".txt")
	noError(t, err)
	want := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for _, from := range []string{formerStore, formerBackup} {
		t.Run(filepath.Base(from), func(t *testing.T) {
			t.Parallel()
			d := copyFormer(t, from)
			before, err := Check(t.Context(), d)
			if err != nil || before.Err() != nil || !before.Closed || before.Values != 102 || before.Bookmarks != 6 {
				t.Fatalf("check: %+v, %v", before, err)
			}
			s := mustOpen(t, Options{Dir: d})
			got := describeStore(t, s)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if h := s.Head(); h.StoreID != "former-1" || h.Revision != 39+8 || h.FirstRevision != 40 { // the bookmarks and bindings got the first revisions
				t.Errorf("head %+v", h)
			}
			for c, want := range map[store.Cursor]bool{
				{StoreID: "former-1", Incarnation: "former-2", Revision: 38}: true,
				{StoreID: "former-1", Incarnation: "former-3", Revision: 39}: true,
				{StoreID: "former-1", Incarnation: "former-2", Revision: 39}: false, // belongs to the next incarnation
				{StoreID: "former-1", Incarnation: "former-9", Revision: 1}:  false,
				{StoreID: "former-2", Incarnation: "former-2", Revision: 1}:  false,
			} {
				if s.ValidCursor(c) != want {
					t.Errorf("cursor %v: valid is %t", c, !want)
				}
			}
			if entries := must(s.Changes(t.Context(), 39, 100)); len(entries) != 8 || entries[0].Key.ResourceID != "accepted/c1" || string(entries[0].Value) != "1" {
				t.Errorf("the feed has %+v", entries)
			}
			noError(t, store.WriteBookmarks(t.Context(), s, map[string][]byte{"hub/src": []byte("there")}))
			must(s.Commit(t.Context(), []store.Op{testOp(1, 1)}))
			mustClose(t, s)
			after, err := Check(t.Context(), d)
			if err != nil || after.Err() != nil || after.Bookmarks != 6 || after.Revision != 39+8+2 {
				t.Errorf("check afterwards: %+v, %v", after, err)
			}
		})
	}
}

// TestFormer_Restore: a backup of an earlier release is copied to the directory of a store, as in a restore by
// an operator.
func TestFormer_Restore(t *testing.T) {
	t.Parallel()
	from, to := copyFormer(t, formerBackup), filepath.Join(t.TempDir(), dir)
	r, err := Clone(t.Context(), from, to)
	if err != nil || r.Revision != 39 || r.Bookmarks != 6 {
		t.Fatalf("%+v, %v", r, err)
	}
	s := mustOpen(t, Options{Dir: to})
	if uid, ok := s.Subscribed(codec.ManifestBundles, "c1"); uid != "uid-1" || !ok {
		t.Errorf("cluster c1: %q, %t", uid, ok)
	}
	mustClose(t, s)
}
