package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
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
		change(4, u1, store.SpecPart, store.Live),
		change(5, u1, store.StatusPart, store.Live),
		change(6, u2, store.SpecPart, store.Tombstone),
	}
	diff(t, "all", want, b.changes(0, 100))
	diff(t, "the first two", want[:2], b.changes(0, 2))
	diff(t, "a limit of none is one", want[:1], b.changes(0, 0))
	diff(t, "after 4", want[1:], b.changes(4, 100))
	diff(t, "after 5", want[2:], b.changes(5, 100))
	b.accept(reportDeleted(u2, 1, 1))
	want[2] = change(7, u2, store.StatusPart, store.ConfirmedTombstone)
	diff(t, "with a confirmed tombstone", want, b.changes(0, 100))
	b.accept(spec(u2, 1))
	want[2] = change(8, u2, store.SpecPart, store.Live)
	diff(t, "created again", want, b.changes(0, 100))
	b.close()

	b = open(t, site)
	diff(t, "after reopening", want, b.changes(0, 100))
	b.accept(spec(u1, 3))
	diff(t, "after reopening, and more", []store.Change{want[1], want[2], change(9, u1, store.SpecPart, store.Live)}, b.changes(0, 100))
	diff(t, "from before the opening", []store.Change{want[2], change(9, u1, store.SpecPart, store.Live)}, b.changes(6, 100))
}

// testChangesGone: a reader that keeps up is sent the removals.
func testChangesGone(t *testing.T, site Site) {
	b := open(t, site)
	b.bookmark()
	u1, u2, u3 := in("c1", "u1"), in("c1", "u2"), in("c1", "u3")
	b.accept(spec(u1, 1), report(u1, 1, 1), spec(u2, 1))
	at := b.Head().Revision
	b.accept(store.Op{Kind: store.Drop, Key: u1, Owner: "s1"})
	diff(t, "dropped", []store.Change{change(4, u1, store.SpecPart, 0), change(5, u1, store.StatusPart, 0)}, b.changes(at, 10))
	replacing := spec(u3, 1)
	replacing.Name = "work-u2"
	b.accept(replacing)
	diff(t, "replaced", []store.Change{change(6, u2, store.SpecPart, 0), change(7, u3, store.SpecPart, store.Live)}, b.changes(5, 10))
	b.accept(deletion(u3, 1), reportDeleted(u3, 1, 1), store.Op{Kind: store.CollectTombstone, Key: u3, Owner: "s1"})
	diff(t, "acked", []store.Change{change(10, u3, store.StatusPart, 0)}, b.changes(9, 10))
	b.accept(spec(u1, 1))
	for _, c := range b.changes(0, 10) {
		if c.Gone && c.Key == u1 && c.Part == store.SpecPart {
			t.Errorf("%+v, but it is there again", c)
		}
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
