package pebble

import (
	"bytes"
	"context"
	"errors"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// FuzzUnseal: a value is damaged, or of a newer release, or exactly the result of sealing its body. The same
// holds for the marker file of a clean stop.
func FuzzUnseal(f *testing.F) {
	key := []byte("mgroup\x00v1\x00works\x00c\x00u")
	good := value.Seal(key, []byte("body of a value"))
	f.Add(key, good)
	f.Add(key, good[:len(good)-1])
	newer := bytes.Clone(good)
	newer[0] = value.Format + 1
	f.Add(key, reseal(key, newer))
	f.Add([]byte(cleanName), value.Seal([]byte(cleanName), value.EncodeIncarnation(memindex.Incarnation{ID: "t", First: 9})))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, key, v []byte) {
		body, err := value.Unseal(key, v)
		checkRefusal(t, err)
		if err == nil && !bytes.Equal(value.Seal(key, body), v) {
			t.Fatalf("value %x at %q has body %x, and that has another value", v, key, body)
		}

		files := vfs.NewMem()
		w, err := files.Create(cleanName, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(v); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		c, err := readClean(files, "")
		checkRefusal(t, err)
		if (c != nil) != (err == nil) {
			t.Fatalf("file of a clean stop: %v, %v", c, err)
		}
	})
}

// checkRefusal checks that an error names the damage, or that a newer release is needed.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	var damaged *store.DamageError
	var newer *value.FormatError
	if err != nil && !errors.As(err, &damaged) && !errors.As(err, &newer) {
		t.Fatalf("neither damage nor a newer format: %v", err)
	}
}

// FuzzParseKey: each storage key is rejected as damaged, or is exactly the key of the parsed value. Each key
// can be printed.
func FuzzParseKey(f *testing.F) {
	k := store.Key{DataType: codec.DataType{Group: "g", Version: "v", Resource: "r"}, Cluster: "c", ResourceID: "u"}
	f.Add(value.Key(value.Meta, k))
	f.Add(appendOwnerKey(nil, "owner", k))
	f.Add(formerClusterKey(k.DataType, "c"))
	f.Add(value.NumberKey(value.Revision, 7))
	f.Add(value.BookmarkKey("compared/hub/c"))
	f.Add([]byte(store.BindingName(k.DataType, "c/d")))
	f.Add([]byte{keyStoreID})
	f.Fuzz(func(t *testing.T, key []byte) {
		value.PrintableKey(key)
		if end := after(key); end != nil && bytes.Compare(key, end) >= 0 {
			t.Errorf("%q does not lie before %q", key, end)
		}
		if len(key) == 0 {
			return // the engine has no such key
		}
		if k, err := value.ParseKey(key); err == nil {
			checkKey(t, key, value.Key(key[0], k))
		} else {
			checkRefusal(t, err)
		}
		if k, err := parseOwnerKey(key); err == nil {
			owner, _, _ := bytes.Cut(key[1:], []byte{value.Separator})
			checkKey(t, key[1:], appendOwnerKey(nil, string(owner), k)[1:])
		} else {
			checkRefusal(t, err)
		}
		if dt, cluster, err := parseFormerClusterKey(key); err == nil {
			checkKey(t, key[1:], formerClusterKey(dt, cluster)[1:])
		} else {
			checkRefusal(t, err)
		}
		if dt, cluster, ok := store.ParseBinding(string(key)); ok {
			checkKey(t, key, []byte(store.BindingName(dt, cluster)))
		}
		if n, err := value.ParseNumberKey(key); err == nil {
			checkKey(t, key, value.NumberKey(key[0], n))
		} else {
			checkRefusal(t, err)
		}
	})
}

func checkKey(t *testing.T, read, written []byte) {
	t.Helper()
	if !bytes.Equal(read, written) {
		t.Errorf("%q is read as the record stored under %q", read, written)
	}
}

// FuzzCheck puts one invalid value into an undamaged store. A check ends, and finds all damage that opening and
// reading the store finds.
func FuzzCheck(f *testing.F) {
	master := vfs.NewMem()
	s, err := Open(Options{Dir: dir, FS: master})
	if err != nil {
		f.Fatal(err)
	}
	waits := testOp(3, 1)
	waits.Name = "work-2"
	deletion := testOp(2, 1)
	deletion.Deleting, deletion.Tag, deletion.Event = true, codec.Tag{1}, nil
	ctx := context.Background()
	_, err = s.Commit(ctx, []store.Op{testOp(1, 1), testOp(2, 1), deletion, waits})
	if err := errors.Join(err, s.Close()); err != nil {
		f.Fatal(err)
	}
	k := testKey(1)
	f.Add(value.Key(value.Meta, k), value.AppendMeta(nil, &store.Meta{Key: k, State: store.Live, Owner: "s1", Name: "work-2", Version: 1, SpecRevision: 1}))
	f.Add(value.Key(value.Meta, testKey(2)), value.AppendMeta(nil, &store.Meta{Key: k, State: store.ConfirmedTombstone, Owner: "s2", Name: "work-1", StatusRevision: 2}))
	f.Add(value.NumberKey(value.Revision, 1), value.AppendChange(nil, &store.Change{Key: testKey(2), Owner: "s1", Part: store.SpecPart, State: store.Live}))
	f.Add(value.NumberKey(value.Incarnation, 2), value.EncodeIncarnation(memindex.Incarnation{ID: "t", First: 9}))
	f.Add([]byte{keyHead}, encodeNumber(1))
	f.Add(nameKey(k.DataType, k.Cluster, "work-1"), []byte("u2"))
	f.Add(appendOwnerKey(nil, "s2", k), []byte{})
	f.Add(value.BookmarkKey(store.BindingName(k.DataType, "c2")), value.AppendBookmark(nil, store.Bookmark{Value: []byte("uid"), Revision: 2}))
	f.Add(formerClusterKey(k.DataType, "c2"), []byte("uid"))
	f.Add(value.BookmarkKey("hub/s1"), []byte("here"))
	f.Fuzz(func(t *testing.T, key, body []byte) {
		if len(key) == 0 {
			return
		}
		files := vfs.NewMem()
		if _, err := vfs.Clone(master, files, dir, dir); err != nil {
			t.Fatal(err)
		}
		raw(t, files, func(db *engine.DB) { noError(t, db.Set(key, value.Seal(key, body), engine.Sync)) })
		r, err := checkDir(ctx, files, dir)
		if err != nil {
			t.Fatal(err)
		}
		if r.Damaged != 0 {
			return
		}
		s, err := Open(Options{Dir: dir, FS: files})
		if err != nil {
			t.Fatalf("a check found nothing at %s, but open did: %v", value.PrintableKey(key), err)
		}
		if err := errors.Join(readEverything(ctx, s), s.Close()); err != nil {
			t.Fatalf("a check found nothing at %s, but a reader did: %v", value.PrintableKey(key), err)
		}
	})
}

func readEverything(ctx context.Context, s *Store) error {
	all := store.Scope{DataType: codec.ManifestBundles}
	one, own := all, all
	one.Cluster, own.Owner = "c1", "s1"
	get := func(m store.Meta) error { _, err := s.Get(ctx, m.Key); return err }
	_, changes := s.Changes(ctx, 0, 100)
	_, confirmedTombstones := s.ConfirmedTombstones(ctx, codec.ManifestBundles, "s1", s.Head().Revision, 100)
	return errors.Join(
		s.Scan(ctx, all, get), s.Scan(ctx, one, get), s.Scan(ctx, own, get), changes, confirmedTombstones,
		s.Since(ctx, one, store.SpecPart, 0, get), s.Since(ctx, own, store.StatusPart, 0, get),
		s.Tombstones(ctx, codec.ManifestBundles, "c1", get),
	)
}

// FuzzReceive: after any input, the target directory has an undamaged store or no files.
func FuzzReceive(f *testing.F) {
	f.Add("CLEAN", "MANIFEST-000001", []byte("data"))
	f.Add("../escaped", "/escaped", []byte("data"))
	f.Add("LOCK", "INCOMPLETE", []byte{})
	f.Add("", "a/b", []byte("data"))
	f.Add("0", "/", []byte("data"))
	f.Add("..", "\\", []byte("data"))
	f.Fuzz(func(t *testing.T, first, second string, data []byte) {
		files := vfs.NewMem()
		sent := sending{{first, string(data)}, {second, string(data)}, {"", string(data)}}
		if r, err := receive(context.Background(), files, "backup", nil, pull(sent.next())); err == nil {
			t.Fatalf("received %+v", r)
		}
		for at, want := range map[string]string{"": "backup", "backup": lockName} {
			if names, err := files.List(at); err != nil || len(names) != 1 || names[0] != want {
				t.Fatalf("%q holds %q, %v", at, names, err)
			}
		}
	})
}
