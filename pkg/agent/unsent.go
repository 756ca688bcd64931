package agent

import (
	"errors"
	"slices"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// slowRetry is the retry wait of a work with unsent requests. A request that was not sent because earlier ones
// are slow proves nothing about its object, so the conditions of the object stay. The work is woken when its
// request may be sent. It also retries after slowRetry plus a random time up to slowRetry, so that works do not
// retry all at once.
const slowRetry = 15 * time.Second

// unsent is the state of the requests of a work that were not sent.
type unsent struct {
	// since is when the first request was not sent, zero while there are none. before: the previous
	// reconciliation had unsent requests, so a write now is no repair.
	since  time.Time
	before bool
	// fails is the kind for which the cluster gives no answers, "" if it answers.
	fails string
}

// note records the results of the manifests.
func (u *unsent) note(results []apply.Result, now time.Time) {
	u.before, u.fails = !u.since.IsZero(), ""
	if !slices.ContainsFunc(results, slow) {
		u.since = time.Time{}
		return
	}
	if u.since.IsZero() {
		u.since = now
	}
	for _, res := range results {
		if e := notSent(res); e != nil && e.Fails {
			u.fails = e.What
		}
	}
}

// report adds to a status that the work has waited long, if the cluster gives no answers.
func (u *unsent) report(w *desired.Work, status workv1.ManifestWorkStatus, now time.Time) workv1.ManifestWorkStatus {
	if u.late(now) {
		return conditions.WithReconcileSlow(status, w.Generation, u.since, u.fails)
	}
	return status
}

// late reports whether the work has waited for veryslowAfter and the cluster gives no answers.
func (u *unsent) late(now time.Time) bool { return u.fails != "" && now.Sub(u.since) >= veryslowAfter }

// slow reports whether the request for an object was not sent because earlier ones are slow. This is no failure
// of the work and does not increase its back-off.
func slow(res apply.Result) bool { return notSent(res) != nil }

func notSent(res apply.Result) (e *kubeclient.SlowError) {
	if errors.As(res.Err, &e) || res.Err == nil && errors.As(res.ReadErr, &e) {
		return e
	}
	return nil
}

// slowWait returns when to retry objects whose requests were not sent, 0 if there are none.
func slowWait(results []apply.Result, random func() float64) time.Duration {
	if !slices.ContainsFunc(results, slow) {
		return 0
	}
	return slowRetry + time.Duration(random()*float64(slowRetry))
}
