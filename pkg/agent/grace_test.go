package agent

import (
	"testing"
	"time"
)

// A clock that is one year ahead for a moment, before or after a restart, ends no grace period.
func TestGrace_CountsElapsedTime(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const year, day = 365 * 24 * time.Hour, 24 * time.Hour
	for name, c := range map[string]struct {
		before, passed, period, want time.Duration
	}{
		"begun by this process":                {0, time.Hour, day, 23 * time.Hour},
		"over":                                 {0, day, day, 0},
		"long over":                            {0, 2 * day, day, 0},
		"begun by another one":                 {20 * time.Hour, time.Hour, day, 3 * time.Hour},
		"the clock was ahead at the restart":   {year, time.Minute, day, trustClock - time.Minute},
		"over while there was no process":      {2 * day, trustClock, day, 0},
		"a short one, over before the restart": {year, time.Minute, 5 * time.Minute, 4 * time.Minute},
		"none":                                 {0, 0, 0, 0},
	} {
		g := grace{start: begun, seen: begun.Add(c.before), before: c.before}
		if left := g.left(c.period, g.seen.Add(c.passed)); left != c.want {
			t.Errorf("%s: %v is left, want %v", name, left, c.want)
		}
	}
}

// TestGrace_IsMeasured checks that the passed time is measured by the monotonic clock.
func TestGrace_IsMeasured(t *testing.T) {
	seen := time.Now()
	g := grace{start: seen.Add(-time.Minute), seen: seen, before: time.Minute}
	if left := g.left(time.Hour, time.Now()); left < 50*time.Minute || seen.Round(0) == seen {
		t.Errorf("%v is left, or the time when it was seen has no monotonic clock", left)
	}
}
