package core

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/pkg/transport"
)

// agenda is when what is looked at again.
type agenda struct {
	now    func() time.Time
	jitter func() float64
	waker  Waker
	// pausedUntil: an overloaded broker asked to wait.
	pausedUntil time.Time
}

// retry is the back-off of one thing that is tried.
type retry struct {
	failures  int
	notBefore time.Time
	// onChange: the last attempt met a newer object; the next one need not wait
	// once the informer has it.
	onChange bool
}

// Back-off of the lanes. The hub's is short: a status that could not be written
// is all that a person sees of a work.
const (
	firstDelay   = 100 * time.Millisecond
	longestSpec  = 30 * time.Second
	longestHub   = 10 * time.Second
	refusedDelay = 5 * time.Minute
)

func (r *retry) reset() { *r = retry{} }

// changed takes it that what was tried is another thing now.
func (r *retry) changed() {
	if r.onChange {
		r.notBefore = time.Time{}
	}
}

// wait has the next attempt wait until then, or until something changes.
func (r *retry) wait(until time.Time, onChange bool) { r.notBefore, r.onChange = until, onChange }

func (a *agenda) wake(l Lane, k Key, after time.Duration) { a.waker.Wake(l, k, max(0, after)) }

func (a *agenda) wakeAt(l Lane, k Key, at time.Time) { a.wake(l, k, at.Sub(a.now())) }

func (a *agenda) wakeCluster(l Lane, cl *cluster) { a.wake(l, Key{Cluster: cl.name}, 0) }

func (a *agenda) wakeWork(w *work) {
	a.wake(SpecLane, w.key(), 0)
	a.wake(HubLane, w.key(), 0)
}

// until reports whether a time lies ahead; then the key is woken at it.
func (a *agenda) until(l Lane, k Key, at time.Time) bool {
	ahead := at.After(a.now())
	if ahead {
		a.wakeAt(l, k, at)
	}
	return ahead
}

// due reports whether something may be tried; if not, its key is woken in time.
func (a *agenda) due(l Lane, k Key, r *retry) bool { return !a.until(l, k, r.notBefore) }

// ready is due for what is for the broker, which may have asked to wait.
func (a *agenda) ready(k Key, r *retry) bool {
	return !a.until(SpecLane, k, a.pausedUntil) && a.due(SpecLane, k, r)
}

// failed plans the next attempt, at least least from now.
func (a *agenda) failed(l Lane, k Key, r *retry, least time.Duration) {
	longest := longestSpec
	if l == HubLane {
		longest = longestHub
	}
	d := longest
	if r.failures < 20 {
		d = min(longest, firstDelay<<r.failures)
	}
	d = max(least, d/2+a.jittered(d/2))
	r.failures++
	r.notBefore, r.onChange = a.now().Add(d), false
	a.wake(l, k, d)
}

func (a *agenda) jittered(d time.Duration) time.Duration {
	return time.Duration(a.jitter() * float64(d))
}

// hubFailed plans the next attempt of a request to the hub. Of what is gone the
// informer is about to say so; until then it lags, perhaps for long.
func (a *agenda) hubFailed(k Key, r *retry, err error) { a.hubFailedIn(HubLane, k, r, err) }

func (a *agenda) hubFailedIn(l Lane, k Key, r *retry, err error) {
	var least time.Duration
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		least = time.Duration(s) * time.Second
	}
	a.failed(l, k, r, least)
	r.onChange = apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

// brokerFailed plans the next attempt of a request to the broker.
func (a *agenda) brokerFailed(k Key, r *retry, err error) {
	var delay time.Duration
	var e *transport.Error
	if errors.As(err, &e) {
		delay = e.Delay
	}
	if transport.CodeOf(err) == transport.CodeOverloaded && delay > 0 {
		a.pausedUntil = a.now().Add(delay)
		a.wake(SpecLane, Key{}, delay)
	}
	a.failed(SpecLane, k, r, delay)
}

func (a *agenda) unpause() { a.pausedUntil = time.Time{} }

// isOpen reports whether nobody knows what became of a request to the broker: it
// may be carried out yet, or have been.
func isOpen(err error) bool {
	code := transport.CodeOf(err)
	unanswered := code == transport.CodeUnavailable || code == transport.CodeDeadline || code == transport.CodeInternal
	return err != nil && unanswered && transport.Retryable(err)
}
