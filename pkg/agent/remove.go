package agent

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// removeWorks removes the objects and records of deleted works of one name, and confirms when none is left.
func (r *reconciliation) removeWorks(ctx context.Context, works []*desired.Work) (time.Duration, error) {
	if err := r.recorder.loadRecord(ctx); err != nil {
		return 0, errors.Join(err, unremoved(r, onlyOne(works), err))
	}
	owner := ownerOf(r.record, works)
	if owner != nil && !r.mayDelete(owner) {
		return r.forgetUnrepeated(ctx, owner), nil // the confirmation of the work wakes the key
	}
	if owner != nil {
		if err := r.report(owner, conditions.Deleting(r.previous(owner), owner.Generation, nil, r.now)); err != nil {
			return 0, err
		}
		gone, err := r.recorder.dissolve(ctx, staysAfter(owner))
		if !gone && (err != nil || r.removals > 0) { // the objects of most works are gone at the second reconciliation
			if err != nil {
				r.hindrance.halted(err)
			}
			err = errors.Join(err, r.reportDeletion(ctx, owner))
		}
		if err != nil {
			return 0, err
		}
		if !gone {
			return r.removalWait(), nil
		}
	}
	for _, w := range works {
		if err := r.confirm(w); err != nil {
			return 0, err
		}
	}
	r.removed()
	return 0, nil
}

// ownerOf returns the deleted work that a record belongs to; nil if it belongs to another work or does not
// exist. A record without an origin was created by another agent and belongs to the work of its name.
func ownerOf(rec *appliedwork.Record, works []*desired.Work) *desired.Work {
	if rec == nil {
		return nil
	}
	for _, w := range works {
		if id := rec.WorkID(); id == "" || id == w.ResourceID {
			return w
		}
	}
	return nil
}

// onlyOne returns the deleted work of a name; nil if there are several.
func onlyOne(works []*desired.Work) *desired.Work {
	if len(works) != 1 {
		return nil
	}
	return works[0]
}

// staysAfter returns a function that reports which objects must outlive the work, according to its last known
// spec.
func staysAfter(w *desired.Work) func(appliedwork.Entry) bool {
	if w.Spec == nil {
		return nil
	}
	return func(e appliedwork.Entry) bool { return !apply.IsOwned(w.Spec.DeleteOption, e.ResourceIdentifier) }
}

// confirm reports that nothing of a deleted work is left.
func (r *reconciliation) confirm(w *desired.Work) error {
	return r.put(w, r.clearReported(w), true)
}

// clearOldName removes the objects of a work under its old name, after all are applied under the new one.
func (r *reconciliation) clearOldName(ctx context.Context, id string) (time.Duration, error) {
	r.mu.Lock()
	w := r.set.Get(id)
	ready := w == nil || w.Deleting
	if !ready {
		s := r.states[r.keyOf(w.Name)]
		ready = s != nil && s.asWanted && s.applied == specOf(w)
	}
	r.mu.Unlock()
	if !ready {
		return renameWait, nil
	}
	if err := r.recorder.loadRecord(ctx); err != nil {
		return 0, err
	}
	if r.record != nil && r.record.WorkID() == id {
		gone, err := r.recorder.dissolve(ctx, nil)
		if err != nil {
			return 0, err
		}
		if !gone {
			return r.removalWait(), nil
		}
	}
	name, _ := r.workName(r.key)
	r.mu.Lock()
	r.set.ForgetName(name)
	r.review(name)
	r.mu.Unlock()
	return 0, nil
}

// finish handles an AppliedManifestWork that no work claims. If it is being deleted, finish completes the
// deletion and removes its objects. Otherwise finish evicts it if it is a verified orphan.
func (r *reconciliation) finish(ctx context.Context) (time.Duration, error) {
	if err := r.recorder.loadRecord(ctx); err != nil {
		return 0, err
	}
	ours := r.record != nil && r.record.AgentID() == r.config.AgentID
	r.mu.Lock()
	r.orphans.noteForeign(r.key, r.record)
	if !ours {
		r.orphans.ignore(r.key, r.record)
	}
	r.mu.Unlock()
	if !ours {
		return 0, nil
	}
	if !r.record.Deleting() {
		return r.examine(ctx)
	}
	if !r.record.HasFinalizer() {
		return 0, nil
	}
	gone, err := r.recorder.removeAll(ctx, nil)
	if err != nil || gone {
		return 0, err
	}
	return r.removalWait(), nil
}
