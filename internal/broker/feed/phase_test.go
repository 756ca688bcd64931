package feed

import "testing"

// TestPhase_Transitions is the picture in phase.go, arrow by arrow; what is not in it stays.
func TestPhase_Transitions(t *testing.T) {
	type arrow struct {
		from phase
		turn phaseEvent
	}
	arrows := map[arrow]phase{
		{unasked, lists}: listed, {unasked, changed}: filling, {unasked, unchanged}: current,
		{filling, done}: current, {filling, more}: listed,
		{listed, done}: current, {listed, changed}: filling,
		{current, lists}: listed,
	}
	for from := unasked; from < phases; from++ {
		for turn := lists; turn < numPhaseEvents; turn++ {
			want, ok := arrows[arrow{from, turn}]
			switch {
			case turn == left:
				want = over
			case !ok:
				want = from
			}
			if got := transitions[from][turn]; got != want {
				t.Errorf("phase %d, turn %d: %d, want %d", from, turn, got, want)
			}
		}
	}
}

// TestPhase_NothingIsToldWhileSomethingIsMissing.
func TestPhase_NothingIsToldWhileSomethingIsMissing(t *testing.T) {
	for p := unasked; p < phases; p++ {
		if want := p == unasked || p == current; p.idle() != want {
			t.Errorf("phase %d: idle %t", p, p.idle())
		}
	}
}
