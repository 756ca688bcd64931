package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"

	admission "github.com/hawser-io/hawser/internal/refusal"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// A work can bring what refuses the agent's own writes: a webhook on everything with no service
// behind it, a policy that denies AppliedManifestWorks. The way back, which is the correction of
// that manifest, its end, or the deletion of the work, needs no write of the record. See
// docs/adr/021-the-way-back.md.

// stuckAfter is how long the record may fail before works say so. A refusal is told at once.
const stuckAfter = 10 * time.Second

// lockout is what is remembered of failures of a key's record, and of dry runs of the agent's
// own writes.
type lockout struct {
	// since is when the record failed first, in a row; told is what works say of it.
	since    time.Time
	reported error
	// tries counts the dry runs since an admission configuration was written, next is when
	// the next one is due, refused is what the last one was refused with.
	tries   int
	next    time.Time
	refused error
}

// trialWaits are the times from the write of an admission configuration until dry runs: a server
// takes a moment until such an object counts, and each server of a cluster takes its own.
var trialWaits = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}

// withheldError says that a manifest was not applied because it could not be recorded first.
type withheldError struct{ error }

func (e withheldError) Unwrap() error { return e.error }

// errLimited is why an agent without its Lease does little.
var errLimited = errors.New("admission keeps the agent from its leader lease, and until it has that it only corrects and deletes admission configurations")

// hindrance knows in one reconciliation what keeps the agent from its own writes.
type hindrance struct {
	*works
	*tools
	*keyState
	reconcileInput
	// unrecorded is why nothing that needs a new entry is made, withholds the same, explained;
	// narrow says that only admission configurations are corrected and removed then. failed is
	// the last failure of the record, or of a removal.
	unrecorded, withholds, failed error
	narrow                        bool
}

// over ends a reconciliation: without a failure there is nothing to tell any more.
func (h *hindrance) over() {
	if h.failed == nil {
		h.lockout.since, h.lockout.reported = time.Time{}, nil
	}
	h.noteStuck(h.key, h.lockout.reported != nil)
}

// halted takes note that the record could not be read or written, or that its objects could not
// be removed, and reports whether that is more than a passing trouble.
func (h *hindrance) halted(err error) bool {
	if h.failed = err; h.lockout.since.IsZero() {
		h.lockout.since = h.now
	}
	_, refused := admission.Of(err)
	if !refused && !needsChange(err) && !errors.Is(err, errLimited) && h.now.Sub(h.lockout.since) < stuckAfter {
		return false
	}
	h.lockout.reported = err
	return true
}

// goesOn reports whether a work goes on although its record could not be written: the record is
// there, and the agent does all that needs no new entry. Where the record still is that of a former work of
// the name, only admission configurations are corrected and removed.
//
// After a crash the same is done again: the spec is on the journal, or comes again, and each
// object was on the list before.
func (h *hindrance) goesOn(ctx context.Context, w *desired.Work, err error) bool {
	if !h.halted(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false
	}
	rec, loadErr := h.store.Load(ctx, h.key)
	if loadErr != nil || rec == nil || rec.Deleting() || rec.AgentID() != h.config.AgentID {
		return false
	}
	h.record, h.unrecorded = rec, err
	h.narrow = errors.Is(err, errLimited) || rec.WorkID() != w.ResourceID
	return true
}

// intend records what may come into existence. Where that cannot be recorded it is withheld, and
// admission configurations are first: they may be the reason.
func (h *hindrance) intend(ctx context.Context, steps []apply.Step, order []int) error {
	if h.unrecorded == nil {
		rec, err := h.store.SetEntries(ctx, h.record, appliedwork.Intend(h.record.Entries(), steps))
		if err == nil {
			h.record = rec
			return nil
		}
		if !h.halted(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return fmt.Errorf("record what is about to be made: %w", err)
		}
		h.unrecorded = err
	}
	var first, last []int
	for n, s := range steps {
		if appliedwork.Admission(s.ID()) {
			first = append(first, n)
		} else {
			last = append(last, n)
		}
	}
	oldSteps, oldOrder := slices.Clone(steps), slices.Clone(order)
	for n, was := range append(first, last...) {
		steps[n], order[n] = oldSteps[was], oldOrder[was]
	}
	return nil
}

// noteStuck notes whether works of a key say that their record fails. The first that no longer
// does wakes the others: the cause has likely passed.
func (h *hindrance) noteStuck(key string, stuck bool) {
	switch {
	case stuck:
		h.stuck[key] = true
	case h.stuck[key]:
		delete(h.stuck, key)
		for _, other := range sorted(h.stuck) {
			h.config.Wake(other, true)
		}
	}
}

// withheld returns the result of a step that is not taken because it cannot be recorded.
func (h *hindrance) withheld(s apply.Step) (res apply.Result, withheld bool) {
	narrow := h.narrow && s.Action != apply.Unchanged && s.Action != apply.Refuse && (s.Action != apply.Update || !appliedwork.Admission(s.ID()))
	if h.unrecorded == nil || !narrow && !appliedwork.Unrecorded(h.record.Entries(), s) {
		return res, false
	}
	if h.withholds == nil {
		h.withholds = withheldError{h.why(h.unrecorded)} // which looks through all works
	}
	res = s.SkippedResult()
	res.Action, res.Err = apply.Refuse, h.withholds
	return res, true
}

// stale are the entries that the work no longer has.
func (h *hindrance) stale(manifests []apply.Manifest, results []apply.Result) []appliedwork.Entry {
	entries := h.record.Entries()
	stale := append(appliedwork.Stale(entries, manifests), appliedwork.Forfeit(entries, results)...)
	return slices.DeleteFunc(stale, func(e appliedwork.Entry) bool {
		return h.narrow && !appliedwork.Admission(e.ResourceIdentifier) || appliedwork.Undecided(e, results)
	})
}

// why says that a work cannot be recorded, and which work brought what refuses that.
func (h *hindrance) why(err error) error {
	if errors.Is(err, errLimited) {
		return fmt.Errorf("%w%s", err, h.origin(err))
	}
	return explained(fmt.Errorf("it cannot be recorded in AppliedManifestWork %s: %w%s", h.key, err, h.origin(err)))
}

// origin says which work brought what refused a write, as the end of a sentence.
func (h *hindrance) origin(err error) string {
	by, refused := admission.Of(err)
	if !refused {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	found := ""
	h.set.Each(func(work *desired.Work, _ bool) {
		if found == "" && len(brings(work, by)) > 0 {
			found = fmt.Sprintf(" (%s comes of work %q: correct or delete that work)", by, work.Name)
		}
	})
	if found == "" {
		return fmt.Sprintf(" (no work of this hub has %s: correct or delete its configuration on the cluster, or put the configuration, corrected, into a work that is there already)", by)
	}
	return found
}

// brings returns the places of the manifests that have what refuses.
func brings(w *desired.Work, by admission.Refusal) (places []int) {
	if w.Spec == nil {
		return nil
	}
	for i, m := range w.Spec.Workload.Manifests {
		if bytes.Contains(m.Raw, []byte("admissionregistration.k8s.io")) && configures(m.Raw, by) {
			places = append(places, i)
		}
	}
	return places
}

// configures reports whether a manifest is of a webhook, a policy, or the binding of a policy.
func configures(manifest []byte, by admission.Refusal) bool {
	var m struct {
		Metadata struct{ Name string }
		Webhooks []struct{ Name string }
		Spec     struct{ PolicyName string }
	}
	if json.Unmarshal(manifest, &m) != nil {
		return false
	}
	if by.Webhook == "" {
		return m.Metadata.Name == by.Policy && m.Webhooks == nil || m.Spec.PolicyName == by.Policy
	}
	return slices.ContainsFunc(m.Webhooks, func(w struct{ Name string }) bool { return w.Name == by.Webhook })
}

// setReason has the manifests of a work that brought what refuses the agent's writes say so.
func (h *hindrance) setReason(w *desired.Work, reported []conditions.Manifest) {
	for _, err := range []error{h.lockout.refused, h.failed} {
		by, refused := admission.Of(err)
		if !refused {
			continue
		}
		for _, i := range brings(w, by) {
			if i < len(reported) && reported[i].ApplyErr == nil {
				reported[i].ApplyErr = &conditions.CutOffError{Err: fmt.Errorf("%s of this manifest refuses what the agent itself writes, which keeps it from applying works: %w", by, err)}
				reported[i].ApplySkipped = false
			}
		}
	}
}

// reportFailed says in the status of a work that its record fails, if that lasts and no manifest
// says so.
func (h *hindrance) reportFailed(w *desired.Work, status workv1.ManifestWorkStatus) workv1.ManifestWorkStatus {
	if h.failed == nil || h.lockout.reported == nil || apimeta.IsStatusConditionFalse(status.Conditions, workv1.WorkApplied) {
		return status
	}
	return conditions.Rejected(status, w.SpecGeneration, h.why(h.failed).Error(), h.now)
}

// blocked reports a work that cannot be applied because it cannot be recorded, if that is more
// than a passing trouble.
func blocked(r *reconciliation, w *desired.Work, manifests []apply.Manifest, err error) error {
	if !r.hindrance.halted(err) {
		return nil
	}
	err = r.hindrance.why(err)
	list := make([]conditions.Manifest, 0, len(manifests))
	for _, m := range manifests {
		list = append(list, unapplied(m, err))
	}
	r.hindrance.setReason(w, list)
	return r.report(w, conditions.Next(r.previous(w), w.SpecGeneration, list, r.now))
}

// hindered says in the status of a work that is being deleted what keeps it.
func (h *hindrance) hindered(status workv1.ManifestWorkStatus) workv1.ManifestWorkStatus {
	if h.lockout.reported == nil {
		return status
	}
	return conditions.Hindered(status, conditions.Reasoned(fmt.Sprintf("%v%s", explained(h.lockout.reported), h.origin(h.lockout.reported))))
}

// unremoved reports what keeps a deleted work, if that is more than a passing trouble.
func unremoved(r *reconciliation, w *desired.Work, err error) error {
	if w == nil || !r.hindrance.halted(err) {
		return nil
	}
	return r.report(w, conditions.Deleting(r.previous(w), w.Generation, nil, r.now))
}

// takeBack removes the admission configurations of a record that is about to be dissolved, before
// anything is written to it, for they may be what refuses that.
//
// t1 they are removed. t2 the agent is killed before the record is marked as being deleted. t3 the
// next process has the deletion on its journal, or hears of it again: it goes on, and finds these
// gone. Objects that are to outlive the work are not touched.
func (r *recorder) takeBack(ctx context.Context, orphan func(appliedwork.Entry) bool) {
	list := slices.DeleteFunc(r.record.Entries(), func(e appliedwork.Entry) bool {
		return !appliedwork.Admission(e.ResourceIdentifier) || orphan != nil && orphan(e)
	})
	if len(list) == 0 {
		return
	}
	r.forgetObjects()
	if _, err := r.remover.Remove(ctx, list, r.record.Owner(), nil); err != nil {
		r.log.WarnContext(ctx, "admission configurations cannot be removed", "error", err)
	}
}

// limitedLook is a reconciliation of an agent that does not have its Lease.
func limitedLook(ctx context.Context, r *reconciliation, limited error) (time.Duration, error) {
	owns, err := r.ownsName(ctx)
	if err != nil {
		return 0, err
	}
	if w := r.view.Live; owns && w.Spec != nil {
		if backed, err := r.mayEnforce(ctx, w); err != nil || !backed {
			return 0, err
		}
		manifests := r.load(ctx, w)
		if !r.hindrance.goesOn(ctx, w, limited) {
			return 0, errors.Join(limited, blocked(r, w, manifests, limited))
		}
		return r.applyListed(ctx, w, manifests)
	}
	if len(r.view.Deleted) == 0 {
		return 0, nil
	}
	if err := r.recorder.loadRecord(ctx); err != nil {
		return 0, err
	}
	owner := ownerOf(r.record, r.view.Deleted)
	if owner == nil || !r.mayDelete(owner) {
		return 0, nil
	}
	r.recorder.takeBack(ctx, staysAfter(owner))
	return 0, errors.Join(limited, unremoved(r, owner, limited))
}
