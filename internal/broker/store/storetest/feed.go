package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

func change(revision uint64, k store.Key, part store.Part, state store.State) store.Change {
	return store.Change{Revision: revision, Key: k, Owner: "s1", Part: part, State: state, Gone: state == 0}
}

// testChanges checks the order of revisions, one entry per part, limits, and any start.
func testChanges(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2 := in("c1", "u1"), in("c1", "u2")
	b.accept(spec(u1, 1), spec(u2, 1), report(u1, 1, 1), spec(u1, 2), report(u1, 2, 2), deletion(u2, 1))
	want := []store.Change{
		{Revision: 1, Key: store.Key{ResourceID: store.BindingName(codec.ManifestBundles, "c1")}, Part: store.BookmarkPart, State: store.Live, Value: []byte{}},
		change(5, u1, store.SpecPart, store.Live),
		change(6, u1, store.StatusPart, store.Live),
		change(7, u2, store.SpecPart, store.Tombstone),
	}
	diff(t, "all", want, b.changes(0, 100))
	diff(t, "the first two", want[:2], b.changes(0, 2))
	diff(t, "a limit of none is one", want[:1], b.changes(0, 0))
	diff(t, "after 5", want[2:], b.changes(5, 100))
	diff(t, "after 6", want[3:], b.changes(6, 100))
	b.accept(reportDeleted(u2, 1, 1))
	want[3] = change(8, u2, store.StatusPart, store.ConfirmedTombstone)
	diff(t, "with a confirmed tombstone", want, b.changes(0, 100))
	b.accept(spec(u2, 1))
	want[3] = change(9, u2, store.SpecPart, store.Live)
	diff(t, "created again", want, b.changes(0, 100))
	b.close()

	b = open(t, site)
	diff(t, "after reopening", want, b.changes(0, 100))
	b.accept(spec(u1, 3))
	diff(t, "after reopening, and more", []store.Change{want[0], want[2], want[3], change(10, u1, store.SpecPart, store.Live)}, b.changes(0, 100))
	diff(t, "from the opening", []store.Change{change(10, u1, store.SpecPart, store.Live)}, b.changes(9, 100))
}

// testChangesGone: a reader that keeps up is sent the removals.
func testChangesGone(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2, u3 := in("c1", "u1"), in("c1", "u2"), in("c1", "u3")
	b.accept(spec(u1, 1), report(u1, 1, 1), spec(u2, 1))
	at := b.Head().Revision
	b.accept(store.Op{Kind: store.Drop, Key: u1, Owner: "s1"})
	diff(t, "dropped", []store.Change{change(5, u1, store.SpecPart, 0), change(6, u1, store.StatusPart, 0)}, b.changes(at, 10))
	replacing := spec(u3, 1)
	replacing.Name = "work-u2"
	b.accept(replacing)
	diff(t, "replaced", []store.Change{change(7, u2, store.SpecPart, 0), change(8, u3, store.SpecPart, store.Live)}, b.changes(6, 10))
	b.accept(deletion(u3, 1), reportDeleted(u3, 1, 1), store.Op{Kind: store.CollectTombstone, Key: u3, Owner: "s1"})
	diff(t, "acked", []store.Change{change(11, u3, store.StatusPart, 0)}, b.changes(10, 10))
	b.accept(spec(u1, 1))
	for _, c := range b.changes(0, 10) {
		if c.Gone && c.Key == u1 && c.Part == store.SpecPart {
			t.Errorf("%+v, but it is there again", c)
		}
	}
}

// testRemovalsStay: a reader that lags gets all removals, until it has passed them. A reader that needs dropped ones
// gets an error.
func testRemovalsStay(t *testing.T, site Site) {
	b := open(t, site)
	var create, drop, later []store.Op
	for i := range 1200 {
		k := in("c1", fmt.Sprintf("u%04d", i))
		create, drop = append(create, spec(k, 1)), append(drop, store.Op{Kind: store.Drop, Key: k})
	}
	for i := range 5000 { // more than an engine keeps in memory
		later = append(later, spec(in("c2", fmt.Sprintf("u%04d", i)), 1))
	}
	kept := store.Op{Kind: store.SetBookmark, Name: "b", Value: []byte("v")}
	b.commit(append(create, kept)...)
	at := b.Head().Revision
	kept.Value = nil
	b.commit(append(drop, kept)...)
	b.commit(later...)
	var want []store.Change
	for i := range drop {
		want = append(want, change(at+uint64(i)+1, drop[i].Key, store.SpecPart, 0))
	}
	want = append(want, store.Change{Revision: at + 1201, Key: store.Key{ResourceID: "b"}, Part: store.BookmarkPart, Gone: true})
	removed := func(after uint64) (out []store.Change) {
		for len(out) < len(want) {
			page := b.changes(after, 500)
			out, after = append(out, page...), page[len(page)-1].Revision
		}
		return out[:len(want)]
	}
	diff(t, "removals", want, removed(at))
	b.Passed(at + 100)
	b.accept(spec(in("c2", "next"), 1))
	diff(t, "those that were not passed", want[100:], removed(at + 100)[:1101])
	b.Passed(at + 1201)
	b.compacts(at + 1000)
	diff(t, "behind them", at+1202, b.changes(at+1201, 1)[0].Revision)
	if r := b.changes(0, 1)[0].Revision; r <= at+1000 { // an engine may keep the last ones
		t.Errorf("from the beginning: revision %d", r)
	}
	b.close()
	b = open(t, site)
	b.compacts(at)
}

// compacts commits until a reader at a revision gets the error that removals are missing.
func (b *bench) compacts(at uint64) {
	b.t.Helper()
	for n, ctx := int64(1), b.context(); ; n++ {
		_, err := b.Changes(ctx, at, 1)
		switch {
		case errors.Is(err, store.ErrCompacted):
			return
		case err != nil:
			b.t.Fatalf("a reader from before the dropped removals: %v", err)
		}
		b.accept(spec(in("c3", "again"), n))
	}
}

// testChangesWaits: a reader at the head waits for a commit, or for its context.
func testChangesWaits(t *testing.T, site Site) {
	b := open(t, site)
	b.accept(spec(in("c1", "u1"), 1))
	type result struct {
		changes []store.Change
		err     error
	}
	follow := func(ctx context.Context) chan result {
		out := make(chan result, 1)
		go func() {
			c, err := b.Changes(ctx, 1, 10)
			out <- result{c, err}
		}()
		return out
	}
	ctx, cancel := context.WithCancel(b.context())
	first, second, stopped := follow(b.context()), follow(b.context()), follow(ctx)
	cancel()
	if r := <-stopped; !errors.Is(r.err, context.Canceled) || r.changes != nil {
		t.Errorf("reader whose context ended: %+v", r)
	}
	b.commit(store.Op{Kind: store.PutSpec}) // writes nothing and does not wake the reader for good
	select {
	case r := <-first:
		t.Fatalf("reader at the head returned %+v", r)
	default:
	}
	b.accept(spec(in("c1", "u2"), 1))
	want := []store.Change{change(2, in("c1", "u2"), store.SpecPart, store.Live)}
	for _, c := range []chan result{first, second} {
		r := <-c
		if r.err != nil {
			t.Fatal(r.err)
		}
		diff(t, "changes", want, r.changes)
	}
}
