// Package complexity checks in tests whether a run grows linearly or quadratically with its input. Times differ
// between machines; their growth does not.
//
// It measures the processor time of the thread that does the work, not wall time. On a machine with more busy
// processes than processors, a run is preempted, a long one more often than a short one. Wall time would
// include that.
package complexity

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// small is the first size, factor the ratio to the second size. Both are small enough that a run can end before
	// a garbage collection begins.
	small  = 200
	factor = 16
	// limit is the maximum ratio of the times: six times as long per item, because the larger size may not fit into
	// the processor's caches. Quadratic growth would be factor * factor, which is 256.
	limit = 6 * factor
	// The best of this many runs counts, or of as many as fit into this time, at least two. No effect makes a run
	// faster than it is.
	runs   = 20
	budget = 500 * time.Millisecond
	// attempts is the number of measurements before a failure is reported.
	attempts = 5
)

// Linear fails the test if the time of a run grows quadratically with its size. prepare makes a run over n
// items; prepare itself is not measured. A run is called once, and does its work on the calling goroutine.
// Under the race detector, whose overhead varies by operation, there is one run and no measurement.
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

// Time returns the processor time of f on the calling goroutine; other goroutines do not count.
func Time(t testing.TB, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread() // threadTime is the time of one thread
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
