package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

func (b *bench) since(s store.Scope, part store.Part, after uint64) []store.Meta {
	b.t.Helper()
	var out []store.Meta
	if err := b.Since(b.context(), s, part, after, func(m store.Meta) error { out = append(out, m); return nil }); err != nil {
		b.t.Fatalf("since %d: %v", after, err)
	}
	return out
}

func (b *bench) tombstones(cluster string) []store.Meta {
	b.t.Helper()
	var out []store.Meta
	collect := func(m store.Meta) error { out = append(out, m); return nil }
	if err := b.Tombstones(b.context(), codec.ManifestBundles, cluster, collect); err != nil {
		b.t.Fatalf("tombstones: %v", err)
	}
	return out
}

func (b *bench) confirmedTombstones(owner string, upTo uint64, limit int) []store.Key {
	b.t.Helper()
	out, err := b.ConfirmedTombstones(b.context(), codec.ManifestBundles, owner, upTo, limit)
	if err != nil {
		b.t.Fatalf("confirmed tombstones: %v", err)
	}
	return out
}

// digestOf returns the digest of the works that ops publish.
func digestOf(ops ...store.Op) store.Digest {
	var d store.Digest
	for _, o := range ops {
		d.Count++
		d.Sum = d.Sum.Add(codec.RecordHash(o.Key.ResourceID, o.Tag))
	}
	return d
}

// testClusterHead: the summary of a cluster is right after each step.
func testClusterHead(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2 := in("c1", "u1"), in("c1", "u2")
	now := func() store.ClusterHead { return b.ClusterHead(codec.ManifestBundles, "c1") }
	want := func(revision uint64, tombstones int, sequence string, ops ...store.Op) store.ClusterHead {
		return store.ClusterHead{SpecRevision: revision, Digest: digestOf(ops...), Tombstones: tombstones, Sequence: sequence}
	}
	unanswered := func(n int, h store.ClusterHead) store.ClusterHead {
		h.Unanswered = n
		return h
	}
	diff(t, "nothing", store.ClusterHead{}, now())
	b.accept(spec(u1, 1), spec(u2, 1), spec(in("c2", "u1"), 1))
	diff(t, "two", unanswered(2, want(3, 0, "", spec(u1, 1), spec(u2, 1))), now())
	b.accept(spec(u1, 2))
	diff(t, "updated", unanswered(2, want(5, 0, "", spec(u1, 2), spec(u2, 1))), now())
	b.accept(report(u1, 2, 100))
	diff(t, "a status is no change", unanswered(1, want(5, 0, Sequence(100), spec(u1, 2), spec(u2, 1))), now())
	b.accept(report(u2, 1, 20))
	diff(t, "the highest sequence id counts, as a number", want(5, 0, Sequence(100), spec(u1, 2), spec(u2, 1)), now())
	b.accept(deletion(u1, 2))
	diff(t, "tombstones are outside the digest", want(8, 1, Sequence(100), spec(u2, 1)), now())
	b.accept(reportDeleted(u1, 2, 101))
	diff(t, "no agent is sent confirmed tombstones", want(8, 0, Sequence(101), spec(u2, 1)), now())
	foreign, unreadable := report(u2, 1, 0), report(in("c2", "u1"), 1, 0)
	foreign.Key, foreign.Sequence = in("c2", "u1"), fmt.Sprint(900<<22|7<<12)
	unreadable.Sequence = "x"
	diff(t, "results", []store.ResultCode{store.Stale, store.Stale}, results(b.commit(foreign, unreadable)))
	diff(t, "ids of other nodes do not count", "", b.ClusterHead(codec.ManifestBundles, "c2").Sequence)
	b.close()
	b = open(t, site)
	diff(t, "reopened", want(3, 0, Sequence(101), spec(u2, 1)), now())
	diff(t, "reopened, ids of other nodes", "", b.ClusterHead(codec.ManifestBundles, "c2").Sequence)
	b.accept(store.Op{Kind: store.Drop, Key: u2}, store.Op{Kind: store.Drop, Key: u1})
	diff(t, "nothing is left", store.Digest{}, now().Digest)
	diff(t, "another type", store.ClusterHead{}, b.ClusterHead(otherType, "c1"))
}

// testFailing: live works whose status reports a failure are counted.
func testFailing(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2 := in("c1", "u1"), in("c1", "u2")
	failing := func() int { return b.ClusterHead(codec.ManifestBundles, "c1").Failing }
	fails := func(k store.Key, sequence int64) store.Op {
		o := report(k, 1, sequence)
		o.Failing = true
		return o
	}
	b.accept(spec(u1, 1), spec(u2, 1), fails(u1, 1), fails(u2, 2))
	diff(t, "both fail", 2, failing())
	b.accept(report(u1, 1, 3))
	diff(t, "one is better", 1, failing())
	b.accept(spec(u2, 2))
	diff(t, "that it was changed makes it no better", 1, failing())
	b.close()
	b = open(t, site)
	diff(t, "reopened", 1, failing())
	b.accept(deletion(u2, 2))
	diff(t, "the work is being deleted", 0, failing())
	b.accept(fails(u1, 4), store.Op{Kind: store.Drop, Key: u1})
	diff(t, "the work is removed", 0, failing())
}

// testUnanswered: live works without a status for their current spec are counted.
func testUnanswered(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2 := in("c1", "u1"), in("c1", "u2")
	waiting := func() int { return b.ClusterHead(codec.ManifestBundles, "c1").Unanswered }
	b.accept(spec(u1, 1), spec(u2, 1))
	diff(t, "no work has a status", 2, waiting())
	b.accept(report(u1, 1, 1), report(u2, 1, 2))
	diff(t, "both works have a status", 0, waiting())
	b.accept(spec(u1, 2), report(u1, 1, 3))
	diff(t, "one status is of the previous version", 1, waiting())
	b.close()
	b = open(t, site)
	diff(t, "reopened", 1, waiting())
	b.accept(report(u1, 3, 4))
	diff(t, "one status is of a version from a lost store", 0, waiting())
	b.accept(spec(u1, 0))
	diff(t, "the spec has version 0", 1, waiting())
	b.accept(report(u1, 0, 5))
	diff(t, "a later status is counted", 0, waiting())
	b.accept(spec(u2, 2), deletion(u2, 2))
	diff(t, "a deletion is counted as a tombstone", 0, waiting())
	b.accept(store.Op{Kind: store.Transfer, Key: u1, Owner: "s2"})
	diff(t, "another owner is nothing new", 0, waiting())
}

// testClusters: a cluster is known while it has a record that is no confirmed tombstone, or was marked.
func testClusters(t *testing.T, site Site) {
	b := open(t, site)
	known := func() []string { return b.Clusters(codec.ManifestBundles) }
	diff(t, "nothing", 0, len(known()))
	b.bookmark()
	b.accept(spec(in("c3", "u1"), 1), spec(in("c2", "u1"), 1))
	diff(t, "records and marks", []string{"c1", "c2", "c3"}, known())
	diff(t, "another type", 0, len(b.Clusters(otherType)))
	diff(t, "result", []store.ResultCode{store.Confirmed}, results(b.commit(deletion(in("c2", "u1"), 1))))
	diff(t, "a confirmed tombstone", []string{"c1", "c3"}, known())
	reported := deletion(in("c3", "u1"), 1)
	reported.Reported = true
	b.accept(reported)
	diff(t, "a tombstone", []string{"c1", "c3"}, known())
	b.close()
	b = open(t, site)
	diff(t, "reopened", []string{"c1", "c3"}, known())
	b.accept(spec(in("c2", "u1"), 2))
	diff(t, "born again", []string{"c1", "c2", "c3"}, known())
	b.accept(store.Op{Kind: store.Drop, Key: in("c3", "u1")}, store.Op{Kind: store.Drop, Key: in("c2", "u1")})
	diff(t, "no record is left", []string{"c1"}, known())
	b.unbind(codec.ManifestBundles)
	diff(t, "forgotten", 0, len(known()))
}

// ids returns the ids of records.
func ids(metas []store.Meta) string {
	var out []string
	for _, m := range metas {
		out = append(out, m.ResourceID)
	}
	return strings.Join(out, " ")
}

// testSince: each changed record of the scope is reported once, in the order of the changes.
func testSince(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2, u3, u4 := in("c1", "u1"), in("c1", "u2"), in("c1", "u3"), in("c1", "u4")
	other := spec(u1, 1)
	other.Key.DataType = otherType
	b.accept(spec(u1, 1), spec(u2, 1), byOwner("s2", spec(u3, 1)), spec(in("c1-a", "a1"), 1), other, spec(u1, 2))
	specs := func(what, want string, after uint64) {
		t.Helper()
		diff(t, what, want, ids(b.since(store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, store.SpecPart, after)))
	}
	statuses := func(what, owner, want string, after uint64) {
		t.Helper()
		diff(t, what, want, ids(b.since(store.Scope{DataType: codec.ManifestBundles, Owner: owner}, store.StatusPart, after)))
	}
	specs("all", "u2 u3 u1", 0)
	specs("after the first change of the last one", "u2 u3 u1", 2)
	specs("after 3", "u3 u1", 3)
	specs("after the last one", "", 7)
	specs("far behind the last one", "", 1<<63)
	statuses("no status", "s1", "", 0)
	diff(t, "the whole record", b.get(u1).Meta, b.since(store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, store.SpecPart, 6)[0])
	b.accept(report(u2, 1, 1), report(u1, 2, 2), report(u3, 1, 3), report(u2, 1, 4), deletion(u2, 1)) // 8 to 12
	statuses("statuses", "s1", "u1 u2", 0)
	statuses("statuses of another owner", "s2", "u3", 0)
	statuses("statuses after 9", "s1", "u2", 9)
	specs("with a tombstone", "u3 u1 u2", 0)
	both := store.Scope{DataType: codec.ManifestBundles, Cluster: "c1", Owner: "s1"}
	diff(t, "specs of one owner", "u1 u2", ids(b.since(both, store.SpecPart, 0)))
	diff(t, "statuses of one cluster", "u1 u2", ids(b.since(both, store.StatusPart, 0)))
	both.Cluster = "c1-a"
	diff(t, "statuses of another cluster", "", ids(b.since(both, store.StatusPart, 0)))
	b.close()

	b = open(t, site)
	specs("reopened", "u3 u1 u2", 0)
	statuses("reopened", "s1", "u1 u2", 0)
	b.accept(reportDeleted(u2, 1, 5)) // 12
	specs("without a confirmed tombstone", "u3 u1", 0)
	statuses("with a confirmed tombstone", "s1", "u1 u2", 0)
	b.accept(store.Op{Kind: store.Transfer, Key: u3, Owner: "s1"}) // 13 and 14
	specs("adopted", "u1 u3", 0)
	statuses("adopted", "s1", "u1 u2 u3", 0)
	statuses("adopted, the former owner", "s2", "", 0)
	replacing := spec(u4, 1)
	replacing.Name = "work-u1"
	b.accept(replacing)
	specs("replaced", "u3 u4", 0)
	statuses("replaced", "s1", "u2 u3", 0)
	b.accept(store.Op{Kind: store.Forget, Key: u4}, store.Op{Kind: store.Drop, Key: u3})
	specs("forgotten and dropped", "", 0)
	statuses("forgotten and dropped", "s1", "u2 u4", 0)
	b.close()
	b = open(t, site)
	specs("nothing is left", "", 0)
	statuses("confirmed tombstones are left", "s1", "u2 u4", 0)
}

// testSinceSnapshot: Since does not return commits that are made while it runs.
func testSinceSnapshot(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	b.accept(spec(in("c1", "u1"), 1), spec(in("c1", "u2"), 1), spec(in("c1", "u3"), 1), report(in("c1", "u2"), 1, 1), deletion(in("c1", "u3"), 1))
	head := b.Head().Revision
	var seen []store.Meta
	look := func(m store.Meta) error {
		if len(seen) == 0 {
			b.accept(spec(in("c1", "u1"), 2), store.Op{Kind: store.Drop, Key: in("c1", "u2")}, reportDeleted(in("c1", "u3"), 1, 2))
		}
		seen = append(seen, m)
		if max(m.SpecRevision, m.StatusRevision) > head {
			t.Errorf("%+v: the call began at revision %d", m, head)
		}
		return nil
	}
	if err := b.Since(b.context(), store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, store.SpecPart, 0, look); err != nil {
		t.Fatal(err)
	}
	diff(t, "seen", "u1 u2 u3", ids(seen))
	diff(t, "seen afterwards", "u1", ids(b.since(store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, store.SpecPart, 0)))
}

func testSinceStops(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	b.accept(spec(in("c1", "u1"), 1), spec(in("c1", "u2"), 1), deletion(in("c1", "u1"), 1), deletion(in("c1", "u2"), 1))
	enough := errors.New("enough")
	scope := store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}
	for what, call := range map[string]func(context.Context, func(store.Meta) error) error{
		"since": func(ctx context.Context, f func(store.Meta) error) error {
			return b.Since(ctx, scope, store.SpecPart, 0, f)
		},
		"tombstones": func(ctx context.Context, f func(store.Meta) error) error {
			return b.Tombstones(ctx, codec.ManifestBundles, "c1", f)
		},
	} {
		n := 0
		if err := call(b.context(), func(store.Meta) error { n++; return enough }); !errors.Is(err, enough) || n != 1 {
			t.Errorf("%s, stopped: %v after %d", what, err, n)
		}
		ctx, cancel := context.WithCancel(b.context())
		n = 0
		if err := call(ctx, func(store.Meta) error { n++; cancel(); return nil }); !errors.Is(err, context.Canceled) || n != 1 {
			t.Errorf("%s, whose context ends: %v after %d", what, err, n)
		}
	}
}

func testSinceRefuses(t *testing.T, site Site) {
	b := open(t, site)
	for _, c := range []struct {
		scope store.Scope
		part  store.Part
	}{
		{store.Scope{DataType: codec.ManifestBundles, Owner: "s1"}, store.SpecPart},
		{store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, store.StatusPart},
		{store.Scope{DataType: codec.ManifestBundles, Cluster: "c1", Owner: "s1"}, 0},
		{store.Scope{DataType: codec.ManifestBundles, Cluster: "c1", Owner: "s1"}, store.StatusPart + 1},
	} {
		if err := b.Since(b.context(), c.scope, c.part, 0, func(store.Meta) error { return nil }); err == nil {
			t.Errorf("changed halves %d of %+v: no error", c.part, c.scope)
		}
	}
}

func testTombstones(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	b.bind(codec.ManifestBundles, "c2", "")
	u1, u2, u3, waiting := in("c1", "u1"), in("c1", "u2"), in("c1", "u3"), in("c1", "u4")
	waits := spec(waiting, 1)
	waits.Name = "work-u1"
	goes := deletion(waiting, 1)
	goes.Name = "work-u1"
	b.accept(spec(u1, 1), spec(u2, 1), spec(u3, 1), spec(in("c2", "u1"), 1))
	diff(t, "none", 0, len(b.tombstones("c1")))
	b.accept(deletion(u2, 1), deletion(u1, 1), deletion(in("c2", "u1"), 1), waits, goes)
	diff(t, "two, in the order of the deletions", "u2 u1", ids(b.tombstones("c1")))
	diff(t, "whole", b.get(u2).Meta, b.tombstones("c1")[0])
	b.close()
	b = open(t, site)
	diff(t, "reopened", "u2 u1", ids(b.tombstones("c1")))
	b.accept(reportDeleted(u1, 1, 1))
	diff(t, "what waited for the confirmation", "u2 u4", ids(b.tombstones("c1")))
	b.accept(deletion(u2, 2))
	diff(t, "deleted once more", "u4 u2", ids(b.tombstones("c1")))
	again := spec(u2, 3)
	again.Supersedes = b.get(u2).SpecRevision
	b.accept(again, store.Op{Kind: store.Drop, Key: waiting})
	diff(t, "one lives again, one was dropped", 0, len(b.tombstones("c1")))
	diff(t, "another cluster", "u1", ids(b.tombstones("c2")))
	b.accept(store.Op{Kind: store.Transfer, Key: in("c2", "u1"), Owner: "s2"})
	diff(t, "adopted", "u1", ids(b.tombstones("c2")))
}

func testConfirmedTombstones(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2, u3 := in("c1", "u1"), in("c1", "u2"), in("c2", "u3")
	diff(t, "none", 0, len(b.confirmedTombstones("s1", 1<<63, 10)))
	b.accept(spec(u1, 1), report(u1, 1, 1), spec(u2, 1), deletion(u2, 1), deletion(u1, 1), reportDeleted(u2, 1, 2), reportDeleted(u1, 1, 3))
	b.accept(spec(u3, 1), report(u3, 1, 1), deletion(u3, 1), reportDeleted(u3, 1, 4))
	b.accept(spec(in("c2", "u4"), 1), deletion(in("c2", "u4"), 1)) // no agent subscribed, so no cluster confirmed the deletion
	first := b.get(u2).StatusRevision
	diff(t, "in the order of the confirmations", []store.Key{u2, u1, u3}, b.confirmedTombstones("s1", b.Head().Revision, 10))
	diff(t, "two of them", []store.Key{u2, u1}, b.confirmedTombstones("s1", b.Head().Revision, 2))
	diff(t, "a limit of none is one", []store.Key{u2}, b.confirmedTombstones("s1", b.Head().Revision, 0))
	diff(t, "up to the first", []store.Key{u2}, b.confirmedTombstones("s1", first, 10))
	diff(t, "before the first", 0, len(b.confirmedTombstones("s1", first-1, 10)))
	diff(t, "of another owner", 0, len(b.confirmedTombstones("s2", 1<<63, 10)))
	b.close()
	b = open(t, site)
	diff(t, "reopened", []store.Key{u2, u1, u3}, b.confirmedTombstones("s1", b.Head().Revision, 10))
	b.accept(
		store.Op{Kind: store.CollectTombstone, Key: u2, Owner: "s1"}, spec(u1, 1),
		store.Op{Kind: store.Transfer, Key: u3, Owner: "s2"},
	)
	diff(t, "acked, born again and adopted", 0, len(b.confirmedTombstones("s1", 1<<63, 10)))
	diff(t, "of the adopter", []store.Key{u3}, b.confirmedTombstones("s2", 1<<63, 10))
}

func testDigests(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2, a1 := in("c1", "u1"), in("c1", "u2"), in("c1-a", "u1")
	now := func(owner string) []codec.ClusterDigest { return b.Digests(codec.ManifestBundles, owner) }
	on := func(cluster string, ops ...store.Op) codec.ClusterDigest {
		return codec.ClusterDigest{Cluster: cluster, Digest: digestOf(ops...)}
	}
	diff(t, "nothing", 0, len(now("s1")))
	b.accept(spec(a1, 1), spec(u1, 1), byOwner("s2", spec(u2, 1)))
	diff(t, "two clusters", []codec.ClusterDigest{on("c1", spec(u1, 1)), on("c1-a", spec(a1, 1))}, now("s1"))
	diff(t, "another owner", []codec.ClusterDigest{on("c1", spec(u2, 1))}, now("s2"))
	b.accept(deletion(u1, 1), spec(a1, 2))
	want := []codec.ClusterDigest{on("c1"), on("c1-a", spec(a1, 2))}
	diff(t, "a cluster with a tombstone only", want, now("s1"))
	waits := spec(in("c1", "u3"), 1)
	waits.Name = spec(u1, 1).Name
	b.accept(waits)
	diff(t, "and what waits behind it", []codec.ClusterDigest{on("c1", waits), want[1]}, now("s1"))
	diff(t, "which the cluster has not", digestOf(spec(u2, 1)), b.ClusterHead(codec.ManifestBundles, "c1").Digest)
	b.accept(store.Op{Kind: store.Drop, Key: waits.Key, Owner: "s1"})
	b.close()
	b = open(t, site)
	diff(t, "reopened", want, now("s1"))
	b.accept(reportDeleted(u1, 1, 1))
	diff(t, "a cluster with only a confirmed tombstone", want[1:], now("s1"))
	b.accept(store.Op{Kind: store.Transfer, Key: u2, Owner: "s1"})
	diff(t, "adopted", []codec.ClusterDigest{on("c1", spec(u2, 1)), want[1]}, now("s1"))
	diff(t, "nothing is left", 0, len(now("s2")))
	diff(t, "another type", 0, len(b.Digests(otherType, "s1")))
}

func (b *bench) setBookmarks(pairs ...string) {
	b.t.Helper()
	set := make(map[string][]byte)
	for pair := range slices.Chunk(pairs, 2) {
		set[pair[0]] = []byte(pair[1])
	}
	if err := store.WriteBookmarks(b.context(), b, set); err != nil {
		b.t.Fatalf("set bookmarks: %v", err)
	}
}

func testBookmarks(t *testing.T, site Site) {
	b := open(t, site)
	diff(t, "none", 0, len(b.Bookmarks("")))
	b.setBookmarks("hub/s1", "a", "hub/s10", "b", "hub", "c", "other/s1", "", "hub/\xff\xff", "d")
	b.setBookmarks()
	all := map[string][]byte{"hub/s1": []byte("a"), "hub/s10": []byte("b"), "hub": []byte("c"), "other/s1": {}, "hub/\xff\xff": []byte("d")}
	diff(t, "all", all, b.Bookmarks(""))
	if b.Bookmarks("other/s1")["other/s1"] == nil {
		t.Error("an empty value is no value")
	}
	diff(t, "one", map[string][]byte{"hub/\xff\xff": []byte("d")}, b.Bookmarks("hub/\xff\xff"))
	diff(t, "no name starts so", 0, len(b.Bookmarks("hub/s2")))
	diff(t, "or so", 0, len(b.Bookmarks("z")))
	value := []byte("mine")
	if err := store.WriteBookmarks(b.context(), b, map[string][]byte{"hub/s1": value, "other/s1": nil, "never": nil}); err != nil {
		t.Fatal(err)
	}
	value[0] = 'X'
	all["hub/s1"] = []byte("mine")
	delete(all, "other/s1")
	diff(t, "changed and removed", all, b.Bookmarks(""))
	got := b.Bookmarks("hub/s1")
	got["hub/s1"][0] = 'Y'
	delete(got, "hub/s10")
	diff(t, "the caller's copy is its own", all, b.Bookmarks(""))
	b.close()
	b = open(t, site)
	diff(t, "reopened", all, b.Bookmarks(""))
	diff(t, "revisions", uint64(7), b.Head().Revision)
	b.setBookmarks("a", "1")
	all["a"] = []byte("1")
	diff(t, "more", all, b.Bookmarks(""))
}

// testBookmarksRefused: a bookmark that cannot be stored does not affect the others.
func testBookmarksRefused(t *testing.T, site Site) {
	b := open(t, site)
	set := func(name string, value []byte) store.Op {
		return store.Op{Kind: store.SetBookmark, Name: name, Value: value}
	}
	value := []byte("v")
	got := b.commit(set("", value), set(strings.Repeat("n", 1025), value), set("a\x00b", value), set("a", make([]byte, store.MaxBookmark+1)),
		set(store.BindingName(codec.ManifestBundles, "c1"), value), set("good", value))
	refused := slices.Repeat([]store.ResultCode{store.Invalid}, 5)
	diff(t, "results", append(refused, store.Accepted), results(got))
	ctx, cancel := context.WithCancel(b.context())
	cancel()
	if err := store.WriteBookmarks(ctx, b, map[string][]byte{"good": {}}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if err := store.WriteBookmarks(b.context(), b, map[string][]byte{"": {}}); err == nil {
		t.Error("without a name: no error")
	}
	diff(t, "bookmarks", map[string][]byte{"good": value}, b.Bookmarks(""))
	b.setBookmarks(strings.Repeat("n", 1024), strings.Repeat("v", store.MaxBookmark))
	diff(t, "the largest one", 1, len(b.Bookmarks("n")))
}

// testBookmarkConditions: a condition is about the bookmark that the earlier ops of the batch left.
func testBookmarkConditions(t *testing.T, site Site) {
	b := open(t, site)
	at := func(revision uint64, value string) store.Op {
		return store.Op{Kind: store.SetBookmark, Name: "a", Value: []byte(value), Conditional: true, IfRevision: revision}
	}
	gone := at(2, "")
	gone.Value = nil
	got := b.commit(at(1, "x"), at(0, "x"), at(0, "y"), at(1, "x"), at(1, "y"), gone, at(2, "z"), at(0, "z"))
	diff(t, "results", []store.ResultCode{
		store.ConditionFailed, store.Accepted, store.ConditionFailed, store.Unchanged, store.Accepted, store.Accepted, store.ConditionFailed, store.Accepted,
	}, results(got))
	var revisions []uint64
	for _, o := range got {
		revisions = append(revisions, o.Revision)
	}
	diff(t, "revisions", []uint64{0, 1, 1, 1, 2, 3, 0, 4}, revisions)
	want := store.Bookmark{Value: []byte("z"), Revision: 4}
	for _, when := range []string{"stored", "reopened"} {
		v, ok := b.Bookmark("a")
		diff(t, when, want, v)
		_, missing := b.Bookmark("b")
		diff(t, when+", found", []bool{true, false}, []bool{ok, missing})
		b.close()
		b = open(t, site)
	}
}

// testBookmarkChanges: bookmarks and bindings are in the one feed, in the order of the revisions, with records.
func testBookmarkChanges(t *testing.T, site Site) {
	b := open(t, site)
	set := func(name, value string) store.Op {
		return store.Op{Kind: store.SetBookmark, Name: name, Value: []byte(value)}
	}
	entry := func(revision uint64, name, value string) store.Change {
		return store.Change{Revision: revision, Key: store.Key{ResourceID: name}, Part: store.BookmarkPart, State: store.Live, Value: []byte(value)}
	}
	b.accept(set("a", "1"), spec(in("c1", "u1"), 1), set("b", "1"), set("a", "2"), set("c", "1"))
	b.bind(codec.ManifestBundles, "c1", "uid")
	want := []store.Change{
		change(2, in("c1", "u1"), store.SpecPart, store.Live), entry(3, "b", "1"), entry(4, "a", "2"), entry(5, "c", "1"),
		entry(6, store.BindingName(codec.ManifestBundles, "c1"), "uid"),
	}
	diff(t, "feed", want, b.changes(0, 10))
	b.accept(store.Op{Kind: store.SetBookmark, Name: "c"})
	removed := store.Change{Revision: 7, Key: store.Key{ResourceID: "c"}, Part: store.BookmarkPart, Gone: true}
	diff(t, "removed", []store.Change{removed}, b.changes(6, 10))
	b.unbind(codec.ManifestBundles)
	diff(t, "unbound", []store.Change{{Revision: 8, Key: store.Key{ResourceID: want[4].Key.ResourceID}, Part: store.BookmarkPart, Gone: true}}, b.changes(7, 10))
	b.close()
	b = open(t, site)
	isRemoval := func(c store.Change) bool { return c.Gone } // those of other processes may still be there
	diff(t, "reopened", want[:3], slices.DeleteFunc(b.changes(0, 10), isRemoval))
}
