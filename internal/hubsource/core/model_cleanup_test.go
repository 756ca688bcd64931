package core

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"
)

// The file adds completed works to the model.

// setTTL sets or removes the time to live of a work.
func (w *world) setTTL(key string) {
	seconds := rapid.SampledFrom([]int64{-1, 0, 3, 3600}).Draw(w.t, "seconds")
	w.change(key, func(o *workv1.ManifestWork) {
		o.Generation++
		if o.Spec.DeleteOption = nil; seconds >= 0 {
			ttl(seconds)(o)
		}
	})
}

// toggleComplete changes whether the agent reports a work as complete.
func (w *world) toggleComplete(uid types.UID) {
	c := w.complete[uid]
	c.Type, c.Reason, c.LastTransitionTime = workv1.WorkComplete, "ConditionRulesAggregated", metav1.NewTime(w.now)
	if c.Status = "True"; w.complete[uid].Status == "True" {
		c.Status = "False"
	}
	w.complete[uid] = c
	w.records[uid].reported = false
}

// expire executes a deletion by hub-source. It fails unless the work on the hub is complete now and past its
// time to live.
func (w *world) expire(o *workv1.ManifestWork) {
	at, expires := expiry(o)
	if !expires || at.After(w.now) {
		w.t.Fatalf("deleted %s/%s at %s: %+v %+v", o.Namespace, o.Name, w.now, o.Spec.DeleteOption, o.Status.Conditions)
	}
	o.Generation++
	o.DeletionTimestamp = &metav1.Time{Time: w.now}
}

// outlived reports whether a work should have been deleted after its time to live.
func outlived(o *workv1.ManifestWork) bool {
	_, expires := expiry(o)
	return expires && o.DeletionTimestamp == nil
}
