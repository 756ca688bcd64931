package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// testReopen: after a reopening, all acknowledged records exist, and all indexes find them.
func testReopen(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2, u3 := in("c1", "u1"), in("c1", "u2"), in("c1", "u3")
	waits := spec(u2, 1)
	waits.Name = "work-u1"
	b.accept(spec(u1, 1), report(u1, 1, 1), spec(u3, 1), deletion(u1, 1), waits)
	records, head := b.records(), b.Head().Revision
	b.close()

	b = open(t, site)
	diff(t, "records", records, b.records())
	diff(t, "head", head, b.Head().Revision)
	taken := byOwner("s2", spec(in("c1", "u4"), 1))
	taken.Name = "work-u3"
	diff(t, "names and what waits are known", []store.ResultCode{store.NameConflict, store.Unchanged, store.Confirmed}, results(b.commit(taken, waits, reportDeleted(u1, 1, 2))))
	diff(t, "what waited", waits.Event, b.get(u2).Spec)
	diff(t, "revisions go on", head+2, b.Head().Revision)
}

// testTakeOver: a queued spec replaces the tombstone, once, and durably.
func testTakeOver(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2 := in("c1", "u1"), in("c1", "u2")
	waits := spec(u2, 1)
	waits.Name = "work-u1"
	b.accept(spec(u1, 1), report(u1, 1, 1))
	deleted := b.commit(deletion(u1, 1))[0]
	diff(t, "what the deletion replaced", store.Outcome{Result: store.Accepted, Revision: 4, Head: 4, Owner: "s1", Replaced: 2}, deleted)
	over := store.Op{Kind: store.TakeOver, Key: u1, IfRevision: 4, At: Noon}
	diff(t, "nothing waits", []store.ResultCode{store.Ignored}, results(b.commit(over)))
	b.accept(waits)
	stale := over
	stale.IfRevision = 1
	diff(t, "of another revision, of this one, again", []store.ResultCode{store.Ignored, store.Confirmed, store.Ignored}, results(b.commit(stale, over, over)))
	diff(t, "what waited", waits.Event, b.get(u2).Spec)
	diff(t, "digest", []codec.ClusterDigest{{Cluster: "c1", Digest: codec.Digest{Count: 1, Sum: codec.RecordHash("u2", waits.Tag)}}}, b.Digests(codec.ManifestBundles, "s1"))
	confirmedTombstones, err := b.ConfirmedTombstones(b.context(), codec.ManifestBundles, "s1", b.Head().Revision, 9)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "confirmed tombstones", []store.Key{u1}, confirmedTombstones)
	records := b.records()
	b.close()
	b = open(t, site)
	diff(t, "records", records, b.records())
}

func testClose(t *testing.T, site Site) {
	b := open(t, site)
	b.accept(spec(in("c1", "u1"), 1))
	waiting := make(chan error, 1)
	go func() {
		_, err := b.Changes(b.context(), 1, 1)
		waiting <- err
	}()
	b.close()
	ctx := b.context()
	_, commit := b.Commit(ctx, []store.Op{spec(in("c1", "u1"), 2)})
	_, get := b.Get(ctx, in("c1", "u1"))
	_, changes := b.Changes(ctx, 0, 1)
	_, confirmedTombstones := b.ConfirmedTombstones(ctx, codec.ManifestBundles, "s1", 1, 1)
	for what, err := range map[string]error{
		"changes that waited":  <-waiting,
		"commit":               commit,
		"get":                  get,
		"changes":              changes,
		"scan":                 b.Scan(ctx, store.Scope{DataType: codec.ManifestBundles}, func(store.Meta) error { return nil }),
		"since":                b.Since(ctx, store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, store.SpecPart, 0, func(store.Meta) error { return nil }),
		"tombstones":           b.Tombstones(ctx, codec.ManifestBundles, "c1", func(store.Meta) error { return nil }),
		"confirmed tombstones": confirmedTombstones,
		"write bookmarks":      store.WriteBookmarks(ctx, b, map[string][]byte{"a": {}}),
		"close":                b.Close(),
	} {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s: %v, want %v", what, err, store.ErrClosed)
		}
	}
}

// testCloseWaits: Close waits for the running scan.
func testCloseWaits(t *testing.T, site Site) {
	b := open(t, site)
	b.accept(spec(in("c1", "u1"), 1), spec(in("c1", "u2"), 1))
	closed := make(chan error, 1)
	n := 0
	err := b.Scan(b.context(), store.Scope{DataType: codec.ManifestBundles}, func(store.Meta) error {
		if n++; n > 1 {
			return nil
		}
		go func() { closed <- b.Close() }()
		// A store that is being closed rejects new calls.
		ctx := b.context()
		for err := error(nil); !errors.Is(err, store.ErrClosed); {
			if _, err = b.Get(ctx, in("c1", "u1")); ctx.Err() != nil {
				t.Fatal("a store that is being closed takes calls")
			}
		}
		select {
		case err := <-closed:
			t.Errorf("close returned %v in the middle of a scan", err)
			closed <- err
		default:
		}
		return nil
	})
	if err != nil || n != 2 {
		t.Errorf("scan during a close: %v after %d records", err, n)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
}

// testConcurrent runs committers and readers concurrently. A follower of the feed ends with the content of the
// store, and never gets a revision twice or too late.
func testConcurrent(t *testing.T, site Site) {
	const writers, rounds, works = 4, 40, 5
	const last = 1 + writers*rounds*works
	b := open(t, site)
	b.bookmark()
	ctx, stop := context.WithCancel(b.context())
	defer stop()
	var writing, reading sync.WaitGroup
	fail := func(err error) {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for w := range writers {
		writing.Go(func() { fail(churn(ctx, b.Store, w, rounds, works)) })
	}
	for range 2 {
		reading.Go(func() { fail(watchScans(ctx, b.Store)) })
	}
	final := make(chan map[store.Key]uint64, 1)
	reading.Go(func() {
		seen, err := follow(ctx, b.Store, uint64(last))
		fail(err)
		final <- seen
	})
	writing.Wait()
	seen := <-final
	stop()
	reading.Wait()
	diff(t, "head", uint64(last), b.Head().Revision)
	for _, m := range b.scan(store.Scope{DataType: codec.ManifestBundles}) {
		if seen[m.Key] != m.SpecRevision {
			t.Errorf("%v: the follower saw revision %d, the store has %d", m.Key, seen[m.Key], m.SpecRevision)
		}
	}
}

// churn writes its own works, one batch per round. Each commit must be visible at once.
func churn(ctx context.Context, s store.Store, writer, rounds, works int) error {
	for round := range rounds {
		var ops []store.Op
		for i := range works {
			ops = append(ops, spec(in("c1", fmt.Sprintf("w%d-%d", writer, i)), int64(round+1)))
		}
		out, err := s.Commit(ctx, ops)
		if err != nil {
			return err
		}
		for i, o := range out {
			r, err := s.Get(ctx, ops[i].Key)
			if err != nil {
				return err
			}
			if o.Result != store.Accepted || r.SpecRevision != o.Revision || string(r.Spec) != string(ops[i].Event) {
				return fmt.Errorf("%v: committed %+v, found revision %d with %q", ops[i].Key, o, r.SpecRevision, r.Spec)
			}
		}
	}
	return nil
}

// watchScans: each scan returns whole batches only: all works of a writer have the same version.
func watchScans(ctx context.Context, s store.Store) error {
	for ctx.Err() == nil {
		versions := make(map[string]int64)
		err := s.Scan(ctx, store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, func(m store.Meta) error {
			writer := m.ResourceID[:2]
			if v, ok := versions[writer]; ok && v != m.Version {
				return fmt.Errorf("a scan shows half a batch: versions %d and %d", v, m.Version)
			}
			versions[writer] = m.Version
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// follow reads the feed up to revision last.
func follow(ctx context.Context, s store.Store, last uint64) (map[store.Key]uint64, error) {
	seen := make(map[store.Key]uint64)
	for after := uint64(0); after < last; {
		changes, err := s.Changes(ctx, after, 7)
		if err != nil {
			return seen, err
		}
		for _, c := range changes {
			if c.Revision <= after {
				return seen, fmt.Errorf("revision %d after %d", c.Revision, after)
			}
			after = c.Revision
			if c.Part == store.BookmarkPart {
				continue
			}
			seen[c.Key] = c.Revision
			r, err := s.Get(ctx, c.Key)
			if err != nil {
				return seen, err
			}
			if r.SpecRevision < c.Revision {
				return seen, fmt.Errorf("%v: the feed has revision %d, the store %d", c.Key, c.Revision, r.SpecRevision)
			}
		}
	}
	return seen, nil
}

// testRandom compares the engine with the model under random batches and reopenings.
func testRandom(t *testing.T, newSite func() Site) {
	rapid.Check(t, func(rt *rapid.T) {
		site := newSite()
		b := open(t, site)
		l := NewModel()
		clusters := []string{"c1", "c2"}
		for range rapid.IntRange(1, 12).Draw(rt, "batches") {
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0:
				b.bookmark()
				if err := Bind(b.context(), Committer{l}, codec.ManifestBundles, "c1", ""); err != nil {
					rt.Fatal(err)
				}
			case 1:
				b.unbind(codec.ManifestBundles)
				if err := Unbind(b.context(), Committer{l}, codec.ManifestBundles, "c1"); err != nil {
					rt.Fatal(err)
				}
			case 2:
				b.close()
				b = open(t, site)
				l.Reopen()
			case 3:
				set := drawBookmarks(rt)
				writeBoth(rt, b, l, set)
			default:
				commitBoth(rt, b, l, clusters)
			}
		}
		compare(rt, b, l, clusters)
		b.close()
		b = open(t, site)
		compare(rt, b, l, clusters)
		b.close()
	})
}

// drawBookmarks draws bookmarks to set and, with nil values, to remove. Some names are prefixes of others.
func drawBookmarks(t *rapid.T) map[string][]byte {
	return rapid.MapOf(rapid.StringMatching(`[ab]{1,3}`), rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOf(rapid.Byte()))).Draw(t, "bookmarks")
}

// writeBoth writes bookmarks.
func writeBoth(t *rapid.T, b *bench, l *Model, set map[string][]byte) {
	for _, to := range []store.Committer{b, Committer{l}} {
		if err := store.WriteBookmarks(b.context(), to, set); err != nil {
			t.Fatal(err)
		}
	}
}

func commitBoth(t *rapid.T, b *bench, l *Model, clusters []string) {
	var ops []store.Op
	var want []store.Outcome
	for range rapid.IntRange(1, 8).Draw(t, "ops") {
		op := Draw(t, clusters, func(k store.Key) uint64 { e, _ := l.Get(k); return e.SpecRevision })
		drawQuota(t, &op)
		s, err := l.Apply(op)
		if err != nil {
			t.Fatal(err)
		}
		ops, want = append(ops, op), append(want, s.Outcome)
	}
	got, err := b.Commit(b.context(), ops)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(want, got) {
		t.Fatalf("outcomes %+v, want %+v", got, want)
	}
}

func compare(t *rapid.T, b *bench, l *Model, clusters []string) {
	var want []store.Record
	for _, e := range l.Scan(store.Scope{DataType: codec.ManifestBundles}) {
		want = append(want, e.Record)
	}
	check := func(what string, want, got any) {
		if d := delta(want, got); d != "" {
			t.Fatalf("%s (-model +store):\n%s", what, d)
		}
	}
	check("records", want, b.records())
	for _, owner := range []string{"s1", "s2"} {
		var metas []store.Meta
		for _, e := range l.Scan(store.Scope{DataType: codec.ManifestBundles, Owner: owner}) {
			metas = append(metas, e.Meta)
		}
		check("records of "+owner, metas, b.scan(store.Scope{DataType: codec.ManifestBundles, Owner: owner}))
	}
	last := map[string][]byte{"last": fmt.Append(nil, l.Head())} // an entry that is still in the feed after a removal
	writeBoth(t, b, l, last)
	check("head", l.Head(), b.Head().Revision)
	there := func(of []store.Change) []store.Change {
		return slices.DeleteFunc(of, func(c store.Change) bool { return c.Gone })
	}
	check("feed", l.Changes(0), there(b.changes(0, 1000)))
	opened := b.Head().FirstRevision - 1
	check("feed since the opening", l.Changes(opened), there(b.feed(opened, 3)))
	compareScopes(t, b, l, clusters)
}

// compareScopes compares the queries that need no full scan.
func compareScopes(t *rapid.T, b *bench, l *Model, clusters []string) {
	dt := codec.ManifestBundles
	check := func(what string, want, got any) {
		if d := delta(want, got); d != "" {
			t.Fatalf("%s (-model +store):\n%s", what, d)
		}
	}
	after := rapid.Uint64Range(0, l.Head()+1).Draw(t, "after")
	limit := rapid.IntRange(1, 5).Draw(t, "limit")
	for _, c := range clusters {
		want, got := l.ClusterHead(dt, c), b.ClusterHead(dt, c)
		if got.SpecRevision < want.SpecRevision || got.SpecRevision > l.Head() {
			t.Fatalf("revision of %s is %d, its records have %d", c, got.SpecRevision, want.SpecRevision)
		}
		if number(got.Sequence) < number(want.Sequence) {
			t.Fatalf("highest sequence id of %s is %q, its records have %q", c, got.Sequence, want.Sequence)
		}
		got.SpecRevision, got.Sequence = want.SpecRevision, want.Sequence
		check("head of "+c, want, got)
		check("tombstones of "+c, l.Tombstones(dt, c), b.tombstones(c))
		for _, owner := range []string{"", "s1"} {
			s := store.Scope{DataType: dt, Cluster: c, Owner: owner}
			for _, id := range []string{"", "u", "u2", "u3", "v"} {
				var behind []store.Meta
				for _, e := range l.Scan(s) {
					if e.ResourceID > id {
						behind = append(behind, e.Meta)
					}
				}
				check("records of "+c+" "+owner+" behind "+id, behind, b.scanAfter(s, id))
			}
			check("changed specs of "+c+" "+owner, l.Since(s, store.SpecPart, after), b.since(s, store.SpecPart, after))
		}
	}
	compareUse(t, b, l)
	for _, prefix := range []string{"", "a", "ab", "c"} {
		check("bookmarks under "+prefix, l.Bookmarks(prefix), b.Bookmarks(prefix))
	}
	for _, owner := range []string{"s1", "s2"} {
		check("digests of "+owner, l.Digests(dt, owner), b.Digests(dt, owner))
		check("confirmed tombstones of "+owner, l.ConfirmedTombstones(dt, owner, after, limit), b.confirmedTombstones(owner, after, limit))
		for _, c := range []string{"", "c1"} {
			s := store.Scope{DataType: dt, Cluster: c, Owner: owner}
			check("changed statuses of "+owner+" "+c, l.Since(s, store.StatusPart, after), b.since(s, store.StatusPart, after))
		}
	}
}
