package agent

import (
	"context"

	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// A work that was loaded from the journal and not confirmed since may be out of
// date: the directory may have been restored, another agent may have been at
// work meanwhile. The AppliedManifestWork says what was in force last. A work is
// enforced if it is that, and left alone otherwise; what confirms or replaces it
// wakes its key. Versions say nothing: a work that was made anew under the same
// id counts from one, and a hub that went back in time counts again.

// backed reports whether a work may be applied: it is confirmed, or was applied
// last.
func (r *round) backed(ctx context.Context, w *desired.Work) (bool, error) {
	if !r.doubted[w.ResourceID] {
		return true, nil
	}
	if err := r.loadRecord(ctx); err != nil || r.record == nil || r.record.Deleting() || r.record.AgentID() != r.config.AgentID {
		return false, err
	}
	o, known := r.record.Origin()
	return known && o.WorkID == w.ResourceID && o.Tag == w.SpecTag.String(), nil
}

// deletable reports whether the objects of a deleted work, about which the
// record is, may be removed: the deletion is confirmed, or had begun, or what was
// applied last is what was deleted.
func (r *round) deletable(w *desired.Work) bool {
	if !r.doubted[w.ResourceID] {
		return true
	}
	o, known := r.record.Origin()
	return r.record.AgentID() == r.config.AgentID && (r.record.Deleting() || known && o.Tag == w.SpecTag.String())
}
