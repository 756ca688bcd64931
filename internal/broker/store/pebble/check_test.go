package pebble

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

func mustCheck(t testing.TB, files vfs.FS, dir string) *Report {
	t.Helper()
	r, err := checkDir(context.Background(), files, dir)
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	return r
}

// contents returns the contents of all files of a directory, by path.
func contents(t testing.TB, files vfs.FS, dir string) map[string]string {
	t.Helper()
	names, err := files.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, name := range names {
		f, err := files.Open(files.PathJoin(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		out[name] = string(b)
	}
	return out
}

// TestCheck_ReportsValidStore: the report describes the content of the store, and nothing is changed.
func TestCheck_ReportsValidStore(t *testing.T) {
	t.Parallel()
	fs := written(t)
	before := contents(t, fs, dir)
	r := mustCheck(t, fs, dir)
	if d := cmp.Diff(before, contents(t, fs, dir)); d != "" {
		t.Errorf("files (-before +after):\n%s", d)
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, Options{Dir: dir, FS: fs})
	defer mustClose(t, s)
	want := &Report{
		Dir: dir, StoreID: s.Head().StoreID, Incarnation: s.state.Incarnations[0].ID, Revision: s.Head().Revision, Closed: true,
		Clusters: []ClusterReport{{
			DataType: codec.ManifestBundles, Cluster: "c1", Live: 1, Tombstones: 1,
			Digest: s.ClusterHead(codec.ManifestBundles, "c1").Digest,
		}},
		Bookmarks: 1,
	}
	if d := cmp.Diff(want, r, cmpopts.IgnoreFields(Report{}, "Values", "Bytes")); d != "" {
		t.Errorf("report (-want +got):\n%s", d)
	}
	// store id, head, incarnation, binding, bookmark; 2 metas, 2 specs, 1 status, 1 queued event, 2 names, 2 owners,
	// 5 revisions
	if r.Values != 20 || r.Bytes < 2*len(content(1, 1)) {
		t.Errorf("%d values of %d bytes", r.Values, r.Bytes)
	}
}

// TestCheck_ChangesNothing: on a real disk neither file contents nor the list of files change.
func TestCheck_ChangesNothing(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{true, false} {
		d := filepath.Join(t.TempDir(), dir)
		o := tiny(vfs.Default)
		o.Dir = d
		s := mustOpen(t, o)
		if err := newAcked().churn(s, 0, 80); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		if !closed { // as after a crash
			noError(t, os.Remove(filepath.Join(d, cleanName)))
		}
		before := contents(t, vfs.Default, d)
		r, err := Check(t.Context(), d)
		if err != nil || r.Err() != nil {
			t.Fatalf("check: %v, %v", err, r.Err())
		}
		if r.Closed != closed || r.Revision == 0 || len(r.Clusters) != 1 {
			t.Errorf("report: %+v", r)
		}
		if diff := cmp.Diff(before, contents(t, vfs.Default, d)); diff != "" {
			t.Errorf("files (-before +after):\n%s", diff)
		}
	}
}

// TestCheck_FindsDamage: the report names each value that was changed in a store.
func TestCheck_FindsDamage(t *testing.T) {
	t.Parallel()
	garbage := []byte("garbage that is long enough to be a value")
	u1, u2 := testKey(1), testKey(2)
	sound := func(key, body []byte) []byte { return value.Seal(key, body) }
	meta1, meta2 := value.Key(value.Meta, u1), value.Key(value.Meta, u2)
	fs := written(t)
	s := mustOpen(t, Options{Dir: dir, FS: fs})
	live, tombstone := *must(getMeta(s.db, u1)), *must(getMeta(s.db, u2))
	mustClose(t, s)
	changed := func(m store.Meta, change func(*store.Meta)) []byte {
		if m.Queued != nil {
			w := *m.Queued
			m.Queued = &w
		}
		change(&m)
		return sound(value.Key(value.Meta, m.Key), value.AppendMeta(nil, &m))
	}
	name := func(n string) []byte { return nameKey(codec.ManifestBundles, "c1", n) }
	unknown := store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "orphan"}
	cases := map[string]struct {
		key, value []byte // nil value: removed
		want       []string
	}{
		"meta":                            {meta1, garbage, []string{`damaged value at m/`, "checksum"}},
		"meta without sense":              {meta1, sound(meta1, []byte{9}), []string{`m/`, "in the middle of a field"}},
		"meta is missing":                 {meta1, nil, []string{`at s/`, `at t/`, `at n/`, `at o/`, "at r/1", "at r/3", "this record does not exist"}},
		"key of a meta":                   {[]byte("mx"), sound([]byte("mx"), nil), []string{"parts"}},
		"owner of a meta":                 {meta1, changed(live, func(m *store.Meta) { m.Owner = "s9" }), []string{`at o/"s9/`, "it is missing, and m/", `at o/"s1/`, "this record does not have it", `at r/1: it differs from`, `at r/3: it differs from`}},
		"no owner":                        {meta1, changed(live, func(m *store.Meta) { m.Owner = "" }), []string{"no owner"}},
		"name of a meta":                  {meta1, changed(live, func(m *store.Meta) { m.Name = "free" }), []string{`at n/`, "c1/free", "it is missing, and m/", "c1/work-1", "this record does not have it"}},
		"name of another":                 {meta1, changed(live, func(m *store.Meta) { m.Name = "work-2" }), []string{`at n/`, "c1/work-2", "belongs to two records", "c1/work-1", "this record does not have it"}},
		"revision of a meta":              {meta1, changed(live, func(m *store.Meta) { m.SpecRevision = 4 }), []string{`at r/4: it belongs to two records: m/`, `at r/1: it refers to m/`, "this record does not have it"}},
		"revision above the head":         {meta1, changed(live, func(m *store.Meta) { m.SpecRevision = 99 }), []string{"above the head", "r/99"}},
		"no revision":                     {meta1, changed(live, func(m *store.Meta) { m.SpecRevision = 0 }), []string{"no revision"}},
		"status revision":                 {meta1, changed(live, func(m *store.Meta) { m.StatusRevision = 0 }), []string{`at t/`, "this record does not have it", `at r/3: it refers to m/`}},
		"tombstone lives":                 {meta2, changed(tombstone, func(m *store.Meta) { m.State = store.Live }), []string{"no tombstone", `at r/4: it differs from m/`}},
		"live one was deleted":            {meta1, changed(live, func(m *store.Meta) { m.DeletedAt = storetest.Noon }), []string{"deletion time"}},
		"live one is confirmed":           {meta1, changed(live, func(m *store.Meta) { m.State = store.ConfirmedTombstone }), []string{"time of confirmation", `at s/`, "this record does not have it"}},
		"confirmed, no status":            {meta2, changed(tombstone, func(m *store.Meta) { m.State = store.ConfirmedTombstone }), []string{"final status"}},
		"superseded":                      {meta1, changed(live, func(m *store.Meta) { m.Version, m.Superseded = 9, 8 }), []string{"superseded"}},
		"what waits, owner":               {meta2, changed(tombstone, func(m *store.Meta) { m.Queued.Owner = "s9" }), []string{"another owner"}},
		"what waits, itself":              {meta2, changed(tombstone, func(m *store.Meta) { m.Queued.ResourceID, m.Queued.Deleting = "u2", true }), []string{"its own deletion"}},
		"what waits, no name":             {meta2, changed(tombstone, func(m *store.Meta) { m.Queued.Name = "" }), []string{"no id or no name"}},
		"what waits is there":             {meta2, changed(tombstone, func(m *store.Meta) { m.Queued.ResourceID = "u1" }), []string{"is queued behind it, but has a record"}},
		"nothing waits":                   {meta2, changed(tombstone, func(m *store.Meta) { m.Queued = nil }), []string{`at w/`, "this record does not have it"}},
		"spec":                            {value.Key(value.Spec, u1), garbage, []string{"s/"}},
		"spec is missing":                 {value.Key(value.Spec, u1), nil, []string{`at s/`, "it is missing, and m/"}},
		"spec of nothing":                 {value.Key(value.Spec, unknown), sound(value.Key(value.Spec, unknown), nil), []string{`at s/`, "orphan", "this record does not exist"}},
		"last spec of nothing":            {[]byte("szz"), sound([]byte("szz"), nil), []string{`at s/"zz"`, "parts"}},
		"status":                          {value.Key(value.Status, u1), garbage, []string{"t/"}},
		"status is missing":               {value.Key(value.Status, u1), nil, []string{`at t/`, "it is missing, and m/"}},
		"status of a tombstone":           {value.Key(value.Status, u2), sound(value.Key(value.Status, u2), nil), []string{`at t/`, "c1/u2", "this record does not have it"}},
		"event that waits":                {value.Key(value.Queued, u2), garbage, []string{"w/"}},
		"event that waits, gone":          {value.Key(value.Queued, u2), nil, []string{`at w/`, "it is missing, and m/"}},
		"event that waits, orphan":        {value.Key(value.Queued, unknown), sound(value.Key(value.Queued, unknown), nil), []string{`at w/`, "orphan", "this record does not exist"}},
		"name":                            {name("work-1"), garbage, []string{"n/"}},
		"name is missing":                 {name("work-1"), nil, []string{"n/", "it is missing"}},
		"name of no record":               {name("work-9"), sound(name("work-9"), []byte("u9")), []string{"n/", "this record does not exist"}},
		"name of another record":          {name("work-9"), sound(name("work-9"), []byte("u1")), []string{`at n/`, "c1/work-9", "this record does not have it"}},
		"key of a name":                   {[]byte("nx"), sound([]byte("nx"), nil), []string{"parts"}},
		"owner":                           {appendOwnerKey(nil, "s1", u1), garbage, []string{"o/"}},
		"owner is missing":                {appendOwnerKey(nil, "s1", u1), nil, []string{"o/", "it is missing"}},
		"owner of nothing":                {appendOwnerKey(nil, "s1", unknown), sound(appendOwnerKey(nil, "s1", unknown), nil), []string{"o/", "this record does not exist"}},
		"another owner":                   {appendOwnerKey(nil, "s2", u1), sound(appendOwnerKey(nil, "s2", u1), nil), []string{`at o/"s2/`, "this record does not have it"}},
		"key of an owner":                 {[]byte("ox"), sound([]byte("ox"), nil), []string{"parts"}},
		"feed":                            {value.NumberKey(value.Revision, 1), garbage, []string{"r/1"}},
		"feed, missing":                   {value.NumberKey(value.Revision, 1), nil, []string{"r/1", "it is missing"}},
		"feed without sense":              {value.NumberKey(value.Revision, 1), sound(value.NumberKey(value.Revision, 1), nil), []string{"r/1"}},
		"feed of nothing":                 {value.NumberKey(value.Revision, 2), sound(value.NumberKey(value.Revision, 2), value.AppendChange(nil, &store.Change{Key: unknown, Part: store.SpecPart, State: store.Live})), []string{"r/2", "this record does not exist"}},
		"feed, other owner":               {value.NumberKey(value.Revision, 1), sound(value.NumberKey(value.Revision, 1), value.AppendChange(nil, &store.Change{Key: u1, Owner: "s9", Part: store.SpecPart, State: store.Live})), []string{`at r/1: it differs from m/`}},
		"feed, other state":               {value.NumberKey(value.Revision, 1), sound(value.NumberKey(value.Revision, 1), value.AppendChange(nil, &store.Change{Key: u1, Owner: "s1", Part: store.SpecPart, State: store.Tombstone})), []string{`at r/1: it differs from m/`}},
		"feed, other part":                {value.NumberKey(value.Revision, 1), sound(value.NumberKey(value.Revision, 1), value.AppendChange(nil, &store.Change{Key: u1, Owner: "s1", Part: store.StatusPart, State: store.Live})), []string{`at r/1: it differs from m/`}},
		"key of the feed":                 {[]byte("rx"), sound([]byte("rx"), nil), []string{"8 bytes"}},
		"head":                            {[]byte{keyHead}, garbage, []string{"at h"}},
		"head without sense":              {[]byte{keyHead}, sound([]byte{keyHead}, nil), []string{"at h"}},
		"head is missing":                 {[]byte{keyHead}, nil, []string{"at h: it is missing"}},
		"head is lower":                   {[]byte{keyHead}, sound([]byte{keyHead}, encodeNumber(2)), []string{"above the head 2", "closed at revision 6 and has 2"}},
		"epoch":                           {[]byte{keyStoreID}, garbage, []string{"at i"}},
		"epoch is missing":                {[]byte{keyStoreID}, nil, []string{"at i: it is missing"}},
		"term":                            {value.NumberKey(value.Incarnation, 1), garbage, []string{"e/1"}},
		"term without sense":              {value.NumberKey(value.Incarnation, 1), sound(value.NumberKey(value.Incarnation, 1), nil), []string{"e/1"}},
		"term is missing":                 {value.NumberKey(value.Incarnation, 2), nil, []string{"incarnation that it does not have"}},
		"term without an id":              {value.NumberKey(value.Incarnation, 9), sound(value.NumberKey(value.Incarnation, 9), value.EncodeIncarnation(memindex.Incarnation{ID: "", First: 1})), []string{"e/9", "its id is empty"}},
		"term of the future":              {value.NumberKey(value.Incarnation, 9), sound(value.NumberKey(value.Incarnation, 9), value.EncodeIncarnation(memindex.Incarnation{ID: "t", First: 99})), []string{"e/9", "above the head"}},
		"term of the past":                {value.NumberKey(value.Incarnation, 9), sound(value.NumberKey(value.Incarnation, 9), value.EncodeIncarnation(memindex.Incarnation{ID: "t", First: 0})), []string{"e/9", "below the previous incarnation"}},
		"key of a term":                   {[]byte("ex"), sound([]byte("ex"), value.EncodeIncarnation(memindex.Incarnation{ID: "t", First: 1})), []string{"8 bytes"}},
		"binding":                         {value.BookmarkKey(store.BindingName(codec.ManifestBundles, "c1")), garbage, []string{"f/"}},
		"former subscription of no place": {formerClusterKey(codec.ManifestBundles, ""), sound(formerClusterKey(codec.ManifestBundles, ""), nil), []string{"c/", "cluster is empty"}},
		"key of a subscription":           {[]byte("cx"), sound([]byte("cx"), nil), []string{"parts"}},
		"bookmark":                        {value.BookmarkKey("hub/s1"), garbage, []string{`f/"hub/s1"`}},
		"bookmark without a name":         {value.BookmarkKey(""), sound(value.BookmarkKey(""), value.AppendBookmark(nil, store.Bookmark{Revision: 1})), []string{"name of the bookmark is empty"}},
		"large bookmark":                  {value.BookmarkKey("x"), sound(value.BookmarkKey("x"), value.AppendBookmark(make([]byte, 0), store.Bookmark{Value: make([]byte, 5000), Revision: 1})), []string{"longer than"}},
		"bookmark without a revision":     {value.BookmarkKey("x"), sound(value.BookmarkKey("x"), nil), []string{"f/", "it has no revision"}},
		"bookmark of the future":          {value.BookmarkKey("x"), sound(value.BookmarkKey("x"), value.AppendBookmark(nil, store.Bookmark{Revision: 99})), []string{"f/", "above the head", "r/99: it is missing"}},
		"bookmark is missing":             {value.BookmarkKey("hub/s1"), nil, []string{"r/6", "this record does not exist"}},
		"feed of another bookmark":        {value.NumberKey(value.Revision, 6), sound(value.NumberKey(value.Revision, 6), value.AppendChange(nil, &store.Change{Key: store.Key{ResourceID: "hub/s2"}, Part: store.BookmarkPart, State: store.Live})), []string{`at r/6: it differs from f/"hub/s1"`}},
		"removal":                         {value.NumberKey(value.Removal, 2), garbage, []string{"g/2"}},
		"removal without sense":           {value.NumberKey(value.Removal, 2), sound(value.NumberKey(value.Removal, 2), value.AppendChange(nil, &store.Change{Key: u1, Owner: "s1", Part: store.SpecPart, State: store.Live})), []string{"g/2", "the state is unknown"}},
		"removal of the future":           {value.NumberKey(value.Removal, 99), sound(value.NumberKey(value.Removal, 99), value.AppendChange(nil, &store.Change{Key: u1, Owner: "s1", Part: store.SpecPart})), []string{"g/99", "above the head"}},
		"key of no kind":                  {[]byte("zz"), sound([]byte("zz"), nil), []string{`z/"z"`, "no release wrote"}},
		"garbage of no kind":              {[]byte("zz"), garbage, []string{`z/"z"`}},
		"key like the head's":             {[]byte("hh"), sound([]byte("hh"), nil), []string{`h/"h"`, "no release wrote"}},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			files := vfs.NewMem()
			if _, err := vfs.Clone(fs, files, dir, dir); err != nil {
				t.Fatal(err)
			}
			raw(t, files, func(db *engine.DB) {
				if c.value == nil {
					noError(t, db.Delete(c.key, engine.Sync))
				} else {
					noError(t, db.Set(c.key, c.value, engine.Sync))
				}
			})
			r := mustCheck(t, files, dir)
			var all []string
			for _, d := range r.Damage {
				all = append(all, d.Error())
			}
			text := strings.Join(all, "\n")
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("the report misses %q:\n%s", want, text)
				}
			}
			if err := r.Err(); err == nil || r.Damaged != len(all) || !strings.Contains(err.Error(), all[0]) {
				t.Errorf("%d damaged: %v", r.Damaged, err)
			}
			var damaged *DamagedError
			if _, err := copyStore(t.Context(), files, dir, "copy"); !errors.As(err, &damaged) {
				t.Errorf("copy of a damaged store: %v", err)
			}
			if _, err := files.Stat("copy"); err == nil {
				t.Error("a damaged store was copied")
			}
		})
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestCheck_Random: a check finds no damage after random operations and openings.
func TestCheck_Random(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		files := vfs.NewMem()
		o := tiny(files)
		ledger := storetest.NewModel()
		for range rapid.IntRange(1, 4).Draw(rt, "openings") {
			s, err := Open(o)
			if err != nil {
				rt.Fatal(err)
			}
			ledger.Reopen()
			live(rt, s, ledger)
			if err := s.Close(); err != nil {
				rt.Fatal(err)
			}
		}
		r := mustCheck(t, files, dir)
		if err := r.Err(); err != nil {
			rt.Fatalf("%v: %v", err, r.Damage)
		}
		var want []ClusterReport
		for _, cluster := range []string{"c1", "c2"} {
			h := ledger.ClusterHead(codec.ManifestBundles, cluster)
			c := ClusterReport{DataType: codec.ManifestBundles, Cluster: cluster, Digest: h.Digest, Tombstones: h.Tombstones, Live: int(h.Digest.Count)}
			all := len(ledger.Scan(store.Scope{DataType: codec.ManifestBundles, Cluster: cluster}))
			if c.ConfirmedTombstones = all - c.Live - c.Tombstones; all > 0 {
				want = append(want, c)
			}
		}
		if d := cmp.Diff(want, r.Clusters); d != "" || r.Revision != ledger.Head() {
			rt.Fatalf("head %d, want %d; clusters (-ledger +report):\n%s", r.Revision, ledger.Head(), d)
		}
	})
}

// live commits random batches to a store and to its model.
func live(t *rapid.T, s *Store, l *storetest.Model) {
	if rapid.Bool().Draw(t, "subscribed") {
		for _, to := range []store.Committer{s, storetest.Committer{Model: l}} {
			if err := storetest.Bind(context.Background(), to, codec.ManifestBundles, "c1", "uid"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range rapid.IntRange(1, 6).Draw(t, "batches") {
		var ops []store.Op
		var want []store.Outcome
		for range rapid.IntRange(1, 8).Draw(t, "ops") {
			op := storetest.Draw(t, []string{"c1", "c2"}, func(k store.Key) uint64 { e, _ := l.Get(k); return e.SpecRevision })
			step, err := l.Apply(op)
			if err != nil {
				t.Fatal(err)
			}
			ops, want = append(ops, op), append(want, step.Outcome)
		}
		got, err := s.Commit(context.Background(), ops)
		if err != nil || !slices.Equal(want, got) {
			t.Fatalf("outcomes %+v, want %+v; %v", got, want, err)
		}
		set := map[string][]byte{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "bookmark"): {byte(len(ops))}}
		for _, to := range []store.Committer{s, storetest.Committer{Model: l}} {
			if err := store.WriteBookmarks(context.Background(), to, set); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestCheck_Refuses: a check fails if there is no store, or if the store is in use.
func TestCheck_Refuses(t *testing.T) {
	t.Parallel()
	files := written(t)
	s := mustOpen(t, Options{Dir: dir, FS: files})
	check := func(what, dir string, want error) {
		t.Helper()
		if _, err := checkDir(t.Context(), files, dir); !errors.Is(err, want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	check("a running broker", dir, ErrInUse)
	mustClose(t, s)
	check("nothing", "nowhere", os.ErrNotExist)
	noError(t, files.MkdirAll("empty", 0o700))
	check("an empty directory", "empty", ErrNoStore)
	must(must(files.Create("empty/"+IncompleteName, vfs.WriteCategoryUnspecified)).Write(nil))
	check("half a copy", "empty", ErrIncomplete)
	if _, err := Open(Options{Dir: "empty", FS: files}); !errors.Is(err, ErrIncomplete) {
		t.Errorf("open of half a copy: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := checkDir(ctx, files, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	key := value.Key(value.Spec, testKey(1))
	raw(t, files, func(db *engine.DB) {
		v := value.Seal(key, []byte("body"))
		v[0] = value.Format + 1
		noError(t, db.Set(key, reseal(key, v), engine.Sync))
	})
	var newer *value.FormatError
	if _, err := checkDir(t.Context(), files, dir); !errors.As(err, &newer) {
		t.Errorf("a newer format: %v", err)
	}
}

// TestCheck_NamesSomeOfMany: a report names a limited number of damaged values.
func TestCheck_NamesSomeOfMany(t *testing.T) {
	t.Parallel()
	files := vfs.NewMem()
	mustClose(t, mustOpen(t, Options{Dir: dir, FS: files}))
	raw(t, files, func(db *engine.DB) {
		b := db.NewBatch()
		for n := range maxNamed + 5 {
			noError(t, b.Set(value.Key(value.Spec, testKey(n)), []byte("garbage"), nil))
		}
		noError(t, b.Commit(engine.Sync))
	})
	r := mustCheck(t, files, dir)
	if len(r.Damage) != maxNamed || r.Damaged != maxNamed+5 {
		t.Errorf("%d named of %d", len(r.Damage), r.Damaged)
	}
	if err := r.Err(); !strings.Contains(err.Error(), "and 1004 more") {
		t.Errorf("error: %v", err)
	}
}
