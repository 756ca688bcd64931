package delivery

import "testing"

// TestPhase_Transitions checks each arrow of the picture in subscription.go; other events change nothing.
func TestPhase_Transitions(t *testing.T) {
	type arrow struct {
		from phase
		turn phaseEvent
	}
	arrows := map[arrow]phase{
		{awaitingClient, lists}: comparing, {awaitingClient, changed}: filling, {awaitingClient, unchanged}: caughtUp,
		{filling, done}: caughtUp, {filling, more}: comparing,
		{comparing, done}: caughtUp, {comparing, changed}: filling,
		{caughtUp, lists}: comparing,
	}
	for from := awaitingClient; from < phases; from++ {
		for turn := lists; turn < numPhaseEvents; turn++ {
			want, ok := arrows[arrow{from, turn}]
			switch {
			case turn == left:
				want = closed
			case !ok:
				want = from
			}
			if got := transitions[from][turn]; got != want {
				t.Errorf("phase %d, event %d: %d, want %d", from, turn, got, want)
			}
		}
	}
}

// TestPhase_SendsNoCheckpointWhileSomethingIsMissing: checkpoints are possible only in awaitingClient and
// caughtUp.
func TestPhase_SendsNoCheckpointWhileSomethingIsMissing(t *testing.T) {
	for p := awaitingClient; p < phases; p++ {
		if want := p == awaitingClient || p == caughtUp; p.idle() != want {
			t.Errorf("phase %d: idle %t", p, p.idle())
		}
	}
}
