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

// A work can contain an object that rejects the agent's own writes. Examples are a webhook on all objects
// without a service, and a policy that denies AppliedManifestWorks. The repair is the correction or removal of
// that manifest, or the deletion of the work. It needs no write of the record. See
// docs/adr/021-admission-lockout.md.

// stuckAfter is the time for which writes of the record may fail before works report it. A refusal is reported
// at once.
const stuckAfter = 10 * time.Second

// lockout is the state of failures of a key's record, and of dry runs of the agent's own writes.
type lockout struct {
	// since is when the current series of failures of the record began. reported is the error that works report.
	since    time.Time
	reported error
	// tries counts the dry runs since the last write of an admission configuration. next is when the next one is
	// due. refused is the refusal of the last one.
	tries   int
	next    time.Time
	refused error
}

// trialWaits are the times from the write of an admission configuration until its dry runs. A server applies
// such an object after a moment, and the servers of a cluster apply it at different times.
var trialWaits = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}

// withheldError means that a manifest was not applied because it could not be recorded first.
type withheldError struct{ error }

func (e withheldError) Unwrap() error { return e.error }

// errLimited is the reason why an agent without its Lease only handles admission configurations.
var errLimited = errors.New("admission keeps the agent from its leader lease, and until it has that it only corrects and deletes admission configurations")

// hindrance tracks, for one reconciliation, what rejects the agent's own writes.
type hindrance struct {
	*works
	*tools
	*keyState
	reconcileInput
	// unrecorded is the error that blocks new entries of the record; nothing that needs one is created. withholds
	// is the same error with an explanation. narrow: only admission configurations are corrected and removed.
	// failed is the last failure of the record or of a removal.
	unrecorded, withholds, failed error
	narrow                        bool
}

// over ends a reconciliation. If nothing failed, it resets the reported error.
func (h *hindrance) over() {
	if h.failed == nil {
		h.lockout.since, h.lockout.reported = time.Time{}, nil
	}
	h.noteStuck(h.key, h.lockout.reported != nil)
}

// halted records that the record could not be read or written, or its objects could not be removed. It reports
// whether the failure must be reported: it is a refusal, needs a change, or has lasted for stuckAfter.
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

// goesOn reports whether a work is applied although its record could not be written. The record must exist; the
// agent then does everything that needs no new entry. If the record belongs to a former work of the name, only
// admission configurations are corrected and removed.
//
// A repetition after a crash is safe: the spec is in the journal, or is sent again, and the record has all
// objects.
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

// intend records the objects that may be created, and returns the steps. If the record fails, they are withheld,
// and admission configurations are moved to the front: they may be the cause.
func (h *hindrance) intend(ctx context.Context, steps []planned) ([]planned, error) {
	if h.unrecorded == nil {
		list := make([]apply.Step, 0, len(steps))
		for _, s := range steps {
			list = append(list, s.Step)
		}
		rec, err := h.store.SetEntries(ctx, h.record, appliedwork.Intend(h.record.Entries(), list))
		if err == nil {
			h.record = rec
			return steps, nil
		}
		if !h.halted(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("record the objects to create: %w", err)
		}
		h.unrecorded = err
	}
	var first, last []planned
	for _, s := range steps {
		if appliedwork.Admission(s.ID()) {
			first = append(first, s)
		} else {
			last = append(last, s)
		}
	}
	return append(first, last...), nil
}

// noteStuck records whether works of a key report a failing record. The first key that recovers wakes the
// others, because the cause has probably ended.
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

// withheld returns the result of a step that is withheld because it cannot be recorded.
func (h *hindrance) withheld(s apply.Step) (res apply.Result, withheld bool) {
	narrow := h.narrow && s.Action != apply.Unchanged && s.Action != apply.Reject && (s.Action != apply.Update || !appliedwork.Admission(s.ID()))
	if h.unrecorded == nil || !narrow && !appliedwork.Unrecorded(h.record.Entries(), s) {
		return res, false
	}
	if h.withholds == nil {
		h.withholds = withheldError{h.why(h.unrecorded)} // this searches all works
	}
	res = s.SkippedResult()
	res.Action, res.Err = apply.Reject, h.withholds
	return res, true
}

// stale returns the entries of objects to remove because the work no longer has them.
func (h *hindrance) stale(manifests []apply.Manifest, results []apply.Result) []appliedwork.Entry {
	entries := h.record.Entries()
	stale := append(appliedwork.StaleEntries(entries, manifests), appliedwork.Forfeit(entries, results)...)
	return slices.DeleteFunc(stale, func(e appliedwork.Entry) bool {
		return h.narrow && !appliedwork.Admission(e.ResourceIdentifier) || appliedwork.Undecided(e, results)
	})
}

// why explains that a work cannot be recorded, and names the work whose object rejects the write.
func (h *hindrance) why(err error) error {
	if errors.Is(err, errLimited) {
		return fmt.Errorf("%w%s", err, h.origin(err))
	}
	return explained(fmt.Errorf("it cannot be recorded in AppliedManifestWork %s: %w%s", h.key, err, h.origin(err)))
}

// origin names the work that contains the rejecting object, as the end of a sentence.
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
			found = fmt.Sprintf(" (%s comes from work %q: correct or delete that work)", by, work.Name)
		}
	})
	if found == "" {
		return fmt.Sprintf(" (no work of this hub has %s: correct or delete it on the cluster, or add its corrected configuration to an existing work)", by)
	}
	return found
}

// brings returns the indexes of the manifests that contain the rejecting configuration.
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

// configures reports whether a manifest is the webhook, the policy or the policy binding that refused a write.
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

// setReason adds the reason to the manifests that contain the configuration that rejects the agent's writes.
func (h *hindrance) setReason(w *desired.Work, reported []conditions.Manifest) {
	for _, err := range []error{h.lockout.refused, h.failed} {
		by, refused := admission.Of(err)
		if !refused {
			continue
		}
		for _, i := range brings(w, by) {
			if i < len(reported) && reported[i].ApplyErr == nil {
				reported[i].ApplyErr = &conditions.CutOffError{Err: fmt.Errorf("%s of this manifest rejects the agent's own writes, so that it cannot apply works: %w", by, err)}
				reported[i].ApplySkipped = false
			}
		}
	}
}

// reportFailed adds to the status of a work that its record fails, if halted reported the failure and no
// manifest shows it.
func (h *hindrance) reportFailed(w *desired.Work, status workv1.ManifestWorkStatus) workv1.ManifestWorkStatus {
	if h.failed == nil || h.lockout.reported == nil || apimeta.IsStatusConditionFalse(status.Conditions, workv1.WorkApplied) {
		return status
	}
	return conditions.Rejected(status, w.SpecGeneration, h.why(h.failed).Error(), h.now)
}

// blocked reports a work that cannot be applied because it cannot be recorded, unless halted regards the
// failure as temporary.
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

// hindered adds to the status of a work that is being deleted what blocks the deletion.
func (h *hindrance) hindered(status workv1.ManifestWorkStatus) workv1.ManifestWorkStatus {
	if h.lockout.reported == nil {
		return status
	}
	return conditions.WithDeletionBlocked(status, conditions.Reasoned(fmt.Sprintf("%v%s", explained(h.lockout.reported), h.origin(h.lockout.reported))))
}

// unremoved reports what blocks the deletion of a work, unless halted regards the failure as temporary.
func unremoved(r *reconciliation, w *desired.Work, err error) error {
	if w == nil || !r.hindrance.halted(err) {
		return nil
	}
	return r.report(w, conditions.Deleting(r.previous(w), w.Generation, nil, r.now))
}

// takeBack removes the admission configurations of a record before the record is dissolved. They may reject the
// writes to the record. Objects that are to outlive the work stay.
//
// Scenario:
//
//	t1: the admission configurations are removed.
//	t2: the agent is killed before it marks the record as being deleted.
//	t3: the next process has the deletion in its journal, or receives it again.
//
// Result: it continues the deletion and finds these objects absent.
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

// limitedLook is the reconciliation of an agent without its Lease.
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
