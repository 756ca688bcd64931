package storetest

import (
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

func testHead(t *testing.T, site Site) {
	b := open(t, site)
	first := b.Head()
	if first.StoreID == "" || first.Incarnation == "" || first.StoreID == first.Incarnation {
		t.Fatalf("head of a new store: %+v", first)
	}
	diff(t, "a new store", store.Head{StoreID: first.StoreID, Incarnation: first.Incarnation, FirstRevision: 1}, first)
	b.accept(spec(in("c1", "u1"), 1), spec(in("c1", "u1"), 2))
	b.commit(spec(in("c1", "u1"), 2))
	diff(t, "revision", uint64(2), b.Head().Revision)
	b.close()
	b = open(t, site)
	second := b.Head()
	if second.Incarnation == "" || second.Incarnation == first.Incarnation {
		t.Errorf("the second opening has incarnation %q after %q", second.Incarnation, first.Incarnation)
	}
	diff(t, "second opening", store.Head{StoreID: first.StoreID, Incarnation: second.Incarnation, Revision: 2, FirstRevision: 3}, second)
	b.accept(store.Op{Kind: store.Drop, Key: in("c1", "u1")})
	b.close()
	b = open(t, site)
	diff(t, "the revision of a removed record is not used again", uint64(3), b.Head().Revision)
}

func testValidCursor(t *testing.T, site Site) {
	b := open(t, site)
	first := b.Head()
	b.accept(spec(in("c1", "u1"), 1), spec(in("c1", "u1"), 2))
	at := func(h store.Head, revision uint64) store.Cursor {
		return store.Cursor{StoreID: h.StoreID, Incarnation: h.Incarnation, Revision: revision}
	}
	valid := func(what string, c store.Cursor, want bool) {
		t.Helper()
		if got := b.ValidCursor(c); got != want {
			t.Errorf("%s: cursor %v is valid: %v", what, c, got)
		}
	}
	valid("now", at(first, 2), true)
	valid("before", at(first, 1), true)
	valid("the beginning", at(first, 0), true)
	valid("not yet", at(first, 3), false)
	valid("another store", store.Cursor{StoreID: "other", Incarnation: first.Incarnation, Revision: 1}, false)
	valid("another term", store.Cursor{StoreID: first.StoreID, Incarnation: "other", Revision: 1}, false)
	valid("none", store.Cursor{}, false)
	b.close()

	b = open(t, site)
	second := b.Head()
	b.accept(spec(in("c1", "u1"), 3))
	valid("first term", at(first, 2), true)
	valid("first term, a revision of the second", at(first, 3), false)
	valid("second term", at(second, 3), true)
	valid("second term, a revision of the first", at(second, 1), true)
}

// testRolledBack: a store that was replaced by an older copy rejects cursors that clients got after the copy.
func testRolledBack(t *testing.T, site Site) {
	b := open(t, site)
	b.accept(spec(in("c1", "u1"), 1))
	early := store.Cursor{StoreID: b.Head().StoreID, Incarnation: b.Head().Incarnation, Revision: 1}
	b.close()
	yesterday := site.Copy()

	b = open(t, site)
	b.accept(spec(in("c1", "u1"), 2), spec(in("c1", "u1"), 3))
	lost := store.Cursor{StoreID: b.Head().StoreID, Incarnation: b.Head().Incarnation, Revision: 3}
	b.close()

	b = open(t, yesterday)
	b.accept(spec(in("c1", "u1"), 4), spec(in("c1", "u1"), 5), spec(in("c1", "u1"), 6))
	diff(t, "epoch", early.StoreID, b.Head().StoreID)
	if !b.ValidCursor(early) {
		t.Error("a cursor from before the copy is refused")
	}
	for _, revision := range []uint64{1, 2, 3} {
		lost.Revision = revision
		if b.ValidCursor(lost) {
			t.Errorf("a cursor of the lost future is accepted: %v", lost)
		}
	}
	early.Revision = 2
	if b.ValidCursor(early) {
		t.Error("a revision of the new term is taken as one of the old")
	}
}

// testIncarnationsAreBounded: the number of remembered incarnations is limited.
func testIncarnationsAreBounded(t *testing.T, site Site) {
	b := open(t, site)
	first := store.Cursor{StoreID: b.Head().StoreID, Incarnation: b.Head().Incarnation}
	b.close()
	b = open(t, site)
	second := store.Cursor{StoreID: b.Head().StoreID, Incarnation: b.Head().Incarnation}
	for range store.MaxIncarnations - 1 {
		b.close()
		b = open(t, site)
	}
	if b.ValidCursor(first) {
		t.Error("a term is known after MaxTerms others")
	}
	if !b.ValidCursor(second) {
		t.Error("one of the last MaxTerms terms is not known")
	}
}

func testSubscribed(t *testing.T, site Site) {
	b := open(t, site)
	mark := b.bind
	type answer struct {
		UID string
		OK  bool
	}
	requested := func() []answer {
		var out []answer
		for _, k := range []struct {
			dt      codec.DataType
			cluster string
		}{{codec.ManifestBundles, "c1"}, {otherType, "c1"}, {codec.ManifestBundles, "c1-a"}, {codec.ManifestBundles, "c"}} {
			uid, ok := b.Subscribed(k.dt, k.cluster)
			out = append(out, answer{uid, ok})
		}
		return out
	}
	diff(t, "new", []answer{{}, {}, {}, {}}, requested())
	mark(codec.ManifestBundles, "c1", "")
	diff(t, "without a uid", []answer{{"", true}, {}, {}, {}}, requested())
	mark(codec.ManifestBundles, "c1", "uid1")
	mark(codec.ManifestBundles, "c1", "")
	mark(otherType, "c1", "uid2")
	mark(codec.ManifestBundles, "c1-a", "uid3")
	diff(t, "an empty uid does not replace one", []answer{{"uid1", true}, {"uid2", true}, {"uid3", true}, {}}, requested())
	bound := func(cluster, uid string) store.Op {
		return store.Op{Kind: store.BindCluster, Key: store.Key{DataType: codec.ManifestBundles, Cluster: cluster}, UID: uid}
	}
	unbound := bound("c1-a", "")
	unbound.Kind = store.UnbindCluster
	diff(t, "another uid, no cluster, a zero byte, a name that is too long, and one that was freed in the same commit",
		[]store.ResultCode{store.OwnedByOther, store.Invalid, store.Invalid, store.Invalid, store.Accepted, store.Ignored, store.Accepted},
		results(b.commit(bound("c1", "uid9"), bound("", "uid"), bound("c\x00", "uid"), bound(strings.Repeat("c", 1020), "uid"), unbound, unbound, bound("c1-a", "uid4"))))
	b.close()
	b = open(t, site)
	diff(t, "reopened", []answer{{"uid1", true}, {"uid2", true}, {"uid4", true}, {}}, requested())
	b.unbind(codec.ManifestBundles)
	diff(t, "forgotten", []answer{{}, {"uid2", true}, {"uid4", true}, {}}, requested())
	b.unbind(otherType)
	b.close()
	b = open(t, site)
	diff(t, "forgotten and reopened", []answer{{}, {}, {"uid4", true}, {}}, requested())
}

// testSubscribedDecides: whether a cluster has to confirm a deletion is decided inside the commit.
func testSubscribedDecides(t *testing.T, site Site) {
	b := open(t, site)
	u1, u2 := in("c1", "u1"), in("c1", "u2")
	b.accept(spec(u1, 1), spec(u2, 1))
	diff(t, "no agent subscribed", []store.ResultCode{store.Confirmed}, results(b.commit(deletion(u1, 1))))
	b.bookmark()
	diff(t, "subscribed", []store.ResultCode{store.Accepted}, results(b.commit(deletion(u2, 1))))
	diff(t, "states", []store.State{store.ConfirmedTombstone, store.Tombstone}, []store.State{b.get(u1).State, b.get(u2).State})
}
