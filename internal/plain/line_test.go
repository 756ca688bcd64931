package plain_test

import (
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/hawser-io/hawser/internal/plain"
	"github.com/hawser-io/hawser/pkg/codec"
)

// talk is two parties that have heard of each other.
func talk() (hub, agent *plain.Tracker) {
	hub, agent = plain.NewLine(100, "h1"), plain.NewLine(50, "a1")
	hub.Hear("c", agent.Stamp("hub"))
	agent.Hear("hub", hub.Stamp("c"))
	hub.Hear("c", agent.Stamp("hub"))
	return hub, agent
}

func hears(t *testing.T, who string, got, want plain.Result) {
	t.Helper()
	if got != want {
		t.Errorf("%s: verdict %d, want %d", who, got, want)
	}
}

func TestLine_OneRoundTripIsEnough(t *testing.T) {
	hub, agent := plain.NewLine(100, "h1"), plain.NewLine(50, "a1")
	hears(t, "the first list", hub.Hear("c", agent.Stamp("hub")), plain.Stranger)
	hears(t, "what follows before the answer", hub.Hear("c", agent.Stamp("hub")), plain.Unaware)
	hears(t, "the answer", agent.Hear("hub", hub.Stamp("c")), plain.First)
	hears(t, "the second list", hub.Hear("c", agent.Stamp("hub")), plain.First)
	hears(t, "what follows", hub.Hear("c", agent.Stamp("hub")), plain.Counts)
	hears(t, "what follows", agent.Hear("hub", hub.Stamp("c")), plain.Counts)
	if !hub.Knows("c") || hub.Knows("d") {
		t.Error("who is a Hawser party is not known")
	}
}

func TestLine_StockPartiesCount(t *testing.T) {
	hub, _ := talk()
	hears(t, "another agent", hub.Hear("d", plain.Stamp{}), plain.Stock)
	hears(t, "one that took its place", hub.Hear("c", plain.Stamp{}), plain.Stock)
}

func TestLine_WhatWasLateIsVoid(t *testing.T) {
	hub, agent := talk()
	late := hub.Stamp("c")
	next := plain.NewLine(200, "h2") // another leader
	hears(t, "an agent that has not heard of it", next.Hear("c", agent.Stamp("hub")), plain.Stranger)
	hears(t, "the next leader", agent.Hear("hub", next.Stamp("c")), plain.First)
	hears(t, "the leader before", agent.Hear("hub", late), plain.Void)
	hears(t, "a report to the next leader", next.Hear("c", agent.Stamp("hub")), plain.First)
}

// TestLine_AProcessThatRemembersNothing is the picture in the package comment.
func TestLine_AProcessThatRemembersNothing(t *testing.T) {
	hub, agent := talk()
	late := hub.Stamp("c")
	hears(t, "in time", agent.Hear("hub", late), plain.Counts)
	agent = plain.NewLine(60, "a2")
	hears(t, "late", agent.Hear("hub", late), plain.Stranger)
	hub.Hear("c", agent.Stamp("hub"))
	hears(t, "published again", agent.Hear("hub", hub.Stamp("c")), plain.First)
	hears(t, "late", agent.Hear("hub", late), plain.Unaware)
}

func TestLine_AClockThatWentBack(t *testing.T) {
	_, agent := talk()
	back := plain.NewLine(3, "h2")
	hears(t, "lower than was heard of", agent.Hear("hub", back.Stamp("c")), plain.Void)
	hears(t, "an agent that tells so", back.Hear("c", agent.Stamp("hub")), plain.Stranger)
	hears(t, "above what was heard of", agent.Hear("hub", back.Stamp("c")), plain.First)
	other := plain.NewLine(3, "b1")
	if m := back.Stamp("d"); m.Session.Number != 3 {
		t.Errorf("what one peer says moved the session for another to %s", m.Session)
	}
	hears(t, "another", other.Hear("hub", back.Stamp("d")), plain.Stranger)
}

func TestLine_ANewLifeVoidsWhatWasSaidBefore(t *testing.T) {
	hub, agent := talk()
	late := agent.Stamp("hub")
	hub.Renew()
	hears(t, "a report to the life before", hub.Hear("c", late), plain.Unaware)
	hears(t, "the next life", agent.Hear("hub", hub.Stamp("c")), plain.First)
	hears(t, "a report to it", hub.Hear("c", agent.Stamp("hub")), plain.Counts)
}

func TestLine_CountsWhileBothSessionsAreThePresentOnes(t *testing.T) {
	hub, _ := talk()
	made := hub.Stamp("c")
	if !hub.Counts("c", made) {
		t.Error("what was just said does not count")
	}
	hub.Hear("c", plain.NewLine(60, "a2").Stamp("hub"))
	if hub.Counts("c", made) || !hub.Counts("c", hub.Stamp("c")) {
		t.Error("what was said to the agent before counts, or not what is said to the next one")
	}
	hub.Hear("c", plain.Stamp{Session: codec.Session{Number: 61, ID: "a3"}, Heard: codec.Session{Number: 900, ID: "h0"}})
	made = hub.Stamp("c")
	hub.Renew()
	if hub.Counts("c", made) {
		t.Error("what an earlier session said counts")
	}
}

// TestLine_AFarewellIsOfOneSession: it was made before the party had heard of anybody.
func TestLine_AFarewellIsOfOneSession(t *testing.T) {
	hub, agent := plain.NewLine(100, "h1"), plain.NewLine(50, "a1")
	farewell := agent.Farewell("hub")
	if farewell != (plain.Stamp{Session: codec.Session{Number: 50, ID: "a1"}}) {
		t.Errorf("it says %+v", farewell)
	}
	parts := func(when string, m plain.Stamp, want bool) {
		t.Helper()
		if hub.Parts("c", m) != want {
			t.Errorf("%s: %t", when, !want)
		}
	}
	parts("before anything was heard", farewell, false)
	hub.Hear("c", plain.Stamp{})
	parts("behind a stock agent", farewell, false)
	parts("of a stock agent", plain.Stamp{}, false)
	hub.Hear("c", plain.NewLine(70, "a0").Stamp("hub")) // whose clock was ahead
	parts("of a session before", farewell, false)
	hears(t, "a clock that went back", hub.Hear("c", agent.Stamp("hub")), plain.Void)
	agent.Hear("hub", hub.Stamp("c"))
	if m := agent.Stamp("hub"); m.Session.Number <= 70 || hub.Hear("c", m) != plain.First {
		t.Fatalf("it goes on as %+v", m)
	}
	parts("of the session whose number has risen since", farewell, true)
	parts("of a stock agent that took its place", plain.Stamp{}, false)
	hub.Hear("c", plain.NewLine(200, "a2").Stamp("hub"))
	parts("of a session before", farewell, false)
}

func TestMarks_ThereAndBack(t *testing.T) {
	hub, _ := talk()
	e := event.New()
	m := hub.Stamp("c")
	m.Put(&e)
	if got, err := plain.MarksOf(e); err != nil || got != m {
		t.Errorf("%+v, %v; want %+v", got, err, m)
	}
	bare := event.New()
	plain.Stamp{Fence: 7}.Put(&bare)
	if got, err := plain.MarksOf(bare); err != nil || got != (plain.Stamp{}) || len(bare.Extensions()) != 0 {
		t.Errorf("a stock party got %+v, %v", got, err)
	}
	for _, name := range []string{codec.ExtSession, codec.ExtHeard, codec.ExtOrder} {
		bad := event.New()
		bad.SetTime(time.Unix(1, 0))
		bad.SetExtension(name, "x")
		if _, err := plain.MarksOf(bad); err == nil {
			t.Errorf("%s=x was taken", name)
		}
	}
}
