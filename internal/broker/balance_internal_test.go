package broker

import (
	"testing"
	"time"
)

// TestSpread: agents move only after another replica has started, only from a replica that has more than its share, and
// only for some time.
func TestSpread(t *testing.T) {
	start := time.Unix(0, 0)
	alone, both, three := []string{"self"}, []string{"self", "a"}, []string{"self", "a", "b"}
	type look struct {
		after      int // seconds
		live       []string
		own, other int
		want       int
	}
	for name, looks := range map[string][]look{
		"unknown, then known":           {{0, nil, 900, 0, 0}, {2, both, 900, 0, 0}, {4, both, 900, 0, 0}},
		"the second replica starts":     {{0, alone, 300, 0, 0}, {2, both, 300, 0, 100}, {4, both, 200, 50, 3}, {6, both, 197, 103, 0}},
		"the third one starts":          {{0, both, 300, 300, 0}, {2, three, 300, 300, 40}, {4, three, 280, 300, 20}},
		"it has not too many":           {{0, both, 200, 400, 0}, {2, three, 200, 400, 0}},
		"few agents":                    {{0, alone, 12, 0, 0}, {2, both, 12, 0, 0}},
		"a replica ends":                {{0, three, 300, 0, 0}, {2, both, 300, 0, 0}},
		"a replica is replaced":         {{0, both, 300, 0, 0}, {2, []string{"self", "c"}, 300, 0, 100}},
		"the replaced replica ends":     {{0, both, 300, 300, 0}, {2, three, 300, 300, 40}, {4, both, 300, 300, 0}},
		"agents reach only this one":    {{0, alone, 150, 0, 0}, {2, both, 150, 0, 47}, {4, both, 150, 0, 47}, {6, both, 150, 0, 47}, {8, both, 150, 0, 9}, {10, both, 150, 0, 0}},
		"the fleet grows later":         {{0, alone, 20, 0, 0}, {2, both, 20, 0, 0}, {400, both, 900, 0, 0}},
		"it starts again a minute late": {{0, both, 300, 0, 0}, {2, alone, 300, 0, 0}, {60, both, 300, 0, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			var s spread
			for n, l := range looks {
				if got := s.surplus(start.Add(time.Duration(l.after)*time.Second), l.live, l.own, func() int { return l.other }); got != l.want {
					t.Errorf("look %d: %d agents move, want %d", n, got, l.want)
				}
			}
		})
	}
}
