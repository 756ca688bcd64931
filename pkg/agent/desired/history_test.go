package desired_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

func expectOutcome(t *testing.T, s *desired.Set, in spec, want desired.Outcome) {
	t.Helper()
	outcome, w := s.Classify(in.received(), "")
	if got := s.Accept(in.received(), ""); got.Outcome != want || outcome != want {
		t.Fatalf("got %s, judged %s, want %s", got.Outcome, outcome, want)
	}
	if w == nil && want == desired.Accepted || w != nil && want != desired.Accepted && want != desired.Duplicate {
		t.Fatalf("judged %s, and %+v would be held", outcome, w)
	}
	if w != nil && !cmp.Equal(w, s.Get(in.id)) {
		t.Fatalf("judged %+v, holds %+v", w, s.Get(in.id))
	}
}

func TestSet_HistoriesOfRevisions(t *testing.T) {
	const accepted, dup, stale = desired.Accepted, desired.Duplicate, desired.Stale
	s := desired.New()
	s.Subscribed(true)
	expectOutcome(t, s, spec{id: "1", version: 5, revision: 10, content: "a"}, accepted)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 5, revision: 20, content: "a"}, accepted)

	// The cursor is between the two revisions. The first work continues by revisions, also after a rollback of
	// the hub. The second one may have been lost, so its version decides.
	s.Continued(15)
	expectOutcome(t, s, spec{id: "1", version: 3, revision: 9, content: "x"}, stale)
	expectOutcome(t, s, spec{id: "1", version: 3, revision: 16, content: "b"}, accepted)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 4, revision: 21, content: "b"}, stale)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 5, revision: 17, content: "c"}, accepted)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 9, revision: 16, content: "d"}, stale)

	// Another store starts its revisions again. The digest shows that it has the first work in the held version.
	s.Subscribed(true)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 6, revision: 2, content: "e"}, accepted)
	s.Verified(3)
	expectOutcome(t, s, spec{id: "1", version: 9, revision: 3, content: "f"}, stale)
	expectOutcome(t, s, spec{id: "1", version: 2, revision: 4, content: "g"}, accepted)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 1, revision: 3, content: "h"}, accepted)

	// A repeated spec gets the revision of this store.
	s.Subscribed(true)
	expectOutcome(t, s, spec{id: "1", version: 2, revision: 1, content: "g"}, dup)
	expectOutcome(t, s, spec{id: "1", version: 1, revision: 2, content: "i"}, accepted)

	// A digest excludes deletions, so the held deletion may differ from the broker's.
	expectOutcome(t, s, spec{id: "2", name: "b", version: 7, revision: 9, deleting: true}, accepted)
	s.Subscribed(true)
	s.Verified(100)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 8, revision: 2, deleting: true}, accepted)

	// The deletion is finished. The source created the work again while the agent was disconnected.
	s.Continued(1)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 1, revision: 9, content: "i"}, stale)
	s.Finished(s.Get("2"))
	expectOutcome(t, s, spec{id: "2", name: "b", version: 1, revision: 9, content: "i"}, accepted)
	s.Finished(s.Get("2")) // it is about the earlier work
	expectOutcome(t, s, spec{id: "2", name: "b", version: 0, revision: 8, content: "j"}, stale)
}

// Scenario:
//
//	t1: a work is received with revision 30.
//	t2: the broker continues with another store, in which the work is older; it is not sent, because it is
//	unknown yet which of the two is right.
//	t3: the agent has a cursor of that store, beyond 30.
//	t4: it resumes from there, and the source confirms the older one.
//
// Result: its revision is below 30, and of another history.
func TestSet_CursorOfAnotherHistory(t *testing.T) {
	older := spec{id: "1", version: 0, revision: 4, content: "b"}
	s := desired.New()
	s.Subscribed(true)
	expectOutcome(t, s, spec{id: "1", version: 5, revision: 30, content: "a"}, desired.Accepted)
	loaded := desired.New()
	loaded.Load(s.Get("1"))
	s.Subscribed(true)
	for _, s := range []*desired.Set{s, loaded} {
		s.Continued(40)
		expectOutcome(t, s, older, desired.Accepted)
	}
}

// TestSet_ADuplicateHasItsOwnRevision: the source had another spec in between, or the store is another one. A
// repeated event has the same revision.
func TestSet_ADuplicateHasItsOwnRevision(t *testing.T) {
	const dup = desired.Duplicate
	s := desired.New()
	s.Subscribed(true)
	w := func(revision uint64) spec { return spec{id: "1", version: 5, revision: revision, content: "a"} }
	is := func(revision uint64) {
		t.Helper()
		if got := s.Get("1"); got.Revision != revision || s.Digest(nil).Count != 1 || s.ByName(got.Name).Live != got {
			t.Fatalf("holds %+v, want revision %d", got, revision)
		}
	}
	expectOutcome(t, s, w(10), desired.Accepted)
	before := s.Get("1")
	expectOutcome(t, s, w(10), dup)
	is(10)
	expectOutcome(t, s, w(12), dup)
	is(12)
	expectOutcome(t, s, w(11), dup) // the event arrived late
	is(12)
	s.Subscribed(true)
	expectOutcome(t, s, w(12), dup)
	is(12)
	s.Subscribed(true)
	expectOutcome(t, s, w(3), dup)
	is(3)
	s.Subscribed(false)
	expectOutcome(t, s, w(0), dup) // an OCM broker assigns no revision
	is(3)
	if before.Revision != 10 {
		t.Errorf("a work was modified: %+v", before)
	}
}

func TestSet_LoadedWorks(t *testing.T) {
	load := func(s *desired.Set, in spec) (lost string) {
		t.Helper()
		from := desired.New()
		from.Subscribed(true)
		from.Accept(in.received(), "")
		if w := s.Load(from.Get(in.id)); w != nil {
			lost = w.ResourceID
		}
		return lost
	}
	s := desired.New()
	for _, id := range []string{"1", "2", "3"} {
		if lost := load(s, spec{id: id, name: "w" + id, version: 1, revision: 10}); lost != "" {
			t.Fatalf("%s: lost %q", id, lost)
		}
	}
	load(s, spec{id: "4", name: "w4", version: 1, revision: 11, deleting: true})
	if s.Digest(nil).Count != 3 || s.Digest([]string{"1", "4", "9"}).Count != 2 || !s.Unconfirmed("4") {
		t.Fatalf("holds %+v", s.Digest(nil))
	}
	// The list to an OCM broker omits unconfirmed works: otherwise it would not send them.
	s.Subscribed(false)
	if l := s.Versions(); len(l) != 0 {
		t.Errorf("listed %v", l)
	}
	s.Subscribed(true)
	if l := s.Versions(); len(l) != 4 {
		t.Errorf("listed %v", l)
	}
	// A work that is received again is confirmed and must be reconciled.
	d := s.Accept(spec{id: "1", name: "w1", version: 1, revision: 10}.received(), "")
	if want := (desired.AcceptResult{Outcome: desired.Duplicate, Names: []string{"w1"}}); !cmp.Equal(want, d) || s.Unconfirmed("1") {
		t.Fatalf("got %+v", d)
	}
	if got := s.Confirm([]string{"2"}); !slices.Equal(got, []string{"w3"}) || !s.Unconfirmed("2") || s.Unconfirmed("3") || !s.Unconfirmed("4") {
		t.Fatalf("confirmed %v", got)
	}
	if got := s.Confirm(nil); !slices.Equal(got, []string{"w2"}) {
		t.Fatalf("confirmed %v", got)
	}
	if got := s.Names(); !slices.Equal(got, []string{"w1", "w2", "w3", "w4"}) {
		t.Fatalf("names %v", got)
	}

	// Of two works with one name, the one with the higher revision stays, in any order of loading.
	for _, order := range [][]uint64{{5, 6}, {6, 5}} {
		s := desired.New()
		first := load(s, spec{id: fmt.Sprint(order[0]), revision: order[0]})
		second := load(s, spec{id: fmt.Sprint(order[1]), revision: order[1]})
		if first != "" || second != "5" || s.Get("6") == nil || s.Get("5") != nil || s.ByName("web").Live.ResourceID != "6" || s.Digest(nil).Count != 1 {
			t.Fatalf("%v: lost %q and %q, holds %v", order, first, second, s.All())
		}
	}
}

// A loaded deletion may be older than the present work of the broker, whose versions started again: it does not
// reject that work. A deletion received in this process, and a loaded work, do.
func TestSet_LoadedDeletionOfAnEarlierRecord(t *testing.T) {
	for name, c := range map[string]struct {
		loaded, deleting bool
		version          int64
		want             desired.Outcome
	}{
		"a deletion":            {loaded: true, deleting: true, version: 0, want: desired.Accepted},
		"a work":                {loaded: true, version: 2, want: desired.Stale},
		"a deletion, confirmed": {deleting: true, version: 2, want: desired.Stale},
	} {
		t.Run(name, func(t *testing.T) {
			s := desired.New()
			s.Subscribed(true)
			held := spec{id: "1", version: 2, revision: 10, deleting: c.deleting}.received()
			s.Accept(held, "")
			if c.loaded {
				w := s.Get("1")
				s = desired.New()
				s.Load(w)
			}
			s.Subscribed(true)
			if l := s.Versions(); len(l) != 1 || l[0].ResourceVersion != c.version {
				t.Errorf("listed %v", l)
			}
			if d := s.Accept(spec{id: "1", version: 1, revision: 4}.received(), ""); d.Outcome != c.want {
				t.Errorf("the work created next is %v, want %v", d.Outcome, c.want)
			}
		})
	}
}

// An OCM broker sends the present works of its hub. Works of an earlier process do not reject them. The hub may
// have been rolled back, or the work may have been created again under its id, or have another source there.
// Only its owner can delete a work.
func TestSet_LoadedWorksOfAnOCMBroker(t *testing.T) {
	const yes, dup, stale, foreign = desired.Accepted, desired.Duplicate, desired.Stale, desired.Foreign
	live := spec{id: "1", version: 5, content: "a"}
	for name, c := range map[string]struct {
		held spec
		in   spec
		want desired.Outcome
		then spec // a spec that is stale afterwards
	}{
		"as it was":                     {live, live, dup, spec{id: "1", version: 4, content: "late"}},
		"newer":                         {live, spec{id: "1", version: 6, content: "b"}, yes, live},
		"a hub that went back":          {live, spec{id: "1", version: 3, content: "b"}, yes, spec{id: "1", version: 2, content: "late"}},
		"created again":                 {spec{id: "1", version: 5, deleting: true}, spec{id: "1", version: 1, content: "b"}, yes, spec{}},
		"another source, another spec":  {live, spec{id: "1", version: 5, content: "b", source: "kube"}, yes, spec{id: "1", version: 4, content: "late", source: "kube"}},
		"another source, the same spec": {live, spec{id: "1", version: 5, content: "a", source: "kube"}, yes, spec{id: "1", version: 4, content: "late", source: "kube"}},
		"deletion":                      {live, spec{id: "1", version: 5, deleting: true}, yes, spec{id: "1", version: 5, content: "late"}},
		"deletion by another source":    {live, spec{id: "1", version: 5, deleting: true, source: "kube"}, foreign, spec{}},
		"name of another source":        {live, spec{id: "2", version: 1, source: "kube"}, foreign, spec{}},
	} {
		t.Run(name, func(t *testing.T) {
			from := desired.New()
			from.Subscribed(false)
			from.Accept(c.held.received(), "")
			s := desired.New()
			s.Load(from.Get("1"))
			s.Subscribed(false)
			expectOutcome(t, s, c.in, c.want)
			if confirmed := c.want == yes || c.want == dup; s.Unconfirmed("1") == confirmed {
				t.Errorf("confirmed: %t", !confirmed)
			}
			if c.want == yes && s.Get("1").Source != c.in.received().Source {
				t.Errorf("it is of %s", s.Get("1").Source)
			}
			// After that, versions decide.
			if c.then.id != "" {
				expectOutcome(t, s, c.then, stale)
			}
		})
	}
}

func TestSet_WorksMissingInAList(t *testing.T) {
	s := desired.New()
	s.Subscribed(true)
	for i, id := range []string{"1", "2", "3"} {
		expectOutcome(t, s, spec{id: id, name: "w" + id, revision: uint64(i + 1), deleting: id == "3"}, desired.Accepted)
	}
	mark := s.Clock()
	expectOutcome(t, s, spec{id: "2", name: "w2", revision: 9, content: "new"}, desired.Accepted)
	if got := s.Missing([]string{"1", "2", "3", "4"}, mark); !slices.Equal(got, []string{"1"}) {
		t.Fatalf("got %v", got)
	}
	s.Drop("1")
	if got := s.Missing([]string{"1"}, mark); got != nil || s.Get("1") != nil || !s.ByName("w1").Empty() {
		t.Fatalf("got %v", got)
	}
	s.Drop("1") // a second Drop has no effect
}

// The digest is maintained incrementally, and always equals that of the live works.
func TestSet_DigestIsOfTheLiveWorks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := desired.New()
		s.Subscribed(true)
		id := rapid.SampledFrom([]string{"1", "2", "3", "4"})
		for rev := range rapid.IntRange(1, 30).Draw(t, "n") {
			in := spec{
				id: id.Draw(t, "id"), name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), version: int64(rapid.IntRange(0, 3).Draw(t, "version")),
				revision: uint64(rapid.IntRange(1, rev+1).Draw(t, "revision")), deleting: rapid.Bool().Draw(t, "deleting"), content: fmt.Sprint(rev),
			}
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0:
				s.Drop(in.id)
			case 1:
				if w := s.Get(in.id); w != nil {
					s.Forget(w)
				}
			case 2:
				s.Load(&desired.Work{Ref: manifestwork.Ref{ResourceID: in.id, Name: in.name}, Revision: in.revision, Deleting: in.deleting, Tag: codec.TagOf(in.deleting, 0, "", []byte(in.content))})
			case 3:
				s.Subscribed(rapid.Bool().Draw(t, "hawser"))
			case 4:
				s.Continued(in.revision)
			default:
				s.Accept(in.received(), rapid.SampledFrom([]string{"", "too large"}).Draw(t, "problem"))
			}
			var want codec.Digest
			var some []string
			for _, w := range s.All() {
				if w.Deleting {
					continue
				}
				if rapid.Bool().Draw(t, "set aside") {
					some = append(some, w.ResourceID)
					continue
				}
				want.Count++
				want.Sum = want.Sum.Add(codec.RecordHash(w.ResourceID, w.Tag))
			}
			if got := s.Digest(some); got != want {
				t.Fatalf("digest without %v is %+v, want %+v", some, got, want)
			}
			for _, w := range s.All() {
				if v := s.ByName(w.Name); !w.Deleting && (v.Live == nil || v.Live.ResourceID != w.ResourceID) {
					t.Fatalf("%s is live and has not its name: %+v", w.ResourceID, v)
				}
			}
		}
	})
}

// TestSet_NumbersOfASource: behind a stateless broker a source numbers its events itself, and starts again with
// each of its sessions.
func TestSet_NumbersOfASource(t *testing.T) {
	const accepted, dup, stale, foreign = desired.Accepted, desired.Duplicate, desired.Stale, desired.Foreign
	s := desired.New()
	s.Subscribed(false)
	s.Session("hub")
	expectOutcome(t, s, spec{id: "1", version: 5, revision: 10, content: "a"}, accepted)
	expectOutcome(t, s, spec{id: "1", version: 5, revision: 12, content: "b"}, accepted)
	expectOutcome(t, s, spec{id: "1", version: 5, revision: 11, content: "a"}, stale) // the labels before the last change
	expectOutcome(t, s, spec{id: "1", version: 5, revision: 13, content: "b"}, dup)
	expectOutcome(t, s, spec{id: "1", version: 3, revision: 14, content: "c"}, accepted) // the hub was rolled back
	expectOutcome(t, s, spec{id: "1", version: 9, revision: 15, content: "x", source: "source2"}, foreign)

	// The work is deleted and forgotten. Late events do not create it again, but new events do.
	expectOutcome(t, s, spec{id: "1", version: 4, revision: 20, deleting: true}, accepted)
	s.Forget(s.Get("1"))
	expectOutcome(t, s, spec{id: "1", version: 3, revision: 16, content: "c"}, stale)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 1, revision: 21, content: "d"}, accepted)

	// Nor does a late event create a work that lost its name to another one.
	expectOutcome(t, s, spec{id: "3", name: "b", version: 1, revision: 23, content: "e"}, accepted)
	expectOutcome(t, s, spec{id: "2", name: "b", version: 2, revision: 22, content: "f"}, stale)

	// In another session, a lagging informer may have an older version. A spec without a version is accepted.
	s.Subscribed(false)
	s.Session("hub")
	expectOutcome(t, s, spec{id: "3", name: "b", version: 0, revision: 1, content: "g"}, accepted)
	expectOutcome(t, s, spec{id: "3", name: "b", version: 7, revision: 2, content: "h"}, accepted)
	s.Session("hub")
	expectOutcome(t, s, spec{id: "3", name: "b", version: 6, revision: 1, content: "i"}, stale)
	expectOutcome(t, s, spec{id: "3", name: "b", version: 7, revision: 1, content: "h"}, dup)
	expectOutcome(t, s, spec{id: "3", name: "b", version: 6, revision: 2, content: "i"}, accepted)

	// An OCM source on the same broker has no numbers.
	expectOutcome(t, s, spec{id: "9", name: "z", version: 2, content: "a", source: "ocm"}, accepted)
	expectOutcome(t, s, spec{id: "9", name: "z", version: 1, content: "b", source: "ocm"}, stale)
}

// TestSet_DigestOfASource: works that the list omits, so that they are sent again, are not in the digest.
func TestSet_DigestOfASource(t *testing.T) {
	loaded := desired.New()
	for _, w := range []*desired.Work{
		{Ref: manifestwork.Ref{ResourceID: "1", Name: "a"}, Source: "hub", Tag: codec.Tag{1}},
		{Ref: manifestwork.Ref{ResourceID: "2", Name: "b"}, Source: "other", Tag: codec.Tag{2}},
	} {
		loaded.Load(w)
	}
	if d := loaded.DigestOf("hub"); d != (codec.Digest{}) || len(loaded.Versions()) != 0 {
		t.Errorf("a work that is unconfirmed, and not listed, is in %+v", d)
	}
	loaded.Confirm(nil)
	h := codec.Digest{Count: 1, Sum: codec.DigestSum{}.Add(codec.RecordHash("1", codec.Tag{1}))}
	if d := loaded.DigestOf("hub"); d != h {
		t.Errorf("confirmed: %+v, want %+v", d, h)
	}
}
