package hubsource

import (
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// An answer that is older than what came while the hub was asked may be older,
// or the hub went back: it is asked again, but not for ever on a hub on which
// much happens.
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
