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

// A request that the cluster was not asked, because others before it take long, says nothing about
// its object: the conditions of that stay. The work is called when its turn comes, and in case it
// never is, looks again after slowRetry, with up to as much again, so that not all works ask at the
// same time.
const slowRetry = 15 * time.Second

// unsent is about the requests of a work that were not sent.
type unsent struct {
	// since is when the first of them was not, zero while there are none; before says that
	// there were some in the reconciliation before, so that a write now is no repair.
	since  time.Time
	before bool
	// fails is the kind that the cluster has no answers for, "" if they come.
	fails string
}

// note takes the results of the manifests.
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

// report adds to a status that the work waits for long, if the cluster has no answers.
func (u *unsent) report(w *desired.Work, status workv1.ManifestWorkStatus, now time.Time) workv1.ManifestWorkStatus {
	if u.late(now) {
		return conditions.Late(status, w.Generation, u.since, u.fails)
	}
	return status
}

// late reports whether the work waits for long, and the cluster has no answers.
func (u *unsent) late(now time.Time) bool { return u.fails != "" && now.Sub(u.since) >= veryslowAfter }

// slow reports whether an object was left alone because the cluster does not answer for its
// kind. That is no failure of the work, whose next try must not be put off further and further.
func slow(res apply.Result) bool { return notSent(res) != nil }

func notSent(res apply.Result) (e *kubeclient.SlowError) {
	if errors.As(res.Err, &e) || res.Err == nil && errors.As(res.ReadErr, &e) {
		return e
	}
	return nil
}

// slowWait is when to try again what the cluster does not answer for, 0 if there is nothing
// of that.
func slowWait(results []apply.Result, random func() float64) time.Duration {
	if !slices.ContainsFunc(results, slow) {
		return 0
	}
	return slowRetry + time.Duration(random()*float64(slowRetry))
}
