// Package cost tells in tests whether work grows with its input or with the
// square of it. Times differ from machine to machine; how they grow does not.
package cost

import (
	"testing"
	"time"
)

const (
	// small is the size to begin with, factor how much more is tried then. Both
	// are so small that a run can end before a busy machine does something else.
	small  = 200
	factor = 16
	// limit is how much longer the larger size may take: six times as long per
	// item, as it may no longer fit into the processor's caches. The square would
	// be factor * factor, which is 256.
	limit = 6 * factor
	// The best of so many runs counts, or of as many as fit into this time, and
	// of two at least: nothing makes a run faster than it is.
	runs   = 20
	budget = 500 * time.Millisecond
	// attempts is how often it is measured before that is believed.
	attempts = 5
)

// Linear fails the test if the time of a run grows about as the square of its
// size. prepare makes a run over n items; what it does itself is not measured.
// A run is called once. Under the race detector, which makes some things much
// slower than others, there is one run and no measurement.
func Linear(t testing.TB, prepare func(n int) (run func())) {
	t.Helper()
	if raceDetector {
		prepare(small)()
		return
	}
	var one, many time.Duration
	for range attempts {
		one, many = best(prepare, small), best(prepare, small*factor)
		if many <= limit*max(one, time.Microsecond) {
			return
		}
	}
	t.Errorf("%d items take %v and %d take %v: more than %d times as long", small, one, small*factor, many, limit)
}

func best(prepare func(n int) func(), n int) time.Duration {
	shortest, sum := time.Duration(1<<63-1), time.Duration(0)
	for i := 0; i < runs && (i < 2 || sum < budget); i++ {
		run := prepare(n)
		began := time.Now()
		run()
		took := time.Since(began)
		shortest, sum = min(shortest, took), sum+took
	}
	return shortest
}
