package journal

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
)

var testBinding = Binding{ClusterUID: "uid-1", Cluster: "cluster1", HubHash: "hub", AgentID: "agent"}

// spec is the nth spec of a work.
func spec(t testing.TB, id string, n int) codec.Event {
	t.Helper()
	e := codec.Event{}
	e.SetSpecVersion(codec.SpecVersion)
	e.SetID(id + "-event")
	e.SetSource("hub")
	e.SetType("io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request")
	e.SetTime(time.Unix(1700000000, 0))
	e.SetExtension(codec.ExtResourceID, id)
	e.SetExtension(codec.ExtClusterName, "cluster1")
	e.SetExtension(codec.ExtResourceVersion, int32(n))
	e.SetExtension(codec.ExtRevision, codec.FormatRevision(uint64(n)))
	if err := e.SetData(codec.ContentTypeJSON, map[string]any{"manifests": []any{}}); err != nil {
		t.Fatal(err)
	}
	return e
}

func cursor(n int) codec.Cursor {
	return codec.Cursor{StoreID: "e", Incarnation: "t", Revision: uint64(n)}
}

// holding collects what Load finds: the version of each work.
type holding map[string]int32

func (h holding) put(e codec.Event) error {
	version, _, err := codec.IntegerExtension(e, codec.ExtResourceVersion)
	h[idOf(e)] = version
	return err
}

func (h holding) removed(id string) { delete(h, id) }

func idOf(e codec.Event) string { return e.Extensions()[codec.ExtResourceID].(string) }

// open opens a journal and loads it.
func open(t testing.TB, c Config) (*Journal, LoadResult, holding) {
	t.Helper()
	j, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	h := holding{}
	s, err := j.Load(testBinding, h.put, h.removed)
	if err != nil {
		t.Fatal(err)
	}
	return j, s, h
}

// content is the Content of a caller that holds these works.
func content(t testing.TB, h holding, s LoadResult) Content {
	return Content{Works: func(yield func(codec.Event, error) bool) {
		for _, id := range slices.Sorted(maps.Keys(h)) {
			if !yield(spec(t, id, int(h[id])), nil) {
				return
			}
		}
	}, Reported: s.Reported, Left: s.Left}
}

// renewed opens, loads and compacts a journal, as a process does at its start.
func renewed(t testing.TB, c Config) (*Journal, LoadResult, holding) {
	t.Helper()
	j, s, h := open(t, c)
	must(t, j.Compact(content(t, h, s)))
	return j, s, h
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestJournal_LoadsWrittenEntries(t *testing.T) {
	dir := t.TempDir()
	j, s, _ := open(t, Config{Dir: dir})
	if diff := cmp.Diff(LoadResult{}, s); diff != "" {
		t.Fatalf("an empty directory (-want +got):\n%s", diff)
	}
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Put(spec(t, "b", 1)))
	must(t, j.Put(spec(t, "a", 2)))
	must(t, j.Put(spec(t, "c", 1)))
	must(t, j.Remove("c"))
	must(t, j.Note(Reported{Sequence: "11", Accepted: map[string]string{"gone": "x"}}, map[string]map[string]string{"gone": {"object": "x"}}))
	must(t, j.Checkpoint(cursor(7)))
	must(t, j.Put(spec(t, "b", 2)))
	reported := Reported{Sequence: "12", Accepted: map[string]string{"a": "x", "b": ""}}
	must(t, j.Note(reported, nil))
	left := map[string]map[string]string{"work": {"object": "\x00", "other": ""}}
	must(t, j.Note(reported, left))
	must(t, j.Reserve("14"))
	instance := j.Instance()
	must(t, j.Close())

	want := LoadResult{Cursor: cursor(7), Reported: reported, Reserved: "14", Left: left}
	for _, what := range []string{"as it was written", "renewed"} {
		j, s, h := renewed(t, Config{Dir: dir})
		if diff := cmp.Diff(want, s); diff != "" {
			t.Errorf("%s: state (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(holding{"a": 2, "b": 2}, h); diff != "" {
			t.Errorf("%s: works (-want +got):\n%s", what, diff)
		}
		if instance == "" || j.Instance() != instance {
			t.Errorf("%s: instance %q became %q", what, instance, j.Instance())
		}
		must(t, j.Close())
	}
}

// works returns n works of the given number of bytes.
func works(t testing.TB, n, bytes int, secret string) []codec.Event {
	t.Helper()
	events := make([]codec.Event, n)
	for i := range events {
		events[i] = spec(t, fmt.Sprintf("work-%d", i), 1)
		data := map[string]any{"manifests": []any{secret + strings.Repeat("x", bytes)}}
		if err := events[i].SetData(codec.ContentTypeJSON, data); err != nil {
			t.Fatal(err)
		}
	}
	return events
}

// The length of the log is bounded by twice its current content and a constant, however much is written. The
// content of a removed work is gone after a compaction.
func TestJournal_LogIsBoundedAndForgets(t *testing.T) {
	t.Parallel()
	const secret = "c2VjcmV0LXZhbHVl"
	dir := t.TempDir()
	j, _, _ := open(t, Config{Dir: dir})
	kept, gone := works(t, 20, 10<<10, "kept"), works(t, 1, 10<<10, secret)[0]
	gone.SetExtension(codec.ExtResourceID, "gone")
	all := Content{Works: func(yield func(codec.Event, error) bool) {
		for _, e := range kept {
			if !yield(e, nil) {
				return
			}
		}
	}}
	must(t, j.Put(gone))
	must(t, j.Remove("gone"))
	must(t, j.Checkpoint(cursor(1)))
	renewals := 0
	for n := range 1000 {
		must(t, j.Put(kept[n%len(kept)]))
		info, err := os.Stat(filepath.Join(dir, logFile))
		must(t, err)
		const each = 11 << 10
		if limit := int64(2*20*each + waste + each); info.Size() > limit {
			t.Fatalf("after %d writes the log has %d bytes, want at most %d", n, info.Size(), limit)
		}
		if j.NeedsCompaction() {
			must(t, j.Compact(all))
			renewals++
		}
	}
	if renewals < 20 || renewals > 50 {
		t.Errorf("%d renewals", renewals)
	}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s still contains a removed work", path)
		}
		return err
	}))
	if j.NeedsCompaction() {
		must(t, j.Compact(all))
	}
	must(t, j.Close())
	_, s, h := open(t, Config{Dir: dir})
	if s.Cursor != cursor(1) || s.Damaged != 0 || len(h) != len(kept) {
		t.Errorf("got %+v, %d works", s, len(h))
	}
}
