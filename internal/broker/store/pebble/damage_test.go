package pebble

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// raw changes the database of a closed store directly.
func raw(t *testing.T, fs vfs.FS, f func(db *engine.DB)) {
	t.Helper()
	db, err := engine.Open(dir, &engine.Options{
		FS: fs, FormatMajorVersion: engine.FormatValueSeparation, Logger: logger{newFailure(slog.New(slog.DiscardHandler))},
	})
	if err != nil {
		t.Fatal(err)
	}
	f(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// written returns a file system with a store of a few works. One has a status; one is a tombstone with a queued
// spec.
func written(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	s := mustOpen(t, Options{Dir: dir, FS: fs})
	status := store.Op{Kind: store.PutStatus, Key: testKey(1), Version: 1, Sequence: "4198400", Event: []byte("status")}
	deletion := testOp(2, 1)
	deletion.Deleting, deletion.Tag, deletion.Event, deletion.Reported = true, codec.Tag{1}, nil, true
	waits := testOp(3, 1)
	waits.Name = "work-2"
	if _, err := s.Commit(t.Context(), []store.Op{testOp(1, 1), testOp(2, 1), status, deletion, waits}); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Bind(t.Context(), s, codec.ManifestBundles, "c1", "uid"); err != nil {
		t.Fatal(err)
	}
	if err := store.WriteBookmarks(t.Context(), s, map[string][]byte{"hub/s1": []byte("here")}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	return fs
}

// TestOpen_FindsDamage: Open finds damage in each value that it reads.
func TestOpen_FindsDamage(t *testing.T) {
	t.Parallel()
	garbage := []byte("garbage that is long enough to be a value")
	put := func(key, value []byte) func(db *engine.DB) error {
		return func(db *engine.DB) error { return db.Set(key, value, engine.Sync) }
	}
	remove := func(key []byte) func(db *engine.DB) error {
		return func(db *engine.DB) error { return db.Delete(key, engine.Sync) }
	}
	meta := value.Key(value.Meta, testKey(1))
	ahead := value.AppendMeta(nil, &store.Meta{Key: testKey(1), State: store.Live, SpecRevision: 99})
	for name, c := range map[string]struct {
		change func(db *engine.DB) error
		want   string
	}{
		"meta is garbage":          {put(meta, garbage), "u1"},
		"meta has no sense":        {put(meta, value.Seal(meta, []byte{9})), "u1"},
		"meta is above the head":   {put(meta, value.Seal(meta, ahead)), "above the head"},
		"key of a meta":            {put([]byte("mx"), value.Seal([]byte("mx"), nil)), "parts"},
		"head is missing":          {remove([]byte{keyHead}), "missing"},
		"head is garbage":          {put([]byte{keyHead}, garbage), "damaged value at h"},
		"head has no sense":        {put([]byte{keyHead}, value.Seal([]byte{keyHead}, nil)), "damaged value at h"},
		"epoch is missing":         {remove([]byte{keyStoreID}), "missing"},
		"epoch is garbage":         {put([]byte{keyStoreID}, garbage), "damaged value at i"},
		"term is garbage":          {put(value.NumberKey(value.Incarnation, 1), garbage), "e/1"},
		"term has no sense":        {put(value.NumberKey(value.Incarnation, 1), value.Seal(value.NumberKey(value.Incarnation, 1), nil)), "e/1"},
		"number of a term":         {put([]byte("e1"), value.Seal([]byte("e1"), value.EncodeIncarnation(memindex.Incarnation{}))), "8 bytes"},
		"subscription is garbage":  {put(value.BookmarkKey(store.BindingName(codec.ManifestBundles, "c1")), garbage), "c1"},
		"bookmark is garbage":      {put(value.BookmarkKey("hub/s1"), garbage), "hub/s1"},
		"key of a subscription":    {put([]byte("cx"), value.Seal([]byte("cx"), nil)), "parts"},
		"feed is above the head":   {put(value.NumberKey(value.Revision, 99), value.Seal(value.NumberKey(value.Revision, 99), nil)), "above the head"},
		"feed's newest is garbage": {put(value.NumberKey(value.Revision, 99), garbage), "r/99"},
		"latest term is missing":   {remove(value.NumberKey(value.Incarnation, 1)), "incarnation that it does not have"},
		"head is lower":            {put([]byte{keyHead}, value.Seal([]byte{keyHead}, encodeNumber(3))), "above the head"},
		"terms have no end":        {put(value.NumberKey(value.Incarnation, 1<<64-1), value.Seal(value.NumberKey(value.Incarnation, 1<<64-1), value.EncodeIncarnation(memindex.Incarnation{}))), "no number"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := written(t)
			raw(t, fs, func(db *engine.DB) {
				if err := c.change(db); err != nil {
					t.Fatal(err)
				}
			})
			_, err := Open(Options{Dir: dir, FS: fs})
			var damaged *store.DamageError
			if !errors.As(err, &damaged) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("open: %v, want damage with %q", err, c.want)
			}
			// The directory is no longer locked.
			raw(t, fs, func(*engine.DB) {})
		})
	}
}

// TestOpen_FindsMissingEnd: Open reports a store that has lost data since it was closed. A store that was not
// closed is opened.
func TestOpen_FindsMissingEnd(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := mustOpen(t, Options{Dir: dir, FS: fs})
	before := vfs.NewMem()
	if _, err := vfs.Clone(fs, before, dir, dir, vfs.CloneSync); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), []store.Op{testOp(1, 1)}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	mark := fs.PathJoin(dir, cleanName)
	put := func(from *vfs.MemFS) {
		t.Helper()
		if _, err := vfs.Clone(from, before, mark, mark); err != nil {
			t.Fatal(err)
		}
	}
	put(fs)
	var damaged *store.DamageError
	if _, err := Open(Options{Dir: dir, FS: before}); !errors.As(err, &damaged) || !strings.Contains(err.Error(), "closed at revision 1 and has 0") {
		t.Fatalf("open of a store without its end: %v", err)
	}
	flip(t, before, mark, rand.New(rand.NewPCG(1, 1)))
	if _, err := Open(Options{Dir: dir, FS: before}); !errors.As(err, &damaged) || !strings.Contains(err.Error(), "remove it") {
		t.Fatalf("open with a damaged mark: %v", err)
	}
	if err := before.Remove(mark); err != nil {
		t.Fatal(err)
	}
	// As after a crash; the marker of an earlier opening is ignored.
	mustClose(t, mustOpen(t, Options{Dir: dir, FS: before}))
	early := vfs.NewMem()
	if _, err := vfs.Clone(before, early, dir, dir); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, Options{Dir: dir, FS: before})
	if _, err := s.Commit(t.Context(), []store.Op{testOp(1, 1)}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	put(early)
	mustClose(t, mustOpen(t, Options{Dir: dir, FS: before}))
}

// TestRead_FindsDamage: values that Open does not read are checked when they are read.
func TestRead_FindsDamage(t *testing.T) {
	t.Parallel()
	garbage := []byte("garbage that is long enough to be a value")
	all := store.Scope{DataType: codec.ManifestBundles}
	get := func(n int) func(ctx context.Context, s *Store) error {
		return func(ctx context.Context, s *Store) error { _, err := s.Get(ctx, testKey(n)); return err }
	}
	scan := func(scope store.Scope) func(ctx context.Context, s *Store) error {
		return func(ctx context.Context, s *Store) error {
			return s.Scan(ctx, scope, func(store.Meta) error { return nil })
		}
	}
	changes := func(ctx context.Context, s *Store) error { _, err := s.Changes(ctx, 0, 100); return err }
	since := func(ctx context.Context, s *Store) error {
		return s.Since(ctx, store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, store.SpecPart, 0, func(store.Meta) error { return nil })
	}
	tombstones := func(ctx context.Context, s *Store) error {
		return s.Tombstones(ctx, codec.ManifestBundles, "c1", func(store.Meta) error { return nil })
	}
	lead := func(revision uint64, part store.Part, n int) []byte {
		return value.Seal(value.NumberKey(value.Revision, revision), value.AppendChange(nil, &store.Change{Key: testKey(n), Part: part, State: store.Live}))
	}
	feed1, feed4 := value.NumberKey(value.Revision, 1), value.NumberKey(value.Revision, 4)
	commit := func(op store.Op) func(ctx context.Context, s *Store) error {
		return func(ctx context.Context, s *Store) error { _, err := s.Commit(ctx, []store.Op{op}); return err }
	}
	sameName := testOp(9, 1) // if its record existed, the name would need no index lookup
	sameName.Name = "work-1"
	confirm := store.Op{Kind: store.PutStatus, Key: testKey(2), Version: 1, Sequence: "8392704", Deleted: true, Event: []byte("gone")}
	meta, spec, status := value.Key(value.Meta, testKey(1)), value.Key(value.Spec, testKey(1)), value.Key(value.Status, testKey(1))
	name, owner := nameKey(codec.ManifestBundles, "c1", "work-1"), appendOwnerKey(nil, "s1", testKey(1))
	for what, c := range map[string]struct {
		key, value []byte // nil value: removed
		read       func(ctx context.Context, s *Store) error
		want       string
	}{
		"meta, get":                {meta, garbage, get(1), "m/"},
		"meta without sense":       {meta, value.Seal(meta, []byte{9}), get(1), "m/"},
		"meta, scan":               {meta, garbage, scan(all), "m/"},
		"meta, scan of an owner":   {meta, garbage, scan(store.Scope{DataType: codec.ManifestBundles, Owner: "s1"}), "m/"},
		"meta, commit":             {meta, garbage, commit(testOp(1, 2)), "m/"},
		"key of a meta":            {[]byte(string(meta[:len(meta)-2]) + "\x00x"), value.Seal([]byte(string(meta[:len(meta)-2])+"\x00x"), nil), scan(all), "parts"},
		"spec":                     {spec, garbage, get(1), "s/"},
		"spec is missing":          {spec, nil, get(1), "missing"},
		"status":                   {status, garbage, get(1), "t/"},
		"status is missing":        {status, nil, get(1), "missing"},
		"name":                     {name, garbage, commit(sameName), "n/"},
		"what waits":               {value.Key(value.Queued, testKey(2)), garbage, commit(confirm), "w/"},
		"owner":                    {owner, garbage, scan(store.Scope{DataType: codec.ManifestBundles, Owner: "s1"}), "o/"},
		"owner without a record":   {appendOwnerKey(nil, "s2", testKey(1)), value.Seal(appendOwnerKey(nil, "s2", testKey(1)), nil), scan(store.Scope{DataType: codec.ManifestBundles, Owner: "s2"}), "owner"},
		"feed":                     {value.NumberKey(value.Revision, 1), garbage, changes, "r/1"},
		"feed, since":              {feed1, garbage, since, "r/1"},
		"feed of nonsense, since":  {feed1, value.Seal(feed1, nil), since, "r/1"},
		"feed is missing, since":   {feed1, nil, since, "r/1"},
		"feed to another, since":   {feed1, lead(1, store.SpecPart, 2), since, "r/1"},
		"feed to no record, since": {feed1, lead(1, store.SpecPart, 9), since, "r/1"},
		"feed of a status, since":  {feed1, lead(1, store.StatusPart, 1), since, "r/1"},
		"meta, since":              {meta, garbage, since, "m/"},
		"feed, tombstones":         {feed4, garbage, tombstones, "r/4"},
		"feed, tombstones, gone":   {feed4, nil, tombstones, "r/4"},
		"feed without sense":       {value.NumberKey(value.Revision, 1), value.Seal(value.NumberKey(value.Revision, 1), nil), changes, "r/1"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, Options{Dir: dir, FS: written(t)})
			// Change the database directly; the next view of the store has the change.
			var err error
			if c.value == nil {
				err = s.db.Delete(c.key, engine.Sync)
			} else {
				err = s.db.Set(c.key, c.value, engine.Sync)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := storetest.Bind(t.Context(), s, codec.ManifestBundles, "c2", ""); err != nil {
				t.Fatal(err)
			}
			err = c.read(t.Context(), s)
			var damaged *store.DamageError
			if !errors.As(err, &damaged) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("read: %v, want damage with %q", err, c.want)
			}
			readOnly(t, s, damaged)
			if err := s.Close(); !errors.As(err, &damaged) {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// TestOpen_RefusesNewerFormat: a store of a newer release is not changed.
func TestOpen_RefusesNewerFormat(t *testing.T) {
	t.Parallel()
	fs := written(t)
	key := []byte{keyStoreID}
	raw(t, fs, func(db *engine.DB) {
		v := value.Seal(key, []byte("epoch"))
		v[0] = value.Format + 1
		if err := db.Set(key, reseal(key, v), engine.Sync); err != nil {
			t.Fatal(err)
		}
	})
	_, err := Open(Options{Dir: dir, FS: fs})
	var newer *value.FormatError
	if !errors.As(err, &newer) || newer.Key != "i" {
		t.Errorf("open: %v", err)
	}
}

// TestBitFlip flips bits anywhere in the files of a store. The store then either has all written data or
// reports the damage.
func TestBitFlip(t *testing.T) {
	t.Parallel()
	master := vfs.NewMem()
	a := newAcked()
	s := mustOpen(t, tiny(master))
	if err := a.churn(s, 0, 60); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	names, err := master.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	flips := 150
	if testing.Short() {
		flips = 20
	}
	found := 0
	for range flips {
		fs := vfs.NewMem()
		if _, err := vfs.Clone(master, fs, dir, dir); err != nil {
			t.Fatal(err)
		}
		file := master.PathJoin(dir, names[rng.IntN(len(names))])
		if !flip(t, fs, file, rng) {
			continue
		}
		// A check before the opening finds at least the same damage, and changes nothing.
		before := contents(t, fs, dir)
		report, err := checkDir(t.Context(), fs, dir)
		sound := err == nil && report.Damaged == 0
		if d := cmp.Diff(before, contents(t, fs, dir)); d != "" {
			t.Errorf("%s: a check changed files (-before +after):\n%s", file, d)
		}
		if readFlipped(t, fs, a, file) {
			found++
			if sound {
				t.Errorf("%s: a check found nothing", file)
			}
		}
	}
	if found < flips/10 {
		t.Errorf("of %d flips %d were found", flips, found)
	}
}

// TestOpen_FindsChangedManifest: the engine treats damage in a manifest as a torn write. It drops the rest of
// the manifest, with the tables named there. For each flipped bit, the opening of a closed store must report
// the damage.
func TestOpen_FindsChangedManifest(t *testing.T) {
	t.Parallel()
	master := vfs.NewMem()
	s := mustOpen(t, tiny(master))
	if err := newAcked().churn(s, 0, 60); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	manifest, err := manifestOf(master, dir)
	if err != nil {
		t.Fatal(err)
	}
	name := master.PathJoin(dir, manifest)
	info, err := master.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < info.Size(); at += 5 {
		fs := vfs.NewMem()
		if _, err := vfs.Clone(master, fs, dir, dir); err != nil {
			t.Fatal(err)
		}
		change(t, fs, name, func(data []byte) { data[at] ^= 1 })
		if report, err := checkDir(t.Context(), fs, dir); err != nil || report.Damaged == 0 {
			t.Errorf("byte %d: a check found nothing: %v", at, err)
		}
		if s, err := Open(tiny(fs)); err == nil {
			t.Errorf("byte %d: opened", at)
			mustClose(t, s)
		}
	}
	if err := master.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(tiny(master)); err == nil {
		t.Error("opened without its manifest")
	}
}

// readFlipped opens and reads a store, and reports whether damage was found.
func readFlipped(t *testing.T, fs vfs.FS, a acked, file string) bool {
	t.Helper()
	s, err := Open(tiny(fs))
	if err != nil {
		return true // TestOpen_FindsDamage checks the error
	}
	found := readAll(t, s, a, file)
	if err := s.Close(); err != nil && s.Err() == nil {
		t.Errorf("%s: close: %v", file, err)
	}
	return found
}

// flip flips one bit of a file; it returns false for an empty one.
func flip(t *testing.T, fs *vfs.MemFS, name string, rng *rand.Rand) bool {
	t.Helper()
	return change(t, fs, name, func(data []byte) { data[rng.IntN(len(data))] ^= 1 << rng.IntN(8) })
}

// change changes the bytes of a file; it returns false for an empty one.
func change(t *testing.T, fs *vfs.MemFS, name string, f func(data []byte)) bool {
	t.Helper()
	file, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(file)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	if len(data) == 0 {
		return false
	}
	f(data)
	out, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = out.Write(data)
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		t.Fatal(err)
	}
	return true
}

// readAll reads all values and reports whether damage was found.
func readAll(t *testing.T, s *Store, a acked, file string) bool {
	t.Helper()
	for n, version := range a.last {
		if n == bookmark {
			a.checkBookmark(t, s)
			continue
		}
		r, err := s.Get(t.Context(), testKey(n))
		switch {
		case errors.Is(err, store.ErrNotFound):
			t.Errorf("%s: work %d is missing without an error", file, n)
		case err != nil:
			return true
		case r.Version != version || string(r.Spec) != string(content(n, version)):
			t.Errorf("%s: work %d has version %d and content %.30q", file, n, r.Version, r.Spec)
		}
	}
	c, err := s.Changes(t.Context(), 0, 1000)
	if err != nil {
		return true
	}
	if len(c) != len(a.last) {
		t.Errorf("%s: %d changes for %d works and the bookmark", file, len(c), len(a.last)-1)
	}
	n := 0
	scope := store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}
	err = s.Since(t.Context(), scope, store.SpecPart, 0, func(store.Meta) error { n++; return nil })
	if err == nil && n != len(c)-1 {
		t.Errorf("%s: %d changed records of %d", file, n, len(c)-1)
	}
	return err != nil
}

func TestOpen_InUse(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"memory": {Dir: dir, FS: vfs.NewMem()},
		"disk":   {Dir: filepath.Join(t.TempDir(), dir)},
	} {
		s := mustOpen(t, o)
		if _, err := Open(o); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), o.Dir) {
			t.Errorf("%s: second open: %v", name, err)
		}
		mustClose(t, s)
		mustClose(t, mustOpen(t, o))
	}
}

// TestOpen_InUseByProcess checks that a store that another process uses cannot be opened. The test runs itself
// as that process.
func TestOpen_InUseByProcess(t *testing.T) {
	t.Parallel()
	const variable = "HAWSER_TEST_STORE"
	if d := os.Getenv(variable); d != "" {
		if _, err := Open(Options{Dir: d}); !errors.Is(err, ErrInUse) {
			t.Errorf("open in another process: %v", err)
		}
		return
	}
	d := filepath.Join(t.TempDir(), dir)
	s := mustOpen(t, Options{Dir: d})
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOpen_InUseByProcess$")
	cmd.Env = append(os.Environ(), variable+"="+d)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	mustClose(t, s)
}

func TestOpen_Refuses(t *testing.T) {
	t.Parallel()
	if _, err := Open(Options{}); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("no directory: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: file}); err == nil || !strings.Contains(err.Error(), file) || errors.Is(err, ErrInUse) {
		t.Errorf("a file: %v", err)
	}
	d := filepath.Join(t.TempDir(), "fresh")
	mustClose(t, mustOpen(t, Options{Dir: d}))
	if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of a new directory: %v, %v", info.Mode(), err)
	}
}
