package agent

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// A work that was loaded from the journal and not confirmed since may be outdated. The directory may have been
// restored, or another agent may have run in the meantime. The AppliedManifestWork stores the spec that was
// last in force. A work is enforced if it has that spec, and otherwise left alone. A confirmation or a new spec
// wakes its key. Versions prove nothing: a work that was created again under the same id starts at one, and a
// restored hub counts again.

// mayEnforce reports whether a work may be applied: it is confirmed, or was applied last.
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

// mayDelete reports whether the objects of the deleted work of the record may be removed. They may if the
// deletion is confirmed or had begun, or if the spec that was applied last is the deleted one.
func (r *reconciliation) mayDelete(w *desired.Work) bool {
	if !r.unconfirmed[w.ResourceID] {
		return true
	}
	o, known := r.record.Origin()
	return r.record.AgentID() == r.config.AgentID && (r.record.Deleting() || known && o.Tag == w.SpecTag.String())
}

// forgetUnrepeated forgets a loaded deletion that may not be executed and is not sent again. A broker repeats
// each unconfirmed deletion at every subscription, before the checkpoint that proves the agent in sync.
//
// Scenario:
//
//	t1: the agent confirms a deletion; the broker removes the record.
//	t2: the id is used again, and the new work is applied.
//	t3: a power loss takes the journal back to before t2.
//	t4: the agent loads the deletion and is in sync; no event mentions it again.
//
// Without this function it stays for ever. The AppliedManifestWork is then subject to eviction.
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
	r.log.InfoContext(ctx, "forgetting a deletion of an earlier process that the broker does not repeat", "work", w.Name, "id", w.ResourceID)
	return firstSaveRetry // after that, its AppliedManifestWork is an orphan
}
