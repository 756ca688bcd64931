package sessionfence_test

import (
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
)

// talk returns two clients that know each other's session.
func talk() (hub, agent *sessionfence.Tracker) {
	hub, agent = sessionfence.NewTracker(100, "h1"), sessionfence.NewTracker(50, "a1")
	hub.Observe("c", agent.Stamp("hub"))
	agent.Observe("hub", hub.Stamp("c"))
	hub.Observe("c", agent.Stamp("hub"))
	return hub, agent
}

func observe(t *testing.T, client string, got, want sessionfence.Result) {
	t.Helper()
	if got != want {
		t.Errorf("%s: result %d, want %d", client, got, want)
	}
}

func TestTracker_OneRoundTripIsEnough(t *testing.T) {
	hub, agent := sessionfence.NewTracker(100, "h1"), sessionfence.NewTracker(50, "a1")
	observe(t, "the first list", hub.Observe("c", agent.Stamp("hub")), sessionfence.NewPeerUnaware)
	observe(t, "what follows before the answer", hub.Observe("c", agent.Stamp("hub")), sessionfence.PeerUnaware)
	observe(t, "the answer", agent.Observe("hub", hub.Stamp("c")), sessionfence.CurrentFirst)
	observe(t, "the second list", hub.Observe("c", agent.Stamp("hub")), sessionfence.CurrentFirst)
	observe(t, "what follows", hub.Observe("c", agent.Stamp("hub")), sessionfence.Current)
	observe(t, "what follows", agent.Observe("hub", hub.Stamp("c")), sessionfence.Current)
	if !hub.IsHawser("c") || hub.IsHawser("d") {
		t.Error("IsHawser is wrong")
	}
}

func TestTracker_AcceptsOCMClients(t *testing.T) {
	hub, _ := talk()
	observe(t, "another agent", hub.Observe("d", sessionfence.Stamp{}), sessionfence.NoSession)
	observe(t, "one that took its place", hub.Observe("c", sessionfence.Stamp{}), sessionfence.NoSession)
}

func TestTracker_DropsLateEvents(t *testing.T) {
	hub, agent := talk()
	late := hub.Stamp("c")
	next := sessionfence.NewTracker(200, "h2") // another process becomes the leader
	observe(t, "an agent that does not know the session", next.Observe("c", agent.Stamp("hub")), sessionfence.NewPeerUnaware)
	observe(t, "the next leader", agent.Observe("hub", next.Stamp("c")), sessionfence.CurrentFirst)
	observe(t, "the leader before", agent.Observe("hub", late), sessionfence.OldSession)
	observe(t, "a report to the next leader", next.Observe("c", agent.Stamp("hub")), sessionfence.CurrentFirst)
}

// TestTracker_ProtectsProcessWithoutState is the scenario in the package comment.
func TestTracker_ProtectsProcessWithoutState(t *testing.T) {
	hub, agent := talk()
	late := hub.Stamp("c")
	observe(t, "in time", agent.Observe("hub", late), sessionfence.Current)
	agent = sessionfence.NewTracker(60, "a2")
	observe(t, "late", agent.Observe("hub", late), sessionfence.NewPeerUnaware)
	hub.Observe("c", agent.Stamp("hub"))
	observe(t, "published again", agent.Observe("hub", hub.Stamp("c")), sessionfence.CurrentFirst)
	observe(t, "late", agent.Observe("hub", late), sessionfence.PeerUnaware)
}

func TestTracker_RecoversFromClockRollback(t *testing.T) {
	_, agent := talk()
	back := sessionfence.NewTracker(3, "h2")
	observe(t, "lower than the latest known session", agent.Observe("hub", back.Stamp("c")), sessionfence.OldSession)
	observe(t, "an agent with the later session", back.Observe("c", agent.Stamp("hub")), sessionfence.NewPeerUnaware)
	observe(t, "above the latest known session", agent.Observe("hub", back.Stamp("c")), sessionfence.CurrentFirst)
	other := sessionfence.NewTracker(3, "b1")
	if m := back.Stamp("d"); m.Session.Number != 3 {
		t.Errorf("an event of one peer moved the session for another to %s", m.Session)
	}
	observe(t, "another", other.Observe("hub", back.Stamp("d")), sessionfence.NewPeerUnaware)
}

func TestTracker_NewSessionInvalidatesEarlierEvents(t *testing.T) {
	hub, agent := talk()
	late := agent.Stamp("hub")
	hub.NewSession()
	observe(t, "a report to the previous hub epoch", hub.Observe("c", late), sessionfence.PeerUnaware)
	observe(t, "the next hub epoch", agent.Observe("hub", hub.Stamp("c")), sessionfence.CurrentFirst)
	observe(t, "a report to it", hub.Observe("c", agent.Stamp("hub")), sessionfence.Current)
}

func TestTracker_CountsWhileBothSessionsAreThePresentOnes(t *testing.T) {
	hub, _ := talk()
	made := hub.Stamp("c")
	if !hub.Counts("c", made) {
		t.Error("a stamp of the present sessions is stale")
	}
	hub.Observe("c", sessionfence.NewTracker(60, "a2").Stamp("hub"))
	if hub.Counts("c", made) || !hub.Counts("c", hub.Stamp("c")) {
		t.Error("a stamp for the previous agent is current, or one for the next agent is stale")
	}
	hub.Observe("c", sessionfence.Stamp{Session: codec.Session{Number: 61, ID: "a3"}, PeerSession: codec.Session{Number: 900, ID: "h0"}})
	made = hub.Stamp("c")
	hub.NewSession()
	if hub.Counts("c", made) {
		t.Error("a stamp of an earlier session is current")
	}
}

// TestTracker_GoodbyeIsOfOneSession checks a goodbye that was made before its client knew a peer session.
func TestTracker_GoodbyeIsOfOneSession(t *testing.T) {
	hub, agent := sessionfence.NewTracker(100, "h1"), sessionfence.NewTracker(50, "a1")
	goodbye := agent.Goodbye("hub")
	if goodbye != (sessionfence.Stamp{Session: codec.Session{Number: 50, ID: "a1"}}) {
		t.Errorf("the goodbye has the stamp %+v", goodbye)
	}
	parts := func(when string, m sessionfence.Stamp, want bool) {
		t.Helper()
		if hub.MatchesGoodbye("c", m) != want {
			t.Errorf("%s: %t", when, !want)
		}
	}
	parts("before any event was received", goodbye, false)
	hub.Observe("c", sessionfence.Stamp{})
	parts("after an OCM agent", goodbye, false)
	parts("of an OCM agent", sessionfence.Stamp{}, false)
	hub.Observe("c", sessionfence.NewTracker(70, "a0").Stamp("hub")) // the clock of a0 was ahead
	parts("of a session before", goodbye, false)
	observe(t, "a clock that went back", hub.Observe("c", agent.Stamp("hub")), sessionfence.OldSession)
	agent.Observe("hub", hub.Stamp("c"))
	if m := agent.Stamp("hub"); m.Session.Number <= 70 || hub.Observe("c", m) != sessionfence.CurrentFirst {
		t.Fatalf("it goes on as %+v", m)
	}
	parts("of the session whose number has risen since", goodbye, true)
	parts("of an OCM agent that replaced it", sessionfence.Stamp{}, false)
	hub.Observe("c", sessionfence.NewTracker(200, "a2").Stamp("hub"))
	parts("of a session before", goodbye, false)
}

func TestStamp_RoundTrip(t *testing.T) {
	hub, _ := talk()
	e := event.New()
	m := hub.Stamp("c")
	m.Put(&e)
	if got, err := sessionfence.StampOf(e); err != nil || got != m {
		t.Errorf("%+v, %v; want %+v", got, err, m)
	}
	bare := event.New()
	sessionfence.Stamp{Fence: 7}.Put(&bare)
	if got, err := sessionfence.StampOf(bare); err != nil || got != (sessionfence.Stamp{}) || len(bare.Extensions()) != 0 {
		t.Errorf("an OCM client got %+v, %v", got, err)
	}
	for _, name := range []string{codec.ExtSession, codec.ExtPeerSession, codec.ExtFence} {
		bad := event.New()
		bad.SetTime(time.Unix(1, 0))
		bad.SetExtension(name, "x")
		if _, err := sessionfence.StampOf(bad); err == nil {
			t.Errorf("%s=x was taken", name)
		}
	}
}
