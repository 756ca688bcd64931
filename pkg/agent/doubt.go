package agent

import (
	"context"

	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// A work that was loaded from the journal and not confirmed since may be out of
// date: the directory may have been restored, another agent may have been at
// work meanwhile. The AppliedManifestWork says what was in force last. A work is
// enforced as long as that speaks for it, and left alone otherwise; what
// confirms or replaces it wakes its key.

// backed reports whether a work may be applied: it is confirmed, or an earlier
// spec of it was applied, or this one, and nothing else since.
func (r *round) backed(ctx context.Context, w *desired.Work) (bool, error) {
	if !r.doubted[w.ResourceID] {
		return true, nil
	}
	if err := r.loadRecord(ctx); err != nil || r.record == nil || r.record.Deleting() || r.record.AgentID() != r.config.AgentID {
		return false, err
	}
	o, known := r.record.Origin()
	switch {
	case !known || o.WorkID != w.ResourceID:
		return false, nil
	case o.Version == w.SpecGeneration: // another spec of one version may be the later or the earlier
		return o.Tag == w.SpecTag.String(), nil
	}
	return o.Version < w.SpecGeneration, nil
}

// deletable reports whether the objects of a deleted work, about which the
// record is, may be removed: the deletion is confirmed, or what was applied last
// was not made anew after it.
func (r *round) deletable(w *desired.Work) bool {
	if !r.doubted[w.ResourceID] {
		return true
	}
	o, known := r.record.Origin()
	return known && r.record.AgentID() == r.config.AgentID && o.Version <= w.Generation
}
