package agent

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// A work that was loaded from the journal and not confirmed since may be out of
// date: the directory may have been restored, another agent may have been at
// work meanwhile. The AppliedManifestWork says what was in force last. A work is
// enforced if it is that, and left alone otherwise; what confirms or replaces it
// wakes its key. Versions say nothing: a work that was made anew under the same
// id counts from one, and a hub that went back in time counts again.

// mayEnforce reports whether a work may be applied: it is confirmed, or was applied
// last.
func (r *reconciliation) mayEnforce(ctx context.Context, w *desired.Work) (bool, error) {
	if !r.unconfirmed[w.ResourceID] {
		return true, nil
	}
	if err := r.recorder.loadRecord(ctx); err != nil || r.record == nil || r.record.Deleting() || r.record.AgentID() != r.config.AgentID {
		return false, err
	}
	o, known := r.record.Origin()
	return known && o.WorkID == w.ResourceID && o.Tag == w.SpecTag.String(), nil
}

// mayDelete reports whether the objects of a deleted work, about which the
// record is, may be removed: the deletion is confirmed, or had begun, or what was
// applied last is what was deleted.
func (r *reconciliation) mayDelete(w *desired.Work) bool {
	if !r.unconfirmed[w.ResourceID] {
		return true
	}
	o, known := r.record.Origin()
	return r.record.AgentID() == r.config.AgentID && (r.record.Deleting() || known && o.Tag == w.SpecTag.String())
}

// forgetUnrepeated forgets a deletion that was loaded, may not be carried out, and
// is not coming again. A broker repeats each deletion that its cluster has not
// confirmed at every subscription, before the checkpoint that proves the agent in
// sync.
//
// t1 the agent confirms a deletion, and the broker lets the record go. t2 the same
// id is used once more, and what is applied now is of that life. t3 a power loss
// takes the journal back behind t2. t4 the agent loads the deletion, is in sync, and
// nobody ever speaks of it again. Therefore it would be held for ever. What its
// AppliedManifestWork has becomes a matter of eviction.
func (r *reconciliation) forgetUnrepeated(ctx context.Context, w *desired.Work) (next time.Duration) {
	r.mu.Lock()
	unrepeated := r.orphans.subscription.inSync && r.set.Unconfirmed(w.ResourceID)
	if unrepeated {
		r.persister.forget(w.ResourceID)
	}
	r.mu.Unlock()
	if !unrepeated {
		return 0
	}
	r.save(0)
	r.log.InfoContext(ctx, "deletion of an earlier process that the broker does not repeat is forgotten", "work", w.Name, "id", w.ResourceID)
	return firstSaveRetry // its AppliedManifestWork is a stray then
}
