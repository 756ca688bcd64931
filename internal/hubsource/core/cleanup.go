package core

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
func (s *statuses) expires(w *work, o *workv1.ManifestWork) (at time.Time, expires bool) {
	if !s.f.CleanUp || w.report.pending != nil || !w.cl.selected {
		return at, false
	}
	return expiry(o)
}

// nextCleanUp decides whether a work that has nothing else to be written has had
// its time.
func (s *statuses) nextCleanUp(w *work, o *workv1.ManifestWork) *todo {
	at, expires := s.expires(w, o)
	if !expires || s.f.until(HubLane, w.key(), at) || !s.f.due(HubLane, w.key(), &w.report.retry) {
		return nil
	}
	return s.f.ofWork(w, DeleteCompleted{Work: o}, func(r Result) { s.doneDeleteCompleted(w, o.ResourceVersion, r) })
}

func (s *statuses) doneDeleteCompleted(w *work, version string, r Result) {
	if r.Err != nil && !apierrors.IsNotFound(r.Err) {
		s.f.hubFailed(HubLane, w.key(), &w.report.retry, r.Err)
		return
	}
	after := time.Duration(0)
	if w.report.retry.reset(); w.hub.object.ResourceVersion == version {
		after = informerLag // the informer is about to show what has become of it
		w.report.retry.wait(s.f.Now().Add(after), true)
	}
	s.f.wake(HubLane, w.key(), after)
}
