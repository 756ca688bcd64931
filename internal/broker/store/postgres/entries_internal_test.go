package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/pkg/codec"
)

// sample has each kind of entry.
func sample() *entries {
	k := store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "u1"}
	old := &store.Meta{
		Key: k, State: store.Tombstone, Owner: "s1", Name: "n1", Version: 2, SpecRevision: 3, DeletedAt: time.Unix(5, 6).UTC(),
		Queued: &store.QueuedSpec{ResourceID: "u2", Owner: "s1", Name: "n1", Version: 1},
	}
	n := &store.Meta{Key: k, State: store.Live, Owner: "s1", Name: "n1", Version: 3, SpecRevision: 4, StatusRevision: 5, Failing: true, Sizes: store.Sizes{Spec: 7}}
	return &entries{
		writes: []store.Write{{Key: k, Old: old, New: n}, {Key: k, Old: n}, {Key: k, New: n}},
		changes: []store.Change{
			{Revision: 4, Key: k, Owner: "s1", Part: store.SpecPart, State: store.Live},
			{Revision: 6, Key: k, Owner: "s1", Part: store.StatusPart, Gone: true},
			{Revision: 7, Key: store.Key{ResourceID: "\xff"}, Part: store.BookmarkPart, State: store.Live, Value: []byte("v")},
			{Revision: 8, Key: store.Key{ResourceID: "empty"}, Part: store.BookmarkPart, State: store.Live, Value: []byte{}},
			{Revision: 9, Key: store.Key{ResourceID: "b"}, Part: store.BookmarkPart, Gone: true},
		},
		incarnations: []incarnation{{Incarnation: memindex.Incarnation{ID: "i", First: 7}, number: 2, database: "d"}},
	}
}

var sameEntries = cmp.Options{cmp.AllowUnexported(entries{}, incarnation{}), cmpopts.EquateEmpty()}

// TestEntries_RoundTrip: what a commit writes into the log is what another replica applies.
func TestEntries_RoundTrip(t *testing.T) {
	got, err := decodeEntries(logKey(1), encode(sample()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sample(), got, sameEntries); d != "" {
		t.Errorf("(-written +read):\n%s", d)
	}
	if got.changes[3].Value == nil || got.changes[4].Value != nil {
		t.Errorf("an empty value is read as %v, none as %v", got.changes[3].Value, got.changes[4].Value)
	}
}

// FuzzEntries: any bytes are either entries or damage. Entries survive another round.
func FuzzEntries(f *testing.F) {
	f.Add([]byte{})
	f.Add(encode(sample()))
	f.Add([]byte{fieldWrite})
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := decodeEntries(logKey(1), body)
		if err != nil {
			if !errors.As(err, new(*store.DamageError)) {
				t.Fatalf("no damage: %v", err)
			}
			return
		}
		again, err := decodeEntries(logKey(1), encode(e))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(e, again, sameEntries); d != "" {
			t.Errorf("(-once +twice):\n%s", d)
		}
	})
}
