package agent

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// reportDeletion reports the objects of a deleted work while it waits for them. The hub then shows which
// objects are left, and what blocks their removal if the work requests that. A reconciliation reads no object twice, and
// does not look again for an object that is gone.
func (r *reconciliation) reportDeletion(ctx context.Context, w *desired.Work) error {
	last := r.previous(w)
	if w.Spec == nil {
		return r.report(w, conditions.WithDeletionBlocked(conditions.Deleting(last, w.Generation, nil, r.now), r.recorder.waitsFor(last)))
	}
	manifests := r.load(ctx, w)
	if slices.ContainsFunc(manifests, func(m apply.Manifest) bool { return observed(m.Config) }) {
		r.rights.actFor(w.Spec.Executor)
	}
	reported := make([]conditions.Manifest, 0, len(manifests))
	present := map[kubeclient.Ref]drift.Signature{}
	for i, m := range manifests {
		res := r.deletionStatus(ctx, m, last)
		if res.Presence == conditions.Present {
			present[res.Ref] = drift.Unknown
		}
		reported = append(reported, r.reportedStatus(ctx, i, res))
	}
	r.rights.noteRefusals(nil)
	if r.record != nil { // objects that stay may change too
		present[appliedwork.Ref(r.key)] = drift.Unknown
		for _, e := range r.record.Entries() {
			present[appliedwork.RefOf(e)] = drift.Unknown
		}
		r.config.Tracker.Track(r.key, present)
	}
	r.mu.Lock()
	r.looks.note(r.now) // an object that changes all the time is read at a limited rate
	r.mu.Unlock()
	return r.report(w, conditions.WithDeletionBlocked(conditions.Deleting(last, w.Generation, reported, r.now), r.recorder.waitsFor(last)))
}

// deletionStatus returns the state of the object of one manifest.
func (r *reconciliation) deletionStatus(ctx context.Context, m apply.Manifest, last workv1.ManifestWorkStatus) apply.Result {
	res := apply.Result{Manifest: m, Action: apply.Reject, Presence: conditions.Unidentified}
	if res.ReadErr = m.Forbidden(); res.ReadErr != nil {
		res.Presence = conditions.Unreadable
		return res
	}
	before := reportedOf(last, m.Meta)
	if before != nil {
		res.Meta = before.ResourceMeta // the kind may be gone, and with it the name of the resource
	}
	live, seen := r.recorder.seen[res.ID()]
	switch {
	case seen:
		res.Presence, res.Live = conditions.Absent, live
		if live != nil {
			res.Presence = conditions.Present
		}
	case !m.Resolved && before == nil:
		return res
	case !m.Resolved || before != nil && wasGone(*before):
		res.Presence = conditions.Absent
	default:
		readDeletion(ctx, r.config.Client, &res)
	}
	if res.Err = nil; res.Live != nil && m.Resolved && observed(m.Config) {
		if res.Err = r.config.Guard.Object(ctx, m.ID(), res.Live); res.Err == nil {
			res.Err = r.rights.permitted(ctx, m, true) // the object is only reported; see hides
		}
	}
	return res
}

// readDeletion reads the object of a manifest unless this reconciliation has read it.
func readDeletion(ctx context.Context, c kubeclient.Client, res *apply.Result) {
	live, err := c.Get(ctx, res.Ref)
	switch {
	case err == nil:
		res.Presence, res.Live = conditions.Present, live
	case apierrors.IsNotFound(err) || errors.As(err, new(*kubeclient.NotServedError)):
		res.Presence = conditions.Absent
	default:
		res.Presence, res.ReadErr = conditions.Unreadable, err
	}
}

// reportedOf returns the manifest condition of a status for a known resource; nil if there is none.
func reportedOf(s workv1.ManifestWorkStatus, m workv1.ManifestResourceMeta) *workv1.ManifestCondition {
	for i, e := range s.ResourceStatus.Manifests {
		meta := e.ResourceMeta
		if m.Resource == "" {
			meta.Resource = ""
		}
		if meta == m && e.ResourceMeta.Resource != "" {
			return &s.ResourceStatus.Manifests[i]
		}
	}
	return nil
}

// wasGone reports whether the object of a manifest was found absent.
func wasGone(e workv1.ManifestCondition) bool {
	c := apimeta.FindStatusCondition(e.Conditions, workv1.ManifestAvailable)
	return c != nil && c.Reason == conditions.ReasonResourceNotAvailable
}
