package hubsource

import (
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// t1 the hub is asked where it is, t2 the informer shows something later than the answer
// that comes at t3. Either t3 was only slow, or t2 is from before the hub went back: it is
// asked again, but not for ever on a hub on which much happens.
func TestCore_AsksAgainWhatIsOlderThanWhatCameMeanwhile(t *testing.T) {
	f := comparingFixture(t, State{})
	answer := func(e Locate, version string) {
		f.core.Done(e, Result{Position: &codec.HubPosition{UID: "hub", ResourceVersion: version}})
	}
	f.page(codec.Inventory{})
	e := nextOf[Locate](f, HubLane, Key{})
	f.core.WorkSeen(newWork("w", 1, version("300")))
	answer(e, "200")
	e = nextOf[Locate](f, HubLane, Key{})
	f.core.WorkSeen(newWork("w", 2, version("400")))
	answer(e, "350") // later than 300: the hub did not go back
	if e := f.core.Next(HubLane, Key{}); e != nil {
		t.Fatalf("asked again at once: %T", e)
	}
	f.now = f.now.Add(locateEvery)
	answer(nextOf[Locate](f, HubLane, Key{}), "200")
	if s, _ := f.core.State(); len(s.Withheld) != 1 || s.Withheld[0] != everywhere {
		t.Errorf("nothing is withheld although the hub went back: %+v", s)
	}
}

// t1 a work is published, t2 the hub goes back to where it is not, t3 informers have had
// their time to say what is new, t4 the publish of t1 is answered, and only then the work
// can be looked for. Were the hub believed at t3, its position would be told, and at t4
// the work deleted; so it is not, and the deletion is left to a person.
//
// The doubt is kept on the hub before it ends. With that the hub moves on, and is asked
// once more where it is: a store of the broker that was told of the position of t2 is
// from before the doubt ended, and must not seem to be from after it.
func TestCore_DoubtsTheHubUntilWhatIsMissingWasLookedFor(t *testing.T) {
	begin := func() (f *fixture, w *workv1.ManifestWork, under Publish) {
		w = newWork("w", 2, version("300"))
		f = comparingFixture(t, State{}, w)
		f.page(codec.Inventory{})
		under = next[Publish](f, SpecLane, w.UID)
		f.clusterIdle("cluster1")
		f.core.WorkMissing(w.UID)
		f.locate("200")
		f.core.Done(nextOf[Save](f, HubLane, Key{}), Result{})
		f.locate("201") // with that it has moved on
		f.clusterIdle("cluster1")
		f.now = f.now.Add(2 * calmAfter)
		if e := f.core.Next(SpecLane, Key{}); e != nil {
			t.Fatalf("before the work was looked for, the next of all is %T %+v", e, e)
		}
		return f, w, under
	}

	f, w, under := begin()
	f.core.Done(under, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted}})
	f.idle(SpecLane, w.UID)
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, w, 4)}})
	f.locate("202")
	f.clusterIdle("cluster1")
	if s := f.core.Stats(); s.WithheldWorks != 1 {
		t.Errorf("the deletion is not withheld: %+v", s)
	}

	// The hub has it after all: nothing is left to be looked for.
	f, w, _ = begin()
	f.core.WorkSeen(w)
	f.now = f.now.Add(tellAfter)
	if p := nextOf[SendCompared](f, SpecLane, Key{}).Compared.Position; p == nil || p.ResourceVersion != "201" {
		t.Errorf("the broker is told of position %+v", p)
	}
}

// t1 the hub is restored from a backup, t2 this process saves its cursor, which
// replaces the one in the backup, t3 it ends before its informers have listed the hub
// anew. Therefore the next process would continue behind statuses that the hub has lost.
// That somebody else has changed what was saved is how t2 shows it: no cursor is saved
// until the hub said where it is.
func TestCore_SavesNoCursorOnAHubThatMayHaveGoneBack(t *testing.T) {
	for now, want := range map[string]string{"200": cursorAt(2).String(), "90": ""} {
		f := comparingFixture(t, State{Cursor: cursorAt(1).String()}, newWork("w", 1))
		f.page(codec.Inventory{})
		f.locate("200")
		f.checkpoint(2, 0)
		f.core.Done(nextOf[Save](f, HubLane, Key{}), Result{Err: errConflict()})
		if s, _ := f.core.State(); s.Cursor != "" {
			t.Errorf("whoever ends now saves %q", s.Cursor)
		}
		f.locate(now)
		if s, _ := f.core.State(); s.Cursor != want {
			t.Errorf("on a hub at %s the cursor is %q", now, s.Cursor)
		}
	}
}

// t1: the hub is restored, and its position says so; the watches of the informers
// end with no error and tell nothing new.
// t2: they show a work that the hub lacks, for longer than informers take to say
// what is new; the broker has it, so nothing seems to be missing.
// t3: the informers list the hub anew.
// Therefore the doubt of t1 lasts until t3, and the work's deletion is left to a person.
func TestCore_DoubtsTheHubAsLongAsInformersShowItsFuture(t *testing.T) {
	w := newWork("w", 2, version("300"))
	f := comparingFixture(t, State{}, w)
	f.page(codec.Inventory{})
	f.deliver(w.UID)
	f.clusterIdle("cluster1")
	f.locate("200")
	f.core.Done(nextOf[Save](f, HubLane, Key{}), Result{})
	f.locate("201")
	f.core.Done(nextOf[Ask](f, SpecLane, Key{Cluster: "cluster1"}), Result{Lists: 1})
	f.clusterIdle("cluster1")
	f.now = f.now.Add(2 * calmAfter)
	told := nextOf[SendCompared](f, SpecLane, Key{})
	for told.Compared.Position == nil {
		f.core.Done(told, Result{})
		f.now = f.now.Add(tellAfter)
		told = nextOf[SendCompared](f, SpecLane, Key{})
	}
	f.core.Done(told, Result{})
	f.now = f.now.Add(tellAfter)
	if e := f.core.Next(SpecLane, Key{}); e != nil {
		t.Fatalf("when all is told, the next is %T %+v", e, e)
	}
	if s, _ := f.core.State(); len(s.Withheld) != 1 || s.Withheld[0] != everywhere {
		t.Fatalf("the hub is believed again: %+v", s)
	}

	f.core.WorkMissing(w.UID)
	f.idle(SpecLane, w.UID)
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, w, 4)}})
	f.locate("202")
	f.clusterIdle("cluster1")
	if s := f.core.Stats(); s.WithheldWorks != 1 {
		t.Errorf("the deletion is not withheld: %+v", s)
	}
}
