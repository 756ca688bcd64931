package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// observation has the values that a work requests of an object: those of its feedback rules and the outcomes of
// its condition rules.
type observation struct {
	values   []workv1.FeedbackValue
	errs     []error
	outcomes []conditionrules.Outcome
	// of is the object; nil after the reconciliation.
	of *unstructured.Unstructured
}

// observed reports whether a work requests values of an object. Then every change of the object matters.
func observed(c apply.Config) bool { return len(c.Feedback) > 0 || len(c.Conditions) > 0 }

// observer reads, in one reconciliation, the values that works request of objects.
type observer struct {
	config *CoreConfig
	rules  *conditionrules.Evaluator
	rights *rights
	*keyState
	reconcileInput
	// found has the observations so far. took is the time spent in rules.
	found map[kubeclient.Ref]observation
	took  time.Duration
}

// observe returns the observation for a result. The observation of an object that was not read is that of the
// last reconciliation.
func (r *observer) observe(ctx context.Context, res apply.Result) observation {
	if !res.Resolved || !observed(res.Config) {
		return observation{}
	}
	if r.rights.hides(res) {
		return observation{errs: []error{whyHidden(res.Err)}}
	}
	o, has := r.found[res.Ref]
	switch {
	case res.Live == nil && has:
		return o
	case res.Live == nil:
		o = r.known[res.Ref].observation
	case !has || o.of != res.Live:
		o = observation{of: res.Live, outcomes: r.evaluate(ctx, res)}
		o.values, o.errs = r.config.Feedback.Read(res.Live, res.Config.Feedback)
	}
	if r.found == nil {
		r.found = map[kubeclient.Ref]observation{}
	}
	r.found[res.Ref] = o
	return o
}

// quiet reports whether an object was read before, and the watch has shown no change since.
func (r *observer) quiet(ref kubeclient.Ref) bool {
	k, has := r.known[ref]
	if !has || r.full && !k.adopted {
		return false
	}
	seen, ok := r.config.Tracker.LastSeen(ref)
	return ok && seen.Is(k.signature)
}

// ruleTime bounds the total rule time of one work in one reconciliation, besides the bound per manifest.
// Otherwise the author of a work could block a worker.
const ruleTime = 10 * time.Second

var errRuleTime = fmt.Errorf("the rules of this work take longer than %v together", ruleTime)

// evaluate runs the condition rules of a manifest.
func (r *observer) evaluate(ctx context.Context, res apply.Result) []conditionrules.Outcome {
	if len(res.Config.Conditions) == 0 {
		return nil
	}
	if r.took > ruleTime {
		over, cancel := context.WithCancelCause(ctx)
		cancel(errRuleTime)
		ctx = over
	}
	begun := r.config.Now()
	outcomes := r.rules.Evaluate(ctx, res.Live, res.Config.Conditions)
	r.took += r.config.Now().Sub(begun)
	return outcomes
}

// reportedStatus converts a result to its status.
func (r *reconciliation) reportedStatus(ctx context.Context, i int, res apply.Result) conditions.Manifest {
	o := r.observer.observe(ctx, res)
	m := conditions.Manifest{
		Meta: res.Meta, ApplyErr: explained(ofKind(res.Manifest, res.Err)), Presence: res.Presence, ReadErr: explained(ofKind(res.Manifest, res.ReadErr)),
		Missing:      res.Known.Missing(),
		ApplySkipped: r.completion.held || r.postponed[i], Unsent: slow(res), Others: leftAlone(res.Known), Contest: r.contests.conditionOf(res.Ref),
		Feedback: len(res.Config.Feedback) > 0, Values: o.values, FeedbackErrs: o.errs,
		Rules: o.outcomes, RuleTypes: conditionrules.Types(res.Config.Conditions),
	}
	if m.ApplyErr == nil {
		m.ApplyErr = r.hangs.ends(res.Ref, r.now)
	}
	if i < len(r.completion.since) {
		m.CompleteSince = r.completion.since[i]
	}
	return m
}

// ofKind returns the error about a manifest's resource that is not served, in the form of an error about its
// kind.
//
// Scenario:
//
//	t1: the kind is known.
//	t2: its definition is deleted.
//	t3: the object is read.
//	t4: the kind is looked up.
//
// Result: an Event shows the error of t3 instead of that of t4. Both contain the next step.
func ofKind(m apply.Manifest, err error) error {
	var notServed *kubeclient.NotServedError
	if m.Object == nil || !errors.As(err, &notServed) || notServed.Resource != m.Ref.GroupVersionResource {
		return err
	}
	return &kubeclient.NoKindError{Kind: m.Object.GroupVersionKind()}
}

// leftAlone returns the fields that are left to other managers.
func leftAlone(k apply.KnownState) []conditions.ForeignField {
	var fields []conditions.ForeignField
	for _, f := range k.YieldedFields() {
		fields = append(fields, conditions.ForeignField(f))
	}
	return fields
}

// noteLook counts a reconciliation that only read objects, because a work requests values or other managers
// write their own fields. It also records whether the work requests values.
func (r *reconciliation) noteLook(results []apply.Result) {
	observes, looked := false, false
	for _, res := range results {
		wanted := res.Resolved && observed(res.Config)
		observes = observes || wanted
		looked = looked || res.Live != nil && (r.paused > 0 || (wanted || res.Shared) && res.Action == apply.Unchanged)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.observes = observes; looked && !r.full {
		r.looks.note(r.now)
	}
}

// postpone returns the result of a step that is not executed because another writer undoes each repair. The
// values of the object are reported nevertheless.
func (r *reconciliation) postpone(i int, s apply.Step) apply.Result {
	if r.postponed == nil {
		r.postponed = map[int]bool{}
	}
	r.postponed[i] = true
	return s.SkippedResult()
}

// rememberObserved adds the observation to the remembered state of an object, if there is one.
func (r *reconciliation) rememberObserved(i int, res apply.Result) {
	k, has := r.known[res.Ref]
	if !has {
		return
	}
	if r.rights.hides(res) {
		delete(r.known, res.Ref) // the object is read again when its values may be reported
		return
	}
	k.observation = r.observer.found[res.Ref]
	k.observation.of = nil // the object itself is not needed after the reconciliation
	if _, left := r.completion.left[i]; left && res.Presence == conditions.Present {
		k.heldFor = res.Hash()
	}
	r.known[res.Ref] = k
}
