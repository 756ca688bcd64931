package hubsource

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"
	workv1alpha1 "open-cluster-management.io/api/work/v1alpha1"
)

// longestTTL is a time to live that nobody waits for; longer ones could not be
// added to a time.
const longestTTL = 100 * 365 * 24 * time.Hour

// DeleteCompleted deletes a work whose time has passed since it completed. It is
// refused with a conflict when the work is not what it was then.
type DeleteCompleted struct{ Work *workv1.ManifestWork }

func (DeleteCompleted) effect() {}

// expiry returns when a work is to be deleted because it has completed: the time
// at which it completed and its time to live. What a ManifestWorkReplicaSet made
// it looks after itself.
//
// Everything is read off the work, so that any leader comes to the same end.
func expiry(o *workv1.ManifestWork) (at time.Time, expires bool) {
	d := o.Spec.DeleteOption
	if d == nil || d.TTLSecondsAfterFinished == nil || o.DeletionTimestamp != nil {
		return at, false
	}
	if _, owned := o.Labels[workv1alpha1.ManifestWorkReplicaSetControllerNameLabelKey]; owned {
		return at, false
	}
	complete := meta.FindStatusCondition(o.Status.Conditions, workv1.WorkComplete)
	ttl := *d.TTLSecondsAfterFinished
	if complete == nil || complete.Status != "True" || ttl > int64(longestTTL/time.Second) {
		return at, false
	}
	return complete.LastTransitionTime.Add(time.Duration(max(ttl, 0)) * time.Second), true
}

// expires returns when this source is to delete a work, if it is. A report that
// waits may say that the work is not complete any more, so it is written first.
func (c *Core) expires(w *work, o *workv1.ManifestWork) (at time.Time, expires bool) {
	if !c.cfg.CleanUp || w.report.pending != nil || !c.clusters[w.cluster].selected {
		return at, false
	}
	return expiry(o)
}

// nextCleanUp decides whether a work that has nothing else to be written has had
// its time.
func (c *Core) nextCleanUp(w *work, o *workv1.ManifestWork) Effect {
	at, expires := c.expires(w, o)
	if !expires {
		return nil
	}
	if d := at.Sub(c.cfg.Now()); d > 0 {
		c.wake(HubLane, w, d)
		return nil
	}
	if !c.due(HubLane, Key{UID: w.uid}, &w.report.retry) {
		return nil
	}
	w.report.busy = true
	return DeleteCompleted{Work: o}
}

func (c *Core) doneDeleteCompleted(e DeleteCompleted, r Result) {
	w := c.works[e.Work.UID]
	w.report.busy = false
	switch done := r.Err == nil || apierrors.IsNotFound(r.Err); {
	case done && c.current(w).ResourceVersion == e.Work.ResourceVersion:
		// The informer is about to show what has become of it.
		w.report.retry = retry{notBefore: c.cfg.Now().Add(echoTimeout), onChange: true}
		c.wake(HubLane, w, echoTimeout)
	case done:
		w.report.retry = retry{}
		c.wake(HubLane, w, 0)
	default:
		c.hubFailed(HubLane, Key{UID: w.uid}, &w.report.retry, r.Err)
	}
	c.afterHub(w)
}
