package agent

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/pkg/agent/cluster"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/inventory"
)

// claim sees to it that there is an AppliedManifestWork for the work, and that
// it says which spec is about to be applied. ready is false if there is one
// that is being deleted: its objects go first, and are made anew after.
func (r *reconciliation) claim(ctx context.Context, w *desired.Work) (ready bool, err error) {
	origin := inventory.Origin{Source: w.Source, WorkID: w.ResourceID, Version: w.SpecGeneration, Tag: w.SpecTag.String()}
	if r.unheardOf() {
		err := r.createRecord(ctx, w, origin)
		if err == nil || !apierrors.IsAlreadyExists(err) {
			return err == nil, err
		}
	}
	if err := r.loadRecord(ctx); err != nil {
		return false, err
	}
	if r.record != nil && r.record.Deleting() {
		gone, err := r.removeAll(ctx, nil)
		if err != nil || !gone {
			return false, err
		}
	}
	if r.record == nil {
		err := r.createRecord(ctx, w, origin)
		return err == nil, err
	}
	rec, err := r.store.Claim(ctx, r.record, w.Labels, origin)
	if err != nil {
		return false, r.forgetRecord(err)
	}
	r.claimed(rec)
	return true, r.reprieve(ctx, w)
}

// unheardOf reports whether there is likely no AppliedManifestWork: nobody has
// asked, and the watch has told of none.
func (r *reconciliation) unheardOf() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, told := r.strays[r.key]
	return r.record == nil && !r.asked && !told
}

func (r *reconciliation) createRecord(ctx context.Context, w *desired.Work, origin inventory.Origin) error {
	r.asked = true
	r.known = map[cluster.Ref]remembered{}
	rec, err := r.store.Create(ctx, w.Name, w.Labels, origin)
	if err != nil {
		return r.forgetRecord(err)
	}
	r.claimed(rec)
	return nil
}

// claimed notes that a record is that of the work.
func (r *reconciliation) claimed(rec *inventory.Record) {
	r.record = rec
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.strays, r.key)
	delete(r.resolves, r.key)
	r.reviseUnexplained()
}

// loadRecord reads the AppliedManifestWork, unless the watch says that it is as
// it was.
func (r *reconciliation) loadRecord(ctx context.Context) error {
	r.asked = true
	if r.record != nil && !r.full {
		if seen, ok := r.config.Tracker.Seen(inventory.Ref(r.key)); ok && seen.Is(r.recordSignature()) {
			return nil
		}
	}
	rec, err := r.store.Load(ctx, r.key)
	if err != nil {
		return r.forgetRecord(err)
	}
	r.record = rec
	return nil
}

func (r *reconciliation) recordSignature() drift.Signature {
	return drift.SignatureOf(inventory.Resource, r.record.Metadata())
}

// forgetRecord is for errors after which nobody knows what the record is like.
func (r *reconciliation) forgetRecord(err error) error {
	if err != nil {
		r.record = nil
	}
	return err
}
