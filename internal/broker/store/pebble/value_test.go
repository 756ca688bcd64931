package pebble

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/internal/fields"
	"github.com/hawser-io/hawser/pkg/codec"
)

func TestSeal_FindsEveryChange(t *testing.T) {
	t.Parallel()
	key, body := []byte("m-key"), []byte("body of a value")
	v := value.Seal(key, body)
	if got, err := value.Unseal(key, v); err != nil || !bytes.Equal(got, body) {
		t.Fatalf("unseal: %q, %v", got, err)
	}
	var damaged *store.DamageError
	for i := range v {
		for bit := range 8 {
			flipped := bytes.Clone(v)
			flipped[i] ^= 1 << bit
			if _, err := value.Unseal(key, flipped); !errors.As(err, &damaged) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, i, err)
			}
		}
	}
	for n := range v {
		if _, err := value.Unseal(key, v[:n]); !errors.As(err, &damaged) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := value.Unseal([]byte("m-kez"), v); !errors.As(err, &damaged) {
		t.Errorf("under another key: %v", err)
	}
}

// valueTail is the size of the checksum at the end of a value.
const valueTail = 4

// reseal repairs the checksum of a changed value.
func reseal(key, v []byte) []byte {
	fixed := value.Seal(key, make([]byte, len(v)-value.Len(nil)))
	copy(fixed[:len(v)-valueTail], v)
	sum := fields.Checksum(key, fixed[:len(v)-valueTail])
	fixed = fixed[:len(v)-valueTail]
	return append(fixed, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
}

func TestUnseal_OtherFormats(t *testing.T) {
	t.Parallel()
	key := []byte("m")
	v := value.Seal(key, []byte("body"))
	v[0] = value.Format + 1
	var newer *value.FormatError
	if _, err := value.Unseal(key, reseal(key, v)); !errors.As(err, &newer) || newer.Format != value.Format+1 || !strings.Contains(err.Error(), "newer release") {
		t.Errorf("newer format: %v", err)
	}
	var damaged *store.DamageError
	for i, b := range []byte{0, 1, 1} {
		v := value.Seal(key, []byte("body"))
		v[i] = b
		if _, err := value.Unseal(key, reseal(key, v)); !errors.As(err, &damaged) {
			t.Errorf("byte %d is %d: %v", i, b, err)
		}
	}
}

func drawMeta(t *rapid.T) *store.Meta {
	str := rapid.StringN(0, 20, 60)
	when := func(label string) time.Time {
		if rapid.Bool().Draw(t, label) {
			return time.Time{}
		}
		return time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, label), rapid.Int64Range(0, 999_999_999).Draw(t, label)).UTC()
	}
	tag := func(label string) (g codec.Tag) {
		copy(g[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label))
		return g
	}
	m := &store.Meta{
		Key:   store.Key{DataType: codec.ManifestBundles, Cluster: "c", ResourceID: "u"},
		State: store.State(rapid.IntRange(1, 3).Draw(t, "state")), Owner: str.Draw(t, "owner"), Name: str.Draw(t, "name"),
		Version: rapid.Int64().Draw(t, "version"), Tag: tag("tag"), SpecRevision: rapid.Uint64().Draw(t, "spec revision"),
		Superseded:     rapid.Int64().Draw(t, "superseded"),
		StatusRevision: rapid.Uint64().Draw(t, "status revision"), StatusVersion: rapid.Int64().Draw(t, "status version"),
		Sequence: str.Draw(t, "sequence"), StatusHash: str.Draw(t, "hash"), Failing: rapid.Bool().Draw(t, "failing"), DeletedAt: when("deleted"), ConfirmedAt: when("confirmed"),
	}
	m.SpecSupersedes = m.Superseded != 0
	size := rapid.IntRange(0, math.MaxInt32)
	m.Sizes = store.Sizes{Spec: size.Draw(t, "spec"), Status: size.Draw(t, "status"), Queued: size.Draw(t, "waiting")}
	if rapid.Bool().Draw(t, "waits") {
		m.Queued = &store.QueuedSpec{
			ResourceID: str.Draw(t, "waiting id"), Owner: str.Draw(t, "waiting owner"), Name: str.Draw(t, "waiting name"),
			Version: rapid.Int64().Draw(t, "waiting version"), Tag: tag("waiting tag"), Deleting: rapid.Bool().Draw(t, "waiting deleting"),
			DeletedAt: when("waiting deleted"),
		}
	}
	return m
}

func TestMeta_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := drawMeta(t)
		body := value.AppendMeta(nil, want)
		got, err := value.ParseMeta(value.Key(value.Meta, want.Key), body)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("meta (-written +read):\n%s", d)
		}
		if _, err := value.ParseMeta(value.Key(value.Meta, want.Key), append(body, 0)); err == nil || !strings.Contains(err.Error(), "it has more bytes after the last field") {
			t.Fatalf("with a byte more: %v", err)
		}
		n := rapid.IntRange(0, len(body)-1).Draw(t, "cut")
		if _, err := value.ParseMeta(value.Key(value.Meta, want.Key), body[:n]); err == nil {
			t.Fatalf("cut to %d of %d bytes: no error", n, len(body))
		}
	})
}

// FuzzDecodeMeta: no body makes the decoder panic or use much memory. A decoded meta encodes to the same body.
func FuzzDecodeMeta(f *testing.F) {
	k := store.Key{DataType: codec.ManifestBundles, Cluster: "c", ResourceID: "u"}
	f.Add(value.AppendMeta(nil, &store.Meta{Key: k, State: store.Live, Owner: "hub", Name: "work", Version: 3, SpecRevision: 7}))
	f.Add(value.AppendMeta(nil, &store.Meta{
		Key: k, State: store.Tombstone, Owner: "hub", Name: "work", Version: 3, SpecRevision: 7, StatusRevision: 8, StatusVersion: 2,
		Sequence: "4198400", StatusHash: "abc", DeletedAt: time.Unix(1, 2), Superseded: 9,
		Queued: &store.QueuedSpec{ResourceID: "v", Owner: "hub", Name: "work", Version: 1, Deleting: true, DeletedAt: time.Unix(3, 4)},
	}))
	f.Add(value.AppendMeta(nil, &store.Meta{Key: k, State: store.ConfirmedTombstone, Owner: "hub", Name: "work", StatusRevision: 9, ConfirmedAt: time.Unix(5, 6)}))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := value.ParseMeta(value.Key(value.Meta, k), body)
		if err != nil {
			return
		}
		again, err := value.ParseMeta(value.Key(value.Meta, k), value.AppendMeta(nil, m))
		if err != nil {
			t.Fatalf("%+v cannot be read back: %v", m, err)
		}
		if d := cmp.Diff(m, again); d != "" {
			t.Fatalf("meta (-first +second):\n%s", d)
		}
	})
}

// FuzzDecodeChange checks the same for entries of the feed and other index entries.
func FuzzDecodeChange(f *testing.F) {
	c := store.Change{
		Revision: 7, Key: store.Key{DataType: codec.ManifestBundles, Cluster: "c", ResourceID: "u"}, Owner: "hub",
		Part: store.StatusPart, State: store.ConfirmedTombstone,
	}
	f.Add(value.AppendChange(nil, &c))
	f.Add(value.EncodeIncarnation(memindex.Incarnation{ID: "t", First: 9}))
	f.Add(value.AppendChange(nil, &store.Change{Key: store.Key{ResourceID: "b"}, Part: store.BookmarkPart}))
	f.Add(value.AppendBookmark(nil, store.Bookmark{Value: []byte("v"), Revision: 300}))
	f.Add(encodeNumber(1 << 63))
	f.Fuzz(func(t *testing.T, body []byte) {
		if c, err := value.DecodeChange(value.NumberKey(value.Revision, 7), body); err == nil {
			if again, err := value.DecodeChange(value.NumberKey(value.Revision, 7), value.AppendChange(nil, &c)); err != nil || !cmp.Equal(again, c) {
				t.Errorf("%+v is read back as %+v, %v", c, again, err)
			}
		}
		if c, err := value.DecodeChange(value.NumberKey(value.Removal, 7), body); err == nil && (!c.Gone || c.State != 0) {
			t.Errorf("removal %+v", c)
		}
		if b, err := value.DecodeBookmark(value.BookmarkKey("b"), body); err == nil {
			if again, err := value.DecodeBookmark(value.BookmarkKey("b"), value.AppendBookmark(nil, b)); err != nil || !cmp.Equal(again, b) {
				t.Errorf("%+v is read back as %+v, %v", b, again, err)
			}
		}
		if v, err := value.DecodeIncarnation(nil, body); err == nil {
			if again, err := value.DecodeIncarnation(nil, value.EncodeIncarnation(v)); err != nil || again != v {
				t.Errorf("%+v is read back as %+v, %v", v, again, err)
			}
		}
		if n, err := decodeNumber(nil, body); err == nil {
			if again, err := decodeNumber(nil, encodeNumber(n)); err != nil || again != n {
				t.Errorf("%d is read back as %d, %v", n, again, err)
			}
		}
	})
}

// TestKeys: storage keys sort as their parts do, and can be parsed back.
func TestKeys(t *testing.T) {
	t.Parallel()
	part := rapid.StringOfN(rapid.RuneFrom([]rune("ab-.\x01ÿ")), 1, 4, -1)
	drawKey := func(t *rapid.T) store.Key {
		return store.Key{
			DataType: codec.DataType{Group: part.Draw(t, "group"), Version: part.Draw(t, "version"), Resource: part.Draw(t, "resource")},
			Cluster:  part.Draw(t, "cluster"), ResourceID: part.Draw(t, "id"),
		}
	}
	order := func(k store.Key) []string {
		return []string{k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster, k.ResourceID}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawKey(t), drawKey(t)
		if want, got := slices.Compare(order(a), order(b)), bytes.Compare(value.Key(value.Meta, a), value.Key(value.Meta, b)); want != got {
			t.Fatalf("%q and %q: order %d, want %d", a, b, got, want)
		}
		if got, err := value.ParseKey(value.Key(value.Meta, a)); err != nil || got != a {
			t.Fatalf("%q is read back as %q, %v", a, got, err)
		}
		if got, err := parseOwnerKey(appendOwnerKey(nil, "s1", a)); err != nil || got != a {
			t.Fatalf("%q is read back as %q, %v", a, got, err)
		}
		if dt, c, err := parseFormerClusterKey(formerClusterKey(a.DataType, a.Cluster)); err != nil || dt != a.DataType || c != a.Cluster {
			t.Fatalf("%q is read back as %q %q, %v", a, dt, c, err)
		}
		lead := prefix(value.Meta, order(a)[:4]...)
		inside := bytes.Compare(value.Key(value.Meta, b), lead) >= 0 && bytes.Compare(value.Key(value.Meta, b), after(lead)) < 0
		if want := slices.Equal(order(a)[:4], order(b)[:4]); inside != want {
			t.Fatalf("%q is under the prefix of %q: %v, want %v", b, a, inside, want)
		}
	})
	for _, bad := range [][]byte{{value.Meta}, []byte("ma\x00b"), []byte("ma\x00b\x00c\x00d\x00e\x00f")} {
		if _, err := value.ParseKey(bad); err == nil {
			t.Errorf("%q is taken as the key of a record", bad)
		}
	}
	if _, err := value.ParseNumberKey([]byte("r1234567")); err == nil {
		t.Error("a number of 7 bytes is taken")
	}
	if got := after([]byte{0xff, 0xff}); got != nil {
		t.Errorf("behind the last prefix is %q", got)
	}
	for key, want := range map[string]string{
		"": `""`, "h": "h", string(value.NumberKey(value.Revision, 7)): "r/7", "ma\x00b": `m/"a/b"`,
	} {
		if got := value.PrintableKey([]byte(key)); got != want {
			t.Errorf("%q is printed as %s, want %s", key, got, want)
		}
	}
}
