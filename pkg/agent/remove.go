package agent

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/cluster"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/inventory"
)

// removeWorks removes everything of deleted works of one name, and says so when
// nothing is left.
func (r *reconciliation) removeWorks(ctx context.Context, works []*desired.Work) (time.Duration, error) {
	if err := r.loadRecord(ctx); err != nil {
		return 0, err
	}
	owner := ownerOf(r.record, works)
	if owner != nil && !r.deletable(owner) {
		return r.forgetUnrepeated(ctx, owner), nil // what confirms it wakes the key
	}
	if owner != nil {
		if err := r.report(owner, conditions.Deleting(r.previous(owner), owner.Generation, nil, r.now)); err != nil {
			return 0, err
		}
		gone, err := r.dissolve(ctx, staysAfter(owner))
		if !gone && (err != nil || r.removals > 0) { // most works are gone at the second look
			err = errors.Join(err, r.reportParting(ctx, owner))
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
	r.removals = 0
	return 0, nil
}

// ownerOf returns the deleted work that a record is about; nil if it is about
// another one, or there is none. A record that says nothing was made by another
// agent and is about the work of its name.
func ownerOf(rec *inventory.Record, works []*desired.Work) *desired.Work {
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

// staysAfter says which objects the work wants to outlive it, as far as its last
// spec is known.
func staysAfter(w *desired.Work) func(inventory.Entry) bool {
	if w.Spec == nil {
		return nil
	}
	return func(e inventory.Entry) bool { return !apply.Owned(w.Spec.DeleteOption, e.ResourceIdentifier) }
}

// confirm reports that nothing of a deleted work is left.
func (r *reconciliation) confirm(w *desired.Work) error {
	last := r.previous(w)
	if r.about == w.ResourceID {
		r.status, r.about = workv1.ManifestWorkStatus{}, "" // what is made anew begins anew
	}
	return r.put(w, last, true)
}

// clearOldName removes what a work left behind under a name it no longer has,
// once everything is there under the new one.
func (r *reconciliation) clearOldName(ctx context.Context, id string) (time.Duration, error) {
	r.mu.Lock()
	w := r.set.Get(id)
	ready := w == nil || w.Deleting
	if !ready {
		s := r.states[r.Core.key(w.Name)]
		ready = s != nil && s.asWanted && s.applied == specOf(w)
	}
	r.mu.Unlock()
	if !ready {
		return renameWait, nil
	}
	if err := r.loadRecord(ctx); err != nil {
		return 0, err
	}
	if r.record != nil && r.record.WorkID() == id {
		gone, err := r.dissolve(ctx, nil)
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
	r.view = r.set.ByName(name)
	r.mu.Unlock()
	return 0, nil
}

// finish is for an AppliedManifestWork that no work claims: it ends its deletion
// if somebody deleted it, its objects go with it, and evicts it otherwise if
// that is right.
func (r *reconciliation) finish(ctx context.Context) (time.Duration, error) {
	if err := r.loadRecord(ctx); err != nil {
		return 0, err
	}
	r.noteNeighbour()
	if r.record == nil || r.record.AgentID() != r.config.AgentID {
		r.ignore()
		return 0, nil
	}
	if !r.record.Deleting() {
		return r.examine(ctx)
	}
	if !r.record.HasFinalizer() {
		return 0, nil
	}
	gone, err := r.removeAll(ctx, nil)
	if err != nil || gone {
		return 0, err
	}
	return r.removalWait(), nil
}

// ignore remembers that an AppliedManifestWork is gone, or another agent's.
func (r *reconciliation) ignore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.record == nil {
		delete(r.strays, r.key)
		return
	}
	r.strays[r.key] = stray{uid: r.record.Metadata().GetUID(), source: r.strays[r.key].source}.after(readAnothers)
}

// dissolve deletes the record and everything on it.
func (r *reconciliation) dissolve(ctx context.Context, orphan func(inventory.Entry) bool) (gone bool, err error) {
	if r.record == nil {
		return true, nil
	}
	if !r.record.Deleting() {
		rec, err := r.store.AddFinalizer(ctx, r.record)
		if err != nil {
			return false, r.forgetRecord(err)
		}
		r.record = rec
		if err := r.spare(ctx, orphan); err != nil {
			return false, err
		}
		if r.record, err = r.store.Delete(ctx, r.record); err != nil {
			return false, r.forgetRecord(err)
		}
		if r.record == nil {
			return true, nil
		}
	}
	return r.removeAll(ctx, orphan)
}

// spare lets go of the objects that are to outlive the work, as long as the
// record stands: an agent that finds one being deleted after a restart, and
// does not know the work any more, removes all that is on it.
func (r *reconciliation) spare(ctx context.Context, orphan func(inventory.Entry) bool) error {
	if orphan == nil {
		return nil
	}
	var spared, rest []inventory.Entry
	for _, e := range r.record.Entries() {
		if orphan(e) {
			spared = append(spared, e)
		} else {
			rest = append(rest, e)
		}
	}
	r.known = map[cluster.Ref]remembered{}
	failed, removeErr := r.remover.Remove(ctx, spared, r.record.Owner(), orphan)
	rec, err := r.store.SetEntries(ctx, r.record, append(rest, failed...))
	if err != nil {
		return r.forgetRecord(err)
	}
	r.record = rec
	return removeErr
}

// removeAll removes the objects of a record that is being deleted, and lets go
// of it when none is left. Objects that are not gone yet wake the key when they
// are.
func (r *reconciliation) removeAll(ctx context.Context, orphan func(inventory.Entry) bool) (gone bool, err error) {
	r.known = map[cluster.Ref]remembered{}
	entries := r.record.Entries()
	expected := map[cluster.Ref]drift.Signature{inventory.Ref(r.key): drift.Unknown}
	for _, e := range entries {
		expected[inventory.RefOf(e)] = drift.Unknown
	}
	r.config.Tracker.Track(r.key, expected)
	remover := r.remover
	remover.Saw = func(e inventory.Entry, live *unstructured.Unstructured) { r.saw(e, live) }
	remaining, removeErr := remover.Remove(ctx, entries, r.record.Owner(), orphan)
	if removeErr != nil {
		r.log.WarnContext(ctx, "objects cannot be removed: the work stays until they are", "error", removeErr)
	}
	rec, err := r.store.SetEntries(ctx, r.record, remaining)
	if err != nil {
		return false, r.forgetRecord(err)
	}
	r.record = rec
	if removeErr != nil {
		return false, removeErr
	}
	if len(remaining) > 0 {
		return false, nil
	}
	if gone, err = r.store.RemoveFinalizer(ctx, rec); err != nil || !gone {
		return false, r.forgetRecord(err)
	}
	r.record = nil
	r.config.Tracker.Track(r.key, nil)
	r.mu.Lock()
	r.applied = ""
	delete(r.strays, r.key)
	r.reviseUnexplained()
	r.mu.Unlock()
	return true, nil
}
