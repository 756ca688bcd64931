package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

func results(out []store.Outcome) []store.ResultCode {
	var v []store.ResultCode
	for _, o := range out {
		v = append(v, o.Result)
	}
	return v
}

// testCommit: an op sees the effects of earlier ops in its batch, also through names and queued specs.
func testCommit(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2 := in("c1", "u1"), in("c1", "u2")
	second := spec(u2, 1)
	second.Name = "work-u1"
	out := b.commit(
		spec(u1, 1),
		spec(u1, 1),
		spec(u1, 2),
		store.Op{Kind: store.PutSpec},
		report(u1, 2, 1),
		byOwner("s2", second),
		deletion(u1, 2),
		second,
		spec(u2, 0), // a queued spec must not change its name
		reportDeleted(u1, 2, 2),
		report(u2, 1, 1),
	)
	diff(t, "results", []store.ResultCode{
		store.Accepted, store.Unchanged, store.Accepted, store.Invalid, store.Accepted, store.NameConflict,
		store.Accepted, store.Queued, store.NameConflict, store.Confirmed, store.Accepted,
	}, results(out))
	diff(t, "head", uint64(8), b.Head().Revision)
	r := b.get(u2)
	diff(t, "what waited", "u2 v1", string(r.Spec))
	diff(t, "its state", store.Live, r.State)
	diff(t, "its revision", uint64(7), r.SpecRevision)
	diff(t, "outcomes of an empty batch", 0, len(b.commit()))
	diff(t, "head after an empty batch", uint64(8), b.Head().Revision)
}

func testCommitCancelled(t *testing.T, site Site) {
	b := open(t, site)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Commit(ctx, []store.Op{spec(in("c1", "u1"), 1)}); !errors.Is(err, context.Canceled) {
		t.Errorf("commit with an ended context: %v", err)
	}
	if _, err := b.Get(t.Context(), in("c1", "u1")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get after it: %v", err)
	}
	diff(t, "outcome of a commit after it", uint64(1), b.commit(spec(in("c1", "u1"), 1))[0].Revision)
}

// testGet: all fields and payloads are returned, in each state.
func testGet(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1 := in("c1", "u1")
	if _, err := b.Get(b.context(), u1); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("get of nothing: %v", err)
	}
	first, last := spec(u1, 5), spec(u1, 3)
	last.Supersedes = 2
	gone := deletion(u1, 4)
	waits := spec(u1, 1)
	waits.Name, waits.Event = "other", []byte("waits")
	meta := store.Meta{Key: u1, State: store.Live, Owner: "s1", Name: "work-u1", Version: 5, Tag: first.Tag, SpecRevision: 2}
	steps := []struct {
		op           store.Op
		change       func()
		spec, status []byte
	}{
		{first, func() {}, first.Event, nil},
		{last, func() {
			meta.Version, meta.Tag, meta.SpecRevision, meta.SpecSupersedes, meta.Superseded = 3, last.Tag, 3, true, 5
		}, last.Event, nil},
		{report(u1, 3, 7), func() {
			meta.StatusRevision, meta.StatusVersion, meta.Sequence, meta.StatusHash = 4, 3, Sequence(7), "hash"
		}, last.Event, []byte("status of v3")},
		{gone, func() {
			meta.State, meta.Version, meta.Tag, meta.SpecRevision, meta.DeletedAt = store.Tombstone, 4, gone.Tag, 5, gone.DeletedAt
		}, last.Event, []byte("status of v3")},
		{waits, func() {
			meta.Queued = &store.QueuedSpec{ResourceID: "u1", Owner: "s1", Name: "other", Version: 1, Tag: waits.Tag}
		}, last.Event, []byte("status of v3")},
		{reportDeleted(u1, 4, 8), func() {
			meta = store.Meta{
				Key: u1, State: store.Live, Owner: "s1", Name: "other", Version: 1, Tag: waits.Tag, SpecRevision: 6,
				Sequence: Sequence(8),
			}
		}, waits.Event, nil},
		{deletion(u1, 1), func() {
			meta.State, meta.Tag, meta.SpecRevision, meta.DeletedAt = store.Tombstone, deletion(u1, 1).Tag, 7, gone.DeletedAt
		}, waits.Event, nil},
		{reportDeleted(u1, 1, 9), func() {
			meta.State, meta.SpecRevision, meta.StatusRevision, meta.StatusVersion = store.ConfirmedTombstone, 8, 8, 1
			meta.Sequence, meta.StatusHash, meta.ConfirmedAt = Sequence(9), "hash", Noon
		}, nil, []byte("status of v1")},
	}
	for i, s := range steps {
		b.accept(s.op)
		s.change()
		meta.Sizes = store.Sizes{Spec: len(s.spec), Status: len(s.status)}
		if meta.Queued != nil {
			meta.Sizes.Queued = len(waits.Event)
		}
		got := b.get(u1)
		diff(t, "record", store.Record{Meta: meta, Spec: s.spec, Status: s.status}, got)
		if !same(got.Spec, s.spec) || !same(got.Status, s.status) {
			t.Errorf("step %d: nil payloads are not nil", i)
		}
	}
	b.accept(store.Op{Kind: store.CollectTombstone, Key: u1, Owner: "s1"})
	if _, err := b.Get(b.context(), u1); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get of a removed record: %v", err)
	}
}

// testScan: scopes select records, in key order.
func testScan(t *testing.T, site Site) {
	b := open(t, site)
	foreign := spec(store.Key{DataType: otherType, Cluster: "c1", ResourceID: "u1"}, 1)
	// One cluster name is a prefix of another, names have bytes next to the separator, and records are not created
	// in key order.
	keys := []store.Key{in("c2", "u1"), in("c1", "u2"), in("c1-a", "u1"), in("c1", "u10"), in("c1", "u1"), in("c1\x01", "u1"), in("c", "u1")}
	for i, k := range keys {
		b.accept(byOwner([]string{"s1", "s1-a"}[i%2], spec(k, 1)))
	}
	b.accept(foreign, deletion(in("c2", "u1"), 1))
	ids := func(s store.Scope) []string {
		var out []string
		for _, m := range b.scan(s) {
			out = append(out, m.Cluster+"/"+m.ResourceID+" "+m.Owner)
		}
		return out
	}
	diff(t, "all", []string{
		"c/u1 s1", "c1/u1 s1", "c1/u10 s1-a", "c1/u2 s1-a", "c1\x01/u1 s1-a", "c1-a/u1 s1", "c2/u1 s1",
	}, ids(store.Scope{DataType: codec.ManifestBundles}))
	diff(t, "a cluster", []string{"c1/u1 s1", "c1/u10 s1-a", "c1/u2 s1-a"}, ids(store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}))
	diff(t, "an owner", []string{"c/u1 s1", "c1/u1 s1", "c1-a/u1 s1", "c2/u1 s1"}, ids(store.Scope{DataType: codec.ManifestBundles, Owner: "s1"}))
	diff(t, "both", []string{"c1/u1 s1"}, ids(store.Scope{DataType: codec.ManifestBundles, Cluster: "c1", Owner: "s1"}))
	diff(t, "another type", []string{"c1/u1 s1"}, ids(store.Scope{DataType: otherType}))
	diff(t, "an unknown cluster", []string{}, ids(store.Scope{DataType: codec.ManifestBundles, Cluster: "c3"}))
	diff(t, "an unknown owner", []string{}, ids(store.Scope{DataType: codec.ManifestBundles, Owner: "s"}))
	b.accept(store.Op{Kind: store.Transfer, Key: in("c1", "u2"), Owner: "s1"}, store.Op{Kind: store.Drop, Key: in("c1", "u1")})
	diff(t, "both, after a change of owner", []string{"c1/u2 s1"}, ids(store.Scope{DataType: codec.ManifestBundles, Cluster: "c1", Owner: "s1"}))
	diff(t, "the former owner", []string{"c1/u10 s1-a"}, ids(store.Scope{DataType: codec.ManifestBundles, Cluster: "c1", Owner: "s1-a"}))
}

// testScanSnapshot: a scan does not see commits made while it runs.
func testScanSnapshot(t *testing.T, site Site) {
	b := open(t, site)
	b.accept(spec(in("c1", "u1"), 1), spec(in("c1", "u3"), 1))
	for _, scope := range []store.Scope{
		{DataType: codec.ManifestBundles}, {DataType: codec.ManifestBundles, Cluster: "c1"}, {DataType: codec.ManifestBundles, Owner: "s1"},
	} {
		head := b.Head().Revision
		n := 0
		err := b.Scan(b.context(), scope, func(m store.Meta) error {
			if n == 0 {
				b.accept(spec(in("c1", "u2"), int64(head)), spec(in("c1", "u3"), int64(head)+1), spec(in("c0", "u1"), int64(head)))
			}
			n++
			if m.SpecRevision > head {
				t.Errorf("%+v: scan shows revision %d, it began at %d", scope, m.SpecRevision, head)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b.accept(store.Op{Kind: store.Drop, Key: in("c1", "u2")}, store.Op{Kind: store.Drop, Key: in("c0", "u1")})
		diff(t, "records seen", 2, n)
	}
}

func testScanStops(t *testing.T, site Site) {
	b := open(t, site)
	b.accept(spec(in("c1", "u1"), 1), spec(in("c1", "u2"), 1))
	enough := errors.New("enough")
	n := 0
	all := store.Scope{DataType: codec.ManifestBundles}
	if err := b.Scan(b.context(), all, func(store.Meta) error { n++; return enough }); !errors.Is(err, enough) || n != 1 {
		t.Errorf("stopped scan: %v after %d", err, n)
	}
	ctx, cancel := context.WithCancel(b.context())
	n = 0
	if err := b.Scan(ctx, all, func(store.Meta) error { n++; cancel(); return nil }); !errors.Is(err, context.Canceled) || n != 1 {
		t.Errorf("scan whose context ends: %v after %d", err, n)
	}
}
