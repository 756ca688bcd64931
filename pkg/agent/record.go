package agent

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// recorder reads and writes the AppliedManifestWork of a key, and removes the objects in it.
type recorder struct {
	config *CoreConfig
	*tools
	orphans *orphans
	*keyState
	reconcileInput
	// seen has the objects to remove, as they were read. Its keys ignore the API version. The value is nil if
	// the object does not exist.
	seen map[workv1.ResourceIdentifier]*unstructured.Unstructured
}

// took stores the record after a write; err is the error of the write.
func (r *recorder) took(rec *appliedwork.Record, err error) error {
	if err == nil {
		r.record = rec
	}
	return err
}

// claim creates or updates the AppliedManifestWork of the work with the spec that is about to be applied. ready
// is false if the present one is being deleted: its objects go first and are created again afterwards.
func (r *recorder) claim(ctx context.Context, w *desired.Work) (ready bool, err error) {
	origin := appliedwork.Origin{Source: w.Source, WorkID: w.ResourceID, Version: w.SpecGeneration, Tag: w.SpecTag.String()}
	if r.hasNoReport() {
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
	return true, r.keepWanted(ctx, w)
}

// hasNoReport reports whether there is probably no AppliedManifestWork: it was not read, and the watch has
// shown none.
func (r *recorder) hasNoReport() bool {
	r.orphans.mu.Lock()
	defer r.orphans.mu.Unlock()
	_, reported := r.orphans.found[r.key]
	return r.record == nil && !r.requested && !reported
}

func (r *recorder) createRecord(ctx context.Context, w *desired.Work, origin appliedwork.Origin) error {
	r.requested = true
	r.forgetObjects()
	rec, err := r.store.Create(ctx, w.Name, w.Labels, origin)
	if err != nil {
		return r.forgetRecord(err)
	}
	r.claimed(rec)
	return nil
}

// claimed records that the work owns its record.
func (r *recorder) claimed(rec *appliedwork.Record) {
	r.record = rec
	r.orphans.mu.Lock()
	defer r.orphans.mu.Unlock()
	r.orphans.drop(r.key)
}

// loadRecord reads the AppliedManifestWork, unless the watch shows it as unchanged.
func (r *recorder) loadRecord(ctx context.Context) error {
	r.requested = true
	if r.record != nil && !r.full {
		if seen, ok := r.config.Tracker.LastSeen(appliedwork.Ref(r.key)); ok && seen.Is(r.recordSignature()) {
			return nil
		}
	}
	rec, err := r.store.Load(ctx, r.key)
	if err != nil {
		return r.forgetRecord(err)
	}
	return r.took(rec, nil)
}

func (r *recorder) recordSignature() drift.Signature {
	return drift.SignatureOf(appliedwork.Resource, r.record.Metadata())
}

// forgetRecord drops the record after an error that makes its state unknown.
func (r *recorder) forgetRecord(err error) error {
	if err != nil {
		r.record = nil
	}
	return err
}

// saw records the state of an object that is about to be removed.
func (r *recorder) saw(e appliedwork.Entry, live *unstructured.Unstructured) {
	if r.seen == nil {
		r.seen = map[workv1.ResourceIdentifier]*unstructured.Unstructured{}
	}
	r.seen[e.ResourceIdentifier] = live
}

// dissolve deletes the record and its objects.
func (r *recorder) dissolve(ctx context.Context, orphan func(appliedwork.Entry) bool) (gone bool, err error) {
	if r.record == nil {
		return true, nil
	}
	if !r.record.Deleting() {
		r.takeBack(ctx, orphan)
		if err := r.took(r.store.AddFinalizer(ctx, r.record)); err != nil {
			return false, r.forgetRecord(err)
		}
		if err := r.spare(ctx, orphan); err != nil {
			return false, err
		}
		if err := r.took(r.store.Delete(ctx, r.record)); err != nil {
			return false, r.forgetRecord(err)
		}
		if r.record == nil {
			return true, nil
		}
	}
	return r.removeAll(ctx, orphan)
}

// spare releases the objects that must outlive the work. This happens before the record is deleted: a restarted
// agent without the work would find the record in deletion, and remove all its objects.
func (r *recorder) spare(ctx context.Context, orphan func(appliedwork.Entry) bool) error {
	if orphan == nil {
		return nil
	}
	var kept, rest []appliedwork.Entry
	for _, e := range r.record.Entries() {
		if orphan(e) {
			kept = append(kept, e)
		} else {
			rest = append(rest, e)
		}
	}
	r.forgetObjects()
	failed, removeErr := r.remover.Remove(ctx, kept, r.record.Owner(), orphan)
	if err := r.took(r.store.SetEntries(ctx, r.record, append(rest, failed...))); err != nil {
		return r.forgetRecord(err)
	}
	return removeErr
}

// removeAll removes the objects of a record that is being deleted, and removes the finalizer of the record when
// none is left. Each remaining object wakes the key when it is gone.
func (r *recorder) removeAll(ctx context.Context, orphan func(appliedwork.Entry) bool) (gone bool, err error) {
	r.forgetObjects()
	entries := r.record.Entries()
	expected := map[kubeclient.Ref]drift.Signature{appliedwork.Ref(r.key): drift.Unknown}
	for _, e := range entries {
		expected[appliedwork.RefOf(e)] = drift.Unknown
	}
	r.config.Tracker.Track(r.key, expected)
	remover := r.remover
	remover.Saw = func(e appliedwork.Entry, live *unstructured.Unstructured) { r.saw(e, live) }
	remaining, removeErr := remover.Remove(ctx, entries, r.record.Owner(), orphan)
	if removeErr != nil {
		r.log.WarnContext(ctx, "objects cannot be removed: the work stays until they are", "error", removeErr)
	}
	if err := r.took(r.store.SetEntries(ctx, r.record, remaining)); err != nil {
		return false, r.forgetRecord(err)
	}
	if removeErr != nil {
		return false, removeErr
	}
	if len(remaining) > 0 {
		return false, nil
	}
	r.lastRecord.forget(r.key)
	if gone, err = r.store.RemoveFinalizer(ctx, r.record); err != nil || !gone {
		return false, r.forgetRecord(err)
	}
	r.config.Tracker.Track(r.key, nil)
	r.orphans.mu.Lock()
	r.noteSpec("", false)
	r.orphans.drop(r.key)
	r.orphans.mu.Unlock()
	return true, r.took(nil, nil)
}

// graceLeft starts or continues the grace period. It returns the time left, 0 when it is over.
func (r *recorder) graceLeft(ctx context.Context) (left time.Duration, err error) {
	start := r.record.EvictionStart()
	switch {
	case r.config.EvictionGracePeriod >= evictionOff:
		return evictionOff, r.stopGracePeriod(ctx)
	case start.IsZero() || start.After(r.now) && !start.Equal(r.grace.start): // no start is stored, or the clock was set back
		if err := r.took(r.store.SetEvictionStart(ctx, r.record, r.now)); err != nil {
			return 0, r.forgetRecord(err)
		}
		r.log.WarnContext(ctx, "no source has the work of this AppliedManifestWork any more: it is evicted, with its objects, unless that changes",
			"after", r.config.EvictionGracePeriod, "work_id", r.record.WorkID())
	}
	if start = r.record.EvictionStart(); !start.Equal(r.grace.start) {
		r.grace = grace{start: start, seen: r.now, before: max(0, r.now.Round(0).Sub(start))}
	}
	return r.grace.left(r.config.EvictionGracePeriod, r.now), nil
}

// trustClock is the time after which a process trusts its clock that a grace period of another process is over.
const trustClock = 10 * time.Minute

// grace is a running grace period. start is its begin by the clock of that time. seen is when this process
// first saw it. before is the part that was over then. The rest is measured, independent of the clock.
type grace struct {
	start, seen time.Time
	before      time.Duration
}

// left returns the time left.
//
// Scenario:
//
//	t1: a grace period of one day begins.
//	t2: the machine resumes with a clock that is one year ahead.
//
// Without trustClock the objects are removed before the clock is corrected.
func (g grace) left(period time.Duration, now time.Time) time.Duration {
	passed := now.Sub(g.seen)
	return max(0, period-g.before-passed, min(period, trustClock)-passed)
}

// stopGracePeriod stops the grace period, if it runs.
func (r *recorder) stopGracePeriod(ctx context.Context) error {
	before := r.record
	if err := r.took(r.store.SetEvictionStart(ctx, r.record, time.Time{})); err != nil {
		return r.forgetRecord(err)
	}
	if before != r.record {
		r.log.InfoContext(ctx, "the AppliedManifestWork is not evicted")
	}
	return nil
}

// keepWanted stops the grace period of a work that is wanted.
func (r *recorder) keepWanted(ctx context.Context, w *desired.Work) error {
	if r.record.EvictionStart().IsZero() {
		return nil
	}
	r.orphans.mu.Lock()
	verified := r.orphans.isVerifiedWanted(w.ResourceID)
	r.orphans.mu.Unlock()
	if !verified && r.config.EvictionGracePeriod < evictionOff {
		return nil
	}
	return r.stopGracePeriod(ctx)
}
