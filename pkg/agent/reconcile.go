package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

const (
	// lookAgain is the base of the interval at which everything of a work is read again: a random time between
	// lookAgain and 1.5 times that. It covers missed watch events.
	lookAgain = time.Hour
	// unwatchedReads bounds the reads of unwatched objects per second. Beyond that the interval grows.
	unwatchedReads = 10
	// Waits for the removal of objects begin at firstRemovalWait and double.
	firstRemovalWait = 50 * time.Millisecond
	lastRemovalWait  = time.Minute
	// renameWait is the wait for a work to be applied under its new name.
	renameWait = time.Second
)

// reconcileInput has the key, time and mode of one reconciliation.
type reconcileInput struct {
	key string
	now time.Time
	// full: remembered state and state seen by watches are not used.
	full bool
	log  *slog.Logger
}

// reconciliation is the state of one call of Reconcile. It has the parts of the Core that it needs: the desired
// state, the state of the key, and the components that act.
type reconciliation struct {
	*works
	*keyState
	*tools
	orphans   *orphans
	persister *persister
	// policies is the state of the watch of admission policies.
	policies *roleState

	recorder   recorder
	rights     rights
	observer   observer
	completion completion
	hindrance  hindrance

	reconcileInput
	view desired.View
	// unconfirmed has the works of the view that were not confirmed since the agent started, by id.
	unconfirmed map[string]bool

	// paused is the time for which drift is reported but not repaired. postponed has the manifests that are not
	// as wanted until then, by index in the work.
	paused    time.Duration
	postponed map[int]bool
	// recreate: no reconciliation of this spec is complete yet.
	recreate bool
	// contestEnds is when to check whether objects are still contested; 0: none is.
	contestEnds time.Duration
}

// Reconcile brings the cluster in line with the desired state of a key, and puts the status into the outbox.
// next is when to call it again if no event comes before, 0 if never. After an error it is called again after a
// back-off, or after next if that is not 0 and sooner.
func (c *Core) Reconcile(ctx context.Context, key string) (next time.Duration, err error) {
	c.config.Tracker.Begin(key)
	defer c.config.Tracker.End(key)
	r := c.begin(key)
	if limited := c.limited.Load(); limited != nil {
		next, err = limitedLook(ctx, r, *limited)
		c.end(r, next, err)
		return next, err
	}
	owns, err := r.ownsName(ctx)
	switch {
	case err != nil:
	case owns:
		next, err = r.live(ctx, r.view.Live)
		for _, w := range r.view.Deleted {
			err = errors.Join(err, r.confirm(w)) // the new owner of the name also owns the objects
		}
	case len(r.view.Deleted) > 0:
		next, err = r.removeWorks(ctx, r.view.Deleted)
	case r.view.Renamed != "":
		next, err = r.clearOldName(ctx, r.view.Renamed)
	default:
		next, err = r.finish(ctx)
	}
	c.end(r, next, err)
	return c.share(r, next, err)
}

// ownsName reports whether a live work owns the name, and with it the objects of deleted works of that name.
//
// Scenario:
//
//	t1: a work takes over the name of another one, and is applied.
//	t2: a power loss takes the journal back to before t1.
//	t3: the agent loads the former work, and receives the deletion of the later one.
//
// Result: the former work may not be applied and owns nothing. The objects belong to the later work, which
// decides about them.
func (r *reconciliation) ownsName(ctx context.Context) (bool, error) {
	if r.view.Live == nil || len(r.view.Deleted) == 0 {
		return r.view.Live != nil, nil
	}
	return r.mayEnforce(ctx, r.view.Live)
}

func (c *Core) begin(key string) *reconciliation {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.states[key]
	if kept == nil {
		kept = &keyState{known: map[kubeclient.Ref]remembered{}, contests: contests{}}
		c.states[key] = kept
	}
	kept.follow(c.history)
	now := c.config.Now()
	p := reconcileInput{key: key, now: now, full: !now.Before(kept.look), log: c.config.Log.With("applied_manifest_work", key)}
	r := &reconciliation{works: c.works, keyState: kept, tools: c.tools.withOwn(c.config, key), orphans: c.orphans, persister: c.persister, policies: c.policies, reconcileInput: p}
	r.recorder = recorder{config: c.config, tools: r.tools, orphans: c.orphans, keyState: kept, reconcileInput: p}
	r.rights = rights{config: c.config, roles: c.roles, keyState: kept, reconcileInput: p}
	r.observer = observer{config: c.config, rules: &c.rules, rights: &r.rights, keyState: kept, reconcileInput: p}
	r.hindrance = hindrance{works: c.works, tools: r.tools, keyState: kept, reconcileInput: p}
	r.completion = completion{recorder: &r.recorder, observer: &r.observer}
	if name, ours := c.workName(key); ours {
		r.review(name)
	}
	return r
}

// review reads the desired state of the name, and which of its works are unconfirmed. r.mu is held.
func (r *reconciliation) review(name string) {
	r.view = r.set.ByName(name)
	r.unconfirmed = map[string]bool{}
	for _, w := range r.view.Deleted {
		r.unconfirmed[w.ResourceID] = r.set.Unconfirmed(w.ResourceID)
	}
	if w := r.view.Live; w != nil {
		r.unconfirmed[w.ResourceID] = r.set.Unconfirmed(w.ResourceID)
	}
}

// end drops the state of keys that need none, and counts the reconciliation.
func (c *Core) end(r *reconciliation, next time.Duration, err error) {
	result := roundDone
	switch {
	case err != nil:
		result = roundFailed
	case next > 0 && r.removals > 0:
		result = roundWaiting
	}
	c.config.Metrics.reconcile(result, c.config.Now().Sub(r.now))
	over := r.view.Empty() && next == 0 && err == nil
	if over {
		c.config.Tracker.Track(r.key, nil)
		c.roles.wait(r.key, 0)
		c.policies.wait(r.key, 0)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.hindrance.over()
	c.orphans.noteOwn(r.key, r.record, !r.view.Empty())
	if len(r.view.Deleted) == 0 && r.view.Live == nil {
		c.orphans.revise()
	}
	if over {
		delete(c.states, r.key)
		c.persister.written.put(r.key, nil)
	}
}

// applyWork applies a work.
func (r *reconciliation) applyWork(ctx context.Context, w *desired.Work) (time.Duration, error) {
	if w.Spec == nil {
		r.looked()
		err := r.report(w, conditions.Rejected(r.previous(w), w.Generation, w.Problem, r.now))
		return r.idle(), errors.Join(err, r.stopEviction(ctx, w))
	}
	if r.paused, r.recreate = r.pause(w); r.paused > 0 && !r.observes {
		return r.paused, nil
	}
	if backed, err := r.mayEnforce(ctx, w); err != nil || !backed {
		return 0, err // the confirmation of the work wakes the key
	}
	manifests := r.load(ctx, w)
	if wait := awaitLists(r, manifests); wait > 0 {
		return wait, nil
	}
	if ready, err := r.recorder.claim(ctx, w); err != nil && !r.hindrance.goesOn(ctx, w, err) {
		r.rights.noteRefusals(err)
		return 0, errors.Join(err, blocked(r, w, manifests, err))
	} else if err == nil && !ready {
		return awaitRecord(r, w)
	}
	return r.applyListed(ctx, w, manifests)
}

// applyListed applies a work that has a record.
func (r *reconciliation) applyListed(ctx context.Context, w *desired.Work, manifests []apply.Manifest) (time.Duration, error) {
	r.removed()
	adopt(r, manifests)
	r.track(manifests)
	r.rights.actFor(w.Spec.Executor)
	r.rights.bind(&r.applier)
	r.completion.leave(ctx, w, manifests)
	results, err := r.apply(ctx, manifests)
	if err != nil {
		return 0, r.recorder.forgetRecord(errors.Join(err, blocked(r, w, manifests, err)))
	}
	r.looked()
	if redefines(manifests, results) {
		r.look = r.now.Add(redefinitionCounts)
	}
	return r.conclude(ctx, w, manifests, results)
}

// load reads the manifests of a work, and rejects those whose objects no work may have.
func (r *reconciliation) load(ctx context.Context, w *desired.Work) []apply.Manifest {
	manifests := apply.Load(ctx, r.config.Client, *w.Spec)
	for i, m := range manifests {
		if !m.Resolved {
			continue
		}
		if err := r.config.Guard.Manifest(m.ID(), m.Object); err != nil {
			manifests[i] = m.Forbid(err)
		}
	}
	return manifests
}

// conclude records and reports the results of the manifests. It returns when to reconcile again.
func (r *reconciliation) conclude(ctx context.Context, w *desired.Work, manifests []apply.Manifest, results []apply.Result) (time.Duration, error) {
	remaining, settleErr := r.pruneAndRecord(ctx, manifests, results)
	tryAgain, refused := r.hindrance.try(ctx, results)
	r.unsent.note(results, r.now)
	r.hangs.noteEnding(results, r.now)
	if r.paused == 0 {
		r.noteApplied(ctx, w, results)
	}
	status := r.statusOf(ctx, w, results)
	var reportErr error
	if r.unsent.since.IsZero() || r.unsent.late(r.now) || r.about == w.ResourceID { // otherwise the state of the work is incomplete
		reportErr = r.report(w, r.hindrance.reportFailed(w, status))
	}
	if r.hindrance.unrecorded == nil {
		reportErr = errors.Join(reportErr, r.recorder.forgetRecord(r.completion.noteComplete(ctx, w, manifests, status)))
	}
	next := r.paused
	if next == 0 {
		next = r.noteRejected(results)
	}
	next = sooner(next, r.contestEnds)
	r.noteLook(results)
	r.expect(results, remaining)
	r.rights.noteRefusals(settleErr, results...)
	next = sooner(conflictWait(results, r.config.Random), sooner(next, r.rights.comeBack(results)))
	next = sooner(slowWait(results, r.config.Random), sooner(next, r.awaitPolicies(results)))
	next = sooner(sooner(tryAgain, r.hangs.due(r.now)), next)
	if err := errors.Join(r.recorder.forgetRecord(settleErr), refused, reportErr, errors.Join(r.rights.failed(), retryable(results))); err != nil {
		return next, err
	}
	if len(remaining) > 0 {
		return sooner(r.hangs.due(r.now), r.removalWait()), nil
	}
	r.removed()
	return sooner(next, r.idle()), nil
}

// pause returns how long to wait before the next repair of a work whose objects another writer keeps changing.
// A new spec is applied at once.
func (r *reconciliation) pause(w *desired.Work) (wait time.Duration, recreate bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.applied != specOf(w) {
		return 0, true
	}
	return r.repairs.wait(repairRate, r.now), false
}

// specOf identifies the spec in force.
func specOf(w *desired.Work) string { return w.SpecTag.String() + " " + w.ResourceID }

// redefinitionCounts is the time after which a server uses a changed definition, with a margin.
const redefinitionCounts = 3 * time.Second

// looked schedules the next full read, if this reconciliation was a full read.
func (r *reconciliation) looked() {
	if r.full {
		r.look = r.now.Add(lookAgain + time.Duration(r.config.Random()*float64(lookAgain/2)))
	}
}

// idle returns the time until the objects must be read again.
func (r *reconciliation) idle() time.Duration {
	wait := max(time.Millisecond, r.look.Sub(r.now))
	if n := r.config.Tracker.Unwatched(r.key); n > 0 {
		interval := max(r.config.StatusSyncInterval, time.Duration(n)*time.Second/unwatchedReads)
		wait = min(wait, time.Duration(float64(interval)*(1+0.9*r.config.Random())))
	}
	return wait
}

// track tracks the objects before they are read, so that no change is missed. Expected states are kept.
func (r *reconciliation) track(manifests []apply.Manifest) {
	expected := map[kubeclient.Ref]drift.Signature{appliedwork.Ref(r.key): r.recorder.recordSignature()}
	add := func(ref kubeclient.Ref) {
		expected[ref] = drift.Unknown
		if k, has := r.known[ref]; has {
			expected[ref] = k.signature
		}
	}
	for _, e := range r.record.Entries() {
		add(appliedwork.RefOf(e))
	}
	for _, m := range manifests {
		if m.Resolved {
			add(m.Ref)
		}
		awaitKind(r.config.Tracker, m, expected)
		if k := r.known[m.Ref]; m.Resolved && k.rejected {
			k.refusal.watchEnd(expected)
			if definition, ok := definitionOf(m.Ref); ok {
				watch(definition, k.definition, expected)
			}
		}
	}
	r.config.Tracker.Track(r.key, expected)
}

// pruneAndRecord removes the objects that the work no longer wants, and updates the record.
func (r *reconciliation) pruneAndRecord(ctx context.Context, manifests []apply.Manifest, results []apply.Result) (remaining []appliedwork.Entry, err error) {
	if r.completion.held {
		r.hangs.noteRemoval(nil, nil, nil, r.now)
		return nil, r.hindrance.unrecorded
	}
	entries, stale := r.record.Entries(), r.hindrance.stale(manifests, results)
	remover := r.remover
	remover.Wanted, remover.Saw = appliedwork.UIDs(results), r.recorder.saw
	remaining, err = remover.Remove(ctx, stale, r.record.Owner(), nil)
	r.hangs.noteRemoval(remaining, r.recorder.seen, err, r.now)
	if r.hindrance.unrecorded != nil {
		return remaining, errors.Join(err, r.hindrance.unrecorded)
	}
	setErr := r.recorder.took(r.store.SetEntries(ctx, r.record, appliedwork.Merge(entries, results, stale, remaining)))
	if setErr != nil {
		r.hindrance.halted(setErr)
		return remaining, errors.Join(err, fmt.Errorf("record the present objects: %w", setErr))
	}
	if err != nil {
		r.log.WarnContext(ctx, "objects that the work no longer has cannot be removed", "error", err)
	}
	return remaining, err
}

// expect remembers and tracks the state in which the objects were left.
func (r *reconciliation) expect(results []apply.Result, remaining []appliedwork.Entry) {
	before := r.forgetObjects()
	expected := map[kubeclient.Ref]drift.Signature{}
	if r.record != nil {
		expected[appliedwork.Ref(r.key)] = r.recorder.recordSignature()
	}
	for _, e := range remaining {
		expected[appliedwork.RefOf(e)] = drift.Unknown
	}
	r.rejections.awaited = map[kubeclient.Ref]drift.Signature{}
	for i, res := range results {
		if !res.Resolved {
			awaitKind(r.config.Tracker, res.Manifest, r.rejections.awaited)
			continue
		}
		expected[res.Ref] = signatureOf(res, before[res.Ref])
		switch {
		case apply.Rejected(res.Err), res.Known.Incomplete():
			r.rememberRejected(res, before[res.Ref], expected)
		case res.Err == nil || res.Known.UID != "": // a refused step leaves it unchanged
			r.known[res.Ref] = remembered{KnownState: res.Known, signature: expected[res.Ref], proof: proofOf(r, res, expected[res.Ref])}
		}
		r.rememberObserved(i, res)
	}
	for definition, s := range r.rejections.awaited {
		watch(definition, s, expected)
	}
	r.config.Tracker.Track(r.key, expected)
	r.persister.noteWritten(r.key, r.known)
}

// signatureOf returns the signature in which an object was left. For an object that was not read it returns the
// previous one: the watch may already show a later change.
func signatureOf(res apply.Result, before remembered) drift.Signature {
	switch {
	case res.Live != nil && kubeclient.IsFieldConflict(res.Err):
		return drift.ExactOf(res.Live) // see conflictRetry
	case res.Live != nil && observed(res.Config):
		return drift.ExactOf(res.Live)
	case res.Live != nil:
		return drift.SignatureOf(res.Ref.GroupVersionResource, res.Live)
	case res.Presence == conditions.Present:
		return before.signature
	case res.Presence == conditions.Absent:
		return drift.Absent
	}
	return drift.Unknown
}

// noteApplied records whether all objects are as wanted, and counts the repairs for a spec that was applied
// before.
func (r *reconciliation) noteApplied(ctx context.Context, w *desired.Work, results []apply.Result) {
	written, asWanted := false, r.hindrance.failed == nil
	for _, res := range results {
		asWanted = asWanted && res.Err == nil
		written = written || res.Accepted() && writes(res.Action) && !res.Retried
	}
	r.mu.Lock()
	again := written && r.applied == specOf(w)
	repaired := again && r.asWanted
	r.noteSpec(specOf(w), asWanted)
	if r.contestEnds = r.contests.expire(r.repairs.missing(repairRate, r.now) < enoughRepairs, r.now); r.recreate {
		r.contests.renew()
	}
	exhausted := again && !r.unsent.before && r.repairs.spend(repairRate, r.now)
	r.mu.Unlock()
	if repaired {
		r.config.Metrics.repair()
		r.log.InfoContext(ctx, "drift repaired", "work", w.Name)
	}
	if exhausted {
		reportContests(ctx, r, w.Name)
	}
}

// retryable returns the errors that may end without a change of the work.
func retryable(results []apply.Result) error {
	var errs []error
	for _, res := range results {
		switch {
		case apply.Rejected(res.Err): // see noteRejected
		case errors.As(res.Err, new(withheldError)): // the failure of the record is returned separately
		case kubeclient.IsFieldConflict(res.Err): // see conflicted
		case slow(res): // see slowWait
		case refused(res.Err) || res.Err == nil && refused(res.ReadErr): // see comeBack
		case res.Err != nil && !apply.Permanent(res.Err):
			errs = append(errs, fmt.Errorf("apply %s: %w", describe(res.Manifest), res.Err))
		case res.Err == nil && res.ReadErr != nil: // the object is only read
			errs = append(errs, fmt.Errorf("read %s: %w", describe(res.Manifest), res.ReadErr))
		}
	}
	return errors.Join(errs...)
}

func describe(m apply.Manifest) string {
	if m.Resolved {
		return m.Ref.String()
	}
	return fmt.Sprintf("manifest %d (%s %s/%s)", m.Meta.Ordinal, m.Meta.Kind, m.Meta.Namespace, m.Meta.Name)
}

// statusOf builds the status after a reconciliation.
func (r *reconciliation) statusOf(ctx context.Context, w *desired.Work, results []apply.Result) workv1.ManifestWorkStatus {
	manifests := make([]conditions.Manifest, 0, len(results))
	for i, res := range results {
		manifests = append(manifests, r.reportedStatus(ctx, i, res))
	}
	r.hindrance.setReason(w, manifests)
	status := conditions.Next(r.previous(w), w.SpecGeneration, manifests, r.now)
	if w.Problem != "" { // an earlier spec is in force
		status = conditions.Rejected(status, w.Generation, w.Problem, r.now)
	}
	return status
}

// unapplied returns the status of a manifest that was not processed.
func unapplied(m apply.Manifest, err error) conditions.Manifest {
	return conditions.Manifest{Meta: m.Meta, ApplyErr: err, Presence: conditions.Unreadable, ReadErr: err, RuleTypes: conditionrules.Types(m.Config.Conditions)}
}

// needsChange reports whether an error persists until an operator or the source changes something.
func needsChange(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || kubeerror.TooLarge(err) || errors.As(err, new(*kubeclient.NotServedError)) || errors.Is(err, appliedwork.ErrWorkName) || errors.Is(err, appliedwork.ErrChanged)
}

// report puts a status into the outbox.
func (r *reconciliation) report(w *desired.Work, status workv1.ManifestWorkStatus) error {
	status = r.hindrance.hindered(status)
	r.setReported(w, status)
	return r.put(w, r.unsent.report(w, r.hangs.report(w, status, r.now), r.now), false)
}

func (r *reconciliation) put(w *desired.Work, status workv1.ManifestWorkStatus, deleted bool) error {
	r.mu.Lock()
	held := r.set.Get(w.ResourceID)
	if held == nil || held.Tag != w.Tag || held.Deleting != w.Deleting {
		r.mu.Unlock()
		return nil // a new event arrived, so another reconciliation is due
	}
	if lapse, lapsed := r.persister.unsaved[w.ResourceID]; lapsed && !deleted {
		status = conditions.WithPersistFailed(status, w.Generation, lapse)
	}
	if deleted {
		r.set.Finished(w)
	}
	due, err := r.outbox.Put(held, status, deleted) // the deletion may have arrived again
	r.mu.Unlock()
	if due {
		r.config.Send(w.ResourceID)
	}
	return err
}
