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

// A live work waits for objects to go, too: those that it has no more, and its own that somebody
// deleted, which are made anew after. What keeps them is told after stuckAfter.

// hangs is what a live work waits for. The zero value is nothing.
type hangs struct {
	// since is when the first look found objects that have to go, zero while there are none;
	// why says what keeps them, "" if that is not known.
	since time.Time
	why   string
	// ending are the objects of manifests that somebody deleted.
	ending map[kubeclient.Ref]ending
}

// ending is an object that is being deleted: since when that is known, and what keeps it.
type ending struct {
	since time.Time
	why   string
}

// noteRemoval takes what is left of the objects that have to go, as they were read, and why they
// could not be removed.
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

// noteEnding takes the results of the manifests. An object that was not read is as it was.
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

// ends is why the object of a manifest is not there for good; nil if it is, or goes in time.
func (h *hangs) ends(ref kubeclient.Ref, now time.Time) error {
	if e, has := h.ending[ref]; has && e.why != "" && now.Sub(e.since) >= stuckAfter {
		return errors.New("the object is being deleted, and made anew when it is gone: it " + e.why)
	}
	return nil
}

// report adds to the status of a live work what keeps the objects that have to go, once that takes long.
func (h *hangs) report(w *desired.Work, status workv1.ManifestWorkStatus, now time.Time) workv1.ManifestWorkStatus {
	if w.Deleting || h.why == "" || now.Sub(h.since) < stuckAfter {
		return status
	}
	return conditions.RemovalWaits(status, w.Generation, h.since, h.why)
}

// due is when to look again in order to tell, 0 if there is nothing to tell, or it was told.
func (h *hangs) due(now time.Time) (next time.Duration) {
	if !h.since.IsZero() {
		next = max(0, h.since.Add(stuckAfter).Sub(now))
	}
	for _, e := range h.ending {
		next = sooner(next, max(0, e.since.Add(stuckAfter).Sub(now)))
	}
	return next
}

// awaitRecord waits for the objects of a record that somebody deleted, and says of the work what keeps them.
func awaitRecord(r *reconciliation, w *desired.Work) (time.Duration, error) {
	if r.record != nil {
		r.hangs.noteRemoval(r.record.Entries(), r.recorder.seen, nil, r.now)
	}
	next := sooner(r.hangs.due(r.now), r.removalWait())
	if r.about != w.ResourceID { // there is no status that this could be added to
		return next, nil
	}
	return next, r.report(w, r.previous(w))
}
