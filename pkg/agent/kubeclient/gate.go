package kubeclient

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// DefaultInFlight is the number of requests in flight if KubeConfig.InFlight is 0.
const DefaultInFlight = 20

// share is the number of requests with one question per free slot. So requests without answers leave slots to
// other questions: of 20 slots the first such question gets 15, the second 4, the third 1. The rule is that of
// Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches" (1998).
const share = 3

// gate limits the requests in flight: all together to a fixed number, and those with one question to their
// window. Requests wait in it, in order. It counts each attempt of client-go, which repeats a request after an
// answer with Retry-After; between two attempts a request is not in flight.
type gate struct {
	most int

	mu       sync.Mutex
	inFlight int
	// windows stay: there is one for each verb and served resource that was used.
	windows map[question]window
	waiting []*waiter
}

// waiter is a request that waits at the gate. admitted is closed when it may be sent; number is its number then.
type waiter struct {
	question
	admitted chan struct{}
	number   uint64
}

func newGate(most int) *gate { return &gate{most: most, windows: map[question]window{}} }

// errStalled means that the caller gave up a request that waited for others with its question.
var errStalled = errors.New("requests of this kind are not answered")

// enter waits until a request may be sent, and returns its number for leave. In intervals of longRequest it asks
// stalled whether to give up, which is errStalled. nil: it waits until ctx ends.
func (g *gate) enter(ctx context.Context, q question, stalled func() bool) (number uint64, err error) {
	w := &waiter{question: q, admitted: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, w)
	g.admit()
	g.mu.Unlock()
	select {
	case <-w.admitted:
		return w.number, nil
	default:
	}
	patience := time.NewTicker(longRequest)
	defer patience.Stop()
	for {
		select {
		case <-w.admitted:
			return w.number, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-patience.C:
			if stalled == nil || !stalled() {
				continue
			}
			err = errStalled
		}
		if g.giveUp(w) {
			return 0, err
		}
		return w.number, nil // admitted in the meantime
	}
}

// giveUp removes a waiter; false if it was admitted.
func (g *gate) giveUp(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(g.waiting, w)
	if at < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, at, at+1)
	return true
}

// leave counts the end of a request, and admits those that wait for it.
func (g *gate) leave(q question, number uint64, o outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	g.windows[q] = g.windows[q].end(number, o)
	g.admit()
}

// admit admits the waiters that may be sent, in order. A waiter whose window is full does not block those behind
// it. g.mu is held.
func (g *gate) admit() {
	g.waiting = slices.DeleteFunc(g.waiting, func(w *waiter) bool {
		n, known := g.windows[w.question]
		if !known {
			n = newWindow(g.most)
		}
		if !n.isOpen() || n.inFlight >= share*(g.most-g.inFlight) {
			return false
		}
		n = n.send()
		g.windows[w.question] = n
		g.inFlight++
		w.number = n.sent
		close(w.admitted)
		return true
	})
}
