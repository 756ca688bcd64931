package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// A live work also waits until objects are gone: those that left its spec, and deleted objects of its manifests,
// which are created again afterwards. After stuckAfter the status shows what blocks their removal.

// hangs has the objects that a live work waits for. The zero value means none.
type hangs struct {
	// since is when objects to remove were first found, zero while there are none. why is what blocks that, "" if
	// unknown.
	since time.Time
	why   string
	// ending has the deleted objects of manifests.
	ending map[kubeclient.Ref]ending
}

// ending is an object that is being deleted. since is when that was first seen, why is what blocks the deletion.
type ending struct {
	since time.Time
	why   string
}

// noteRemoval records the remaining objects to remove, as they were read, and the error of their removal.
func (h *hangs) noteRemoval(remaining []appliedwork.Entry, seen map[workv1.ResourceIdentifier]*unstructured.Unstructured, err error, now time.Time) {
	h.why = whatKeeps(remaining, seen, now)
	switch {
	case len(remaining) == 0:
		h.since = time.Time{}
		return
	case h.since.IsZero():
		h.since = now
	}
	if err != nil {
		h.why = fmt.Sprintf(formatLeft, conditions.Reasoned(strings.ReplaceAll(explained(err).Error(), "\n", "; ")), len(remaining))
	}
}

// noteEnding records which objects of manifests are being deleted. An object that was not read is unchanged.
func (h *hangs) noteEnding(results []apply.Result, now time.Time) {
	before := h.ending
	h.ending = nil
	for _, res := range results {
		e, was := before[res.Ref]
		switch {
		case !res.Resolved || res.Config.Strategy.Type == workv1.UpdateStrategyTypeReadOnly:
			continue
		case res.Live != nil && res.Live.GetDeletionTimestamp() == nil, res.Presence == conditions.Absent, res.Live == nil && !was:
			continue
		case !was:
			e.since = now
		}
		if res.Live != nil {
			e.why = keeps(res.Live, now)
		}
		if h.ending == nil {
			h.ending = map[kubeclient.Ref]ending{}
		}
		h.ending[res.Ref] = e
	}
}

// ends returns why the object of a manifest stays in deletion; nil if it exists or stuckAfter has not passed.
func (h *hangs) ends(ref kubeclient.Ref, now time.Time) error {
	if e, has := h.ending[ref]; has && e.why != "" && now.Sub(e.since) >= stuckAfter {
		return errors.New("the object is being deleted and will be created again when it is gone: it " + e.why)
	}
	return nil
}

// report adds to the status of a live work what blocks the removal of objects, after stuckAfter.
func (h *hangs) report(w *desired.Work, status workv1.ManifestWorkStatus, now time.Time) workv1.ManifestWorkStatus {
	if w.Deleting || h.why == "" || now.Sub(h.since) < stuckAfter {
		return status
	}
	return conditions.WithRemovalBlocked(status, w.Generation, h.since, h.why)
}

// due returns when to report next, 0 if there is nothing to report.
func (h *hangs) due(now time.Time) (next time.Duration) {
	if !h.since.IsZero() {
		next = max(0, h.since.Add(stuckAfter).Sub(now))
	}
	for _, e := range h.ending {
		next = sooner(next, max(0, e.since.Add(stuckAfter).Sub(now)))
	}
	return next
}

// awaitRecord waits for the objects of a deleted record, and reports in the status of the work what blocks it.
func awaitRecord(r *reconciliation, w *desired.Work) (time.Duration, error) {
	if r.record != nil {
		r.hangs.noteRemoval(r.record.Entries(), r.recorder.seen, nil, r.now)
	}
	next := sooner(r.hangs.due(r.now), r.removalWait())
	if r.about != w.ResourceID { // there is no status to add it to
		return next, nil
	}
	return next, r.report(w, r.previous(w))
}
