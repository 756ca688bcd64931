package sim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// refusal describes statuses of one work that the hub refuses. It lasts until the operation comes again, or the
// script ends.
type refusal struct {
	work   types.UID
	text   string
	reason string    // the reason in the condition Delivered
	last   time.Time // when the hub refused one; zero: never
}

// requestedWithin is the longest time until hub-source requests the status again after a refusal.
const requestedWithin = 80 * time.Minute

// refuseStatus makes the hub refuse the statuses of a work, or ends that.
func refuseStatus(w *world, a, b uint32) string {
	if w.hub.allow() {
		return "no longer"
	}
	keys := slices.DeleteFunc(w.hub.keys(), func(key string) bool {
		return w.hub.works[key].Namespace == agentlessCluster || w.hub.works[key].DeletionTimestamp != nil
	})
	if len(keys) == 0 {
		return ""
	}
	key := keys[int(a)%len(keys)]
	r := &refusal{w.hub.works[key].UID, "etcdserver: request is too large", core.ReasonStatusTooLarge, time.Time{}}
	if b%2 == 0 {
		r.text, r.reason = "failed calling webhook", core.ReasonStatusRejected // only a repetition reveals it
	}
	w.hub.refuses = r
	if b/2%2 == 0 {
		w.hub.update(key, b/4)
	}
	return fmt.Sprintf("of %s %s: %s", key, r.work, r.text)
}

// refused is the answer to a status that the hub refuses. It accepts a status with only the condition
// Delivered.
func (h *hub) refused(e core.PatchStatus) error {
	live, err := h.get(e.Work.Namespace, e.Work.Name)
	if err != nil {
		return err
	}
	if h.refuses == nil || live.UID != h.refuses.work || live.ResourceVersion != e.Work.ResourceVersion || statusHash(live.Status) == statusHash(e.Status) {
		return nil
	}
	h.refuses.last = time.Now()
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: h.refuses.text}}
}

// allow ends a refusal.
func (h *hub) allow() bool {
	r := h.refuses
	if h.refuses = nil; r != nil && r.last.After(h.allowed) {
		h.allowed = r.last
	}
	return r != nil
}

// settles is the time until everything lost or refused was sent again.
func (w *world) settles() time.Duration {
	return max(w.shape.settles, time.Until(w.hub.allowed.Add(requestedWithin)))
}

// checkRefused judges the state while the hub refuses a status, and after a restart of hub-source. Then the
// refusal ends. Reports of other works meanwhile show that something is wrong with this one.
func (w *world) checkRefused(order *rand.Rand) {
	for restart := range 2 {
		if w.hub.refuses == nil || w.hub.refuses.last.IsZero() || restart > 0 && w.hub.onlySeen {
			break
		}
		if restart > 0 {
			w.note("> hub-source restarts")
			w.source.restart(w.hub.informer(0))
			w.settleAll(order)
		}
		w.note("> another work reports")
		if w.hub.create(clusters[0], "other", uint32(restart)) == nil {
			w.hub.update(clusters[0]+"/other", uint32(restart))
		}
		w.settleAll(order)
		w.check()
	}
	if w.hub.allow() {
		w.note("> the hub refuses no status any more")
		w.settleAll(order)
	}
}

// reportsRefused reports whether the hub correctly shows that it refused the last status of a work.
func (w *world) reportsRefused(o *workv1.ManifestWork, d *metav1.Condition) bool {
	r, all := w.hub.refuses, w.oracle.reports[string(o.UID)]
	return r != nil && r.work == o.UID && d.Reason == r.reason && d.ObservedGeneration == o.Generation && len(all) > 0 && all[len(all)-1] != statusHash(o.Status)
}

// isDelivered reports whether the hub shows no problem that keeps a work from its cluster.
func isDelivered(o *workv1.ManifestWork) bool {
	d := meta.FindStatusCondition(o.Status.Conditions, core.ConditionDelivered)
	return d == nil || d.Status == metav1.ConditionTrue || d.Reason == core.ReasonStatusTooLarge || d.Reason == core.ReasonStatusRejected
}

// checkCursor checks that the cursor of hub-source has reached everything that the broker sent. No report of
// one work blocks it.
func (w *world) checkCursor() {
	if at := w.source.core.Hello().Cursor; w.stateless == nil && at != w.source.sent {
		w.fail("I6", "the cursor of the hub source is at %s, the broker sent everything up to %s", at, w.source.sent)
	}
}
