// Package complexity tells in tests whether work grows with its input or with the
// square of it. Times differ from machine to machine; how they grow does not.
//
// What is measured is the processor time of the thread that does the work, not
// the time on the wall: a machine with more busy processes than processors
// stops a run in its middle, a long one oftener than a short one, and the wall
// clock would count that.
package complexity

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// small is the size to begin with, factor how much more is tried then. Both
	// are so small that a run can end before a collection of garbage begins.
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
// A run is called once, and does its work on the goroutine that calls it. Under the race detector, which makes some things much
// slower than others, there is one run and no measurement.
func Linear(t testing.TB, prepare func(n int) (run func())) {
	t.Helper()
	if raceDetector {
		prepare(small)()
		return
	}
	var one, many time.Duration
	for range attempts {
		one, many = best(t, prepare, small), best(t, prepare, small*factor)
		if many <= limit*max(one, time.Microsecond) {
			return
		}
	}
	t.Errorf("%d items take %v and %d take %v: more than %d times as long", small, one, small*factor, many, limit)
}

// best returns the processor time of the fastest of several runs over n items.
func best(t testing.TB, prepare func(n int) func(), n int) time.Duration {
	shortest, sum := time.Duration(1<<63-1), time.Duration(0)
	for i := 0; i < runs && (i < 2 || sum < budget); i++ {
		run := prepare(n)
		took := Time(t, run)
		shortest, sum = min(shortest, took), sum+took
	}
	return shortest
}

// Time returns the processor time that f takes on the goroutine that calls it; what f has other
// goroutines do does not count.
func Time(t testing.TB, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread() // threadTime is that of one thread
	defer runtime.UnlockOSThread()
	began := threadTime(t)
	f()
	return threadTime(t) - began
}

// threadTime returns the processor time that the calling thread has used.
func threadTime(t testing.TB) time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		t.Fatalf("the processor time of this thread cannot be read: %v", err)
	}
	return time.Duration(used.Nano())
}
