package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// plan is the schedule, counted from the start of the load.
//
//	0 … storm       every program dies now and then
//	storm … calm    nothing: caches and tables fill
//	calm … judged   growth is measured: only the second agent dies; the others are
//	                paused and cut off from a hub that restarts
//	judged … end    storm
//
// Growth shows only in a running process, so broker, hub-source and the first agent run through the calm. The
// second agent shows the growth that dying peers cause in them. The two compared windows, the first and the
// last of the calm, have no faults, so that both have the same peers.
type plan struct {
	storm, calm, judged, end time.Duration
	window                   time.Duration
}

const (
	shortest = 4 * time.Minute
	// recovery is the time between the last fault and a window.
	recovery = 30 * time.Second
)

// newPlan returns the plan for a length, the time until the end of the calm.
func newPlan(length time.Duration) (plan, error) {
	if length < shortest {
		return plan{}, fmt.Errorf("%s is too short to see anything grow: use at least %s", length, shortest)
	}
	const storm, calm = 45 * time.Second, 2 * time.Minute
	return plan{
		storm: storm, calm: calm, judged: length, end: length + 2*storm,
		window: min(time.Minute, (length-calm)/4),
	}, nil
}

// stormy reports whether any process may be killed at a time.
func (p plan) stormy(at time.Duration) bool { return at < p.storm || at >= p.judged && at < p.end }

// quiet reports whether no fault may begin at a time.
func (p plan) quiet(at time.Duration) bool {
	return at >= p.storm && at < p.calm+p.window || at >= p.judged-p.window-recovery && at < p.judged
}

// random returns the random source for one part of the run. The same seed gives the same numbers.
func random(seed uint64, part string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(part)) // never fails
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// between returns a random duration.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// fault is a kind of fault of one part of the fleet.
type fault string

const (
	kill    fault = "kill"    // SIGKILL
	stop    fault = "stop"    // SIGTERM
	pause   fault = "pause"   // SIGSTOP, later SIGCONT
	restart fault = "restart" // of a kube-apiserver
)

// event is a fault, its delay after the previous fault, and its duration.
type event struct {
	fault       fault
	after, last time.Duration
}

// nextFault returns a random fault of a program.
func nextFault(r *rand.Rand) event {
	e := event{fault: pause, after: between(r, 8*time.Second, 25*time.Second), last: between(r, 500*time.Millisecond, 10*time.Second)}
	switch r.IntN(4) {
	case 0, 1:
		e.fault = kill
	case 2:
		e.fault = stop
	}
	return e
}

// nextRestart returns a random restart of the hub.
func nextRestart(r *rand.Rand) event {
	return event{fault: restart, after: between(r, 30*time.Second, 80*time.Second), last: between(r, time.Second, 15*time.Second)}
}
