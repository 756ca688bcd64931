package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Site is the location of a store, for example a directory or a database.
type Site struct {
	// Open opens the store: a new one at first, later the existing one. At most one is open at a time.
	Open func() (store.Store, error)
	// Copy copies the closed store as a backup, to a new site.
	Copy func() Site
}

// patience limits each wait of the suite.
const patience = 30 * time.Second

// Run checks an engine against the contract of [store.Store]. newSite returns an empty site each time.
func Run(t *testing.T, newSite func(t *testing.T) Site) {
	t.Helper()
	for _, c := range []struct {
		name string
		f    func(*testing.T, Site)
	}{
		{"Commit", testCommit},
		{"CommitCancelled", testCommitCancelled},
		{"Get", testGet},
		{"Scan", testScan},
		{"ScanSnapshot", testScanSnapshot},
		{"ScanStops", testScanStops},
		{"Changes", testChanges},
		{"ChangesGone", testChangesGone},
		{"RemovalsStay", testRemovalsStay},
		{"ChangesWaits", testChangesWaits},
		{"ClusterHead", testClusterHead},
		{"Failing", testFailing},
		{"Unanswered", testUnanswered},
		{"Clusters", testClusters},
		{"Since", testSince},
		{"SinceSnapshot", testSinceSnapshot},
		{"SinceStops", testSinceStops},
		{"SinceRefuses", testSinceRefuses},
		{"Tombstones", testTombstones},
		{"ConfirmedTombstones", testConfirmedTombstones},
		{"Digests", testDigests},
		{"Bookmarks", testBookmarks},
		{"BookmarksRefused", testBookmarksRefused},
		{"Head", testHead},
		{"ValidCursor", testValidCursor},
		{"RolledBack", testRolledBack},
		{"TermsAreBounded", testIncarnationsAreBounded},
		{"BookmarkConditions", testBookmarkConditions},
		{"BookmarkChanges", testBookmarkChanges},
		{"Subscribed", testSubscribed},
		{"SubscribedDecides", testSubscribedDecides},
		{"Reopen", testReopen},
		{"TakeOver", testTakeOver},
		{"Close", testClose},
		{"CloseWaits", testCloseWaits},
		{"Concurrent", testConcurrent},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.f(t, newSite(t))
		})
	}
	t.Run("Random", func(t *testing.T) {
		t.Parallel()
		testRandom(t, func() Site { return newSite(t) })
	})
}

// otherType is a second data type, whose records the store keeps apart.
var otherType = codec.DataType{Group: "example.com", Version: "v1", Resource: "things"}

// bench is an open store. Its helpers fail the test instead of returning an error.
type bench struct {
	store.Store
	t *testing.T
}

func open(t *testing.T, s Site) *bench {
	t.Helper()
	st, err := s.Open()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	b := &bench{Store: st, t: t}
	t.Cleanup(func() {
		if err := st.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func (b *bench) close() {
	b.t.Helper()
	if err := b.Close(); err != nil {
		b.t.Fatalf("close: %v", err)
	}
}

// context returns a context that ends after patience.
func (b *bench) context() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	b.t.Cleanup(cancel)
	return ctx
}

// commit commits one batch and returns its outcomes.
func (b *bench) commit(ops ...store.Op) []store.Outcome {
	b.t.Helper()
	out, err := b.Commit(b.context(), ops)
	if err != nil {
		b.t.Fatalf("commit: %v", err)
	}
	if len(out) != len(ops) {
		b.t.Fatalf("%d outcomes for %d ops", len(out), len(ops))
	}
	return out
}

// accept commits ops one by one. Each must write.
func (b *bench) accept(ops ...store.Op) {
	b.t.Helper()
	for _, op := range ops {
		switch o := b.commit(op)[0]; o.Result {
		case store.Accepted, store.Confirmed, store.Queued:
		default:
			b.t.Fatalf("%+v was not accepted: %+v", op, o)
		}
	}
}

func (b *bench) get(k store.Key) store.Record {
	b.t.Helper()
	r, err := b.Get(b.context(), k)
	if err != nil {
		b.t.Fatalf("get %v: %v", k, err)
	}
	return r
}

func (b *bench) scan(s store.Scope) []store.Meta {
	b.t.Helper()
	var out []store.Meta
	if err := b.Scan(b.context(), s, func(m store.Meta) error { out = append(out, m); return nil }); err != nil {
		b.t.Fatalf("scan: %v", err)
	}
	return out
}

func (b *bench) scanAfter(s store.Scope, id string) (out []store.Meta) {
	b.t.Helper()
	if err := b.ScanAfter(b.context(), s, id, func(m store.Meta) error { out = append(out, m); return nil }); err != nil {
		b.t.Fatalf("scan after %q: %v", id, err)
	}
	return out
}

func (b *bench) changes(after uint64, limit int) []store.Change {
	b.t.Helper()
	out, err := b.Changes(b.context(), after, limit)
	if err != nil {
		b.t.Fatalf("changes: %v", err)
	}
	for i := range out {
		out[i].LastSpec = 0 // it depends on what the engine has in memory
	}
	return out
}

// feed reads the feed above after, page by page, up to the head. The last change of the store must be in the feed.
func (b *bench) feed(after uint64, page int) []store.Change {
	b.t.Helper()
	var out []store.Change
	for after < b.Head().Revision {
		next := b.changes(after, page)
		if len(next) == 0 || len(next) > page {
			b.t.Fatalf("a page of %d has %d changes", page, len(next))
		}
		out = append(out, next...)
		after = next[len(next)-1].Revision
	}
	return out
}

// records reads all records with Scan and Get.
func (b *bench) records() []store.Record {
	b.t.Helper()
	var out []store.Record
	for _, dt := range []codec.DataType{codec.ManifestBundles, otherType} {
		for _, m := range b.scan(store.Scope{DataType: dt}) {
			r := b.get(m.Key)
			if d := cmp.Diff(m, r.Meta); d != "" {
				b.t.Fatalf("scan and get differ (-scan +get):\n%s", d)
			}
			out = append(out, r)
		}
	}
	return out
}

// bookmark marks cluster c1, which most tests use, as subscribed.
func (b *bench) bookmark() {
	b.t.Helper()
	b.bind(codec.ManifestBundles, "c1", "")
}

func (b *bench) bind(dt codec.DataType, cluster, uid string) {
	b.t.Helper()
	if err := Bind(b.context(), b, dt, cluster, uid); err != nil {
		b.t.Fatal(err)
	}
}

// unbind removes the binding of cluster c1.
func (b *bench) unbind(dt codec.DataType) {
	b.t.Helper()
	if err := Unbind(b.context(), b, dt, "c1"); err != nil {
		b.t.Fatal(err)
	}
}

func delta(want, got any) string { return cmp.Diff(want, got, cmpopts.EquateEmpty()) }

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := delta(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func in(cluster, id string) store.Key {
	return store.Key{DataType: codec.ManifestBundles, Cluster: cluster, ResourceID: id}
}

// spec returns a create_request of s1 for a work that is named after its id.
func spec(k store.Key, version int64) store.Op {
	content := fmt.Sprintf("%s v%d", k.ResourceID, version)
	return store.Op{
		Kind: store.PutSpec, Key: k, Owner: "s1", Name: "work-" + k.ResourceID, Action: codec.CreateRequest,
		Version: version, Tag: codec.TagOf(false, version, content, nil), Event: []byte(content), At: Noon,
	}
}

func deletion(k store.Key, version int64) store.Op {
	o := spec(k, version)
	o.Action, o.Deleting, o.DeletedAt, o.Event = codec.DeleteRequest, true, Noon.Add(time.Minute), nil
	o.Tag = codec.TagOf(true, version, o.Name, nil)
	return o
}

func report(k store.Key, version, sequence int64) store.Op {
	return store.Op{
		Kind: store.PutStatus, Key: k, Version: version, Sequence: Sequence(sequence), StatusHash: "hash",
		Event: fmt.Appendf(nil, "status of v%d", version), At: Noon,
	}
}

func reportDeleted(k store.Key, version, sequence int64) store.Op {
	o := report(k, version, sequence)
	o.Deleted = true
	return o
}

func byOwner(owner string, o store.Op) store.Op {
	o.Owner = owner
	return o
}
