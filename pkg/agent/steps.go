package agent

import (
	"context"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// planned is a step, and the index of its manifest in the work.
type planned struct {
	apply.Step
	index int
}

// apply plans all steps, records the objects that may be created, and writes. The results are in the order of
// the manifests. The error concerns the record.
func (r *reconciliation) apply(ctx context.Context, manifests []apply.Manifest) ([]apply.Result, error) {
	results := make([]apply.Result, len(manifests))
	steps := planAll(ctx, r, manifests, results)
	if r.paused > 0 {
		steps = postponeWrites(r, steps, results)
	}
	steps, err := r.hindrance.intend(ctx, steps)
	if err != nil {
		return nil, err
	}
	redefined := map[kubeclient.Ref]bool{} // definitions that were just written
	for len(steps) > 0 {
		n := stage(steps)
		writeStage(ctx, r, steps[:n], results, redefined)
		steps = steps[n:]
	}
	return results, nil
}

// planAll returns the steps, in the order of application, of the manifests whose objects must be read or
// written. It adds the results of the others.
func planAll(ctx context.Context, r *reconciliation, manifests []apply.Manifest, results []apply.Result) []planned {
	owner := r.record.Owner()
	var steps []planned
	var plans []func() apply.Step
	unreported := appliedwork.Unreported(r.record.Entries())
	for _, i := range apply.Order(manifests) {
		if res, left := r.completion.left[i]; left {
			results[i] = res
			continue
		}
		k, same := r.unchanged(manifests[i], owner)
		if manifests[i].Err == nil {
			manifests[i].Err = r.rights.permitted(ctx, manifests[i], same)
		}
		if same {
			results[i] = remember(manifests[i], k)
			continue
		}
		steps = append(steps, planned{index: i})
		plans = append(plans, r.plan(ctx, manifests[i], unreported(manifests[i])))
	}
	taskgroup.Each(r.config.InFlight, len(plans), func(n int) { steps[n].Step = plans[n]() })
	return steps
}

// plan returns a function that plans the step of one manifest. unreported: the object probably does not exist.
// Then it is not read first, because new works create many objects at once.
func (r *reconciliation) plan(ctx context.Context, m apply.Manifest, unreported bool) func() apply.Step {
	owner := r.record.Owner()
	if _, has := r.known[m.Ref]; unreported && !has && !r.missing[m.Ref] {
		return func() apply.Step { return r.applier.Suppose(ctx, m, owner) }
	}
	known := r.recall(m.Ref)
	return func() apply.Step { return r.applier.Plan(ctx, m, owner, known) }
}

// unchanged reports whether the object is still as wanted: it was so before, and the watch has shown no change
// since. A new spec retries contested objects.
func (r *reconciliation) unchanged(m apply.Manifest, owner apply.Owner) (apply.KnownState, bool) {
	k := r.known[m.Ref]
	return k.KnownState, m.Err == nil && k.Matches(m, owner) && !(r.recreate && k.Contested()) && r.observer.quiet(m.Ref) && !r.due(m.Ref, k)
}

// postponeWrites returns the steps without those that write. It adds the results of the latter.
func postponeWrites(r *reconciliation, steps []planned, results []apply.Result) (kept []planned) {
	for _, s := range steps {
		if writes(s.Action) {
			results[s.index] = r.postpone(s.index, s.Step)
		} else {
			kept = append(kept, s)
		}
	}
	return kept
}

// stage returns the number of first steps that may be written concurrently.
func stage(steps []planned) int {
	objects := map[kubeclient.Ref]bool{}
	for n, s := range steps {
		if !apply.Independent(steps[0].Manifest, s.Manifest) || objects[s.Ref] {
			return n
		}
		objects[s.Ref] = s.Resolved
	}
	return len(steps)
}

// writeStage writes the steps of one stage.
func writeStage(ctx context.Context, r *reconciliation, steps []planned, results []apply.Result, redefined map[kubeclient.Ref]bool) {
	owner := r.record.Owner()
	withheld := make([]bool, len(steps))
	for n, s := range steps {
		results[s.index], withheld[n] = r.hindrance.withheld(s.Step)
		definition, _ := definitionOf(s.Ref)
		steps[n].Redefined = redefined[definition]
	}
	taskgroup.Each(r.config.InFlight, len(steps), func(n int) {
		if s := steps[n]; !withheld[n] {
			results[s.index] = r.applier.Apply(ctx, s.Step, owner)
		}
	})
	for n, s := range steps {
		if withheld[n] {
			continue
		}
		res := r.rights.noteAnswer(ctx, results[s.index])
		results[s.index] = res
		r.log.DebugContext(ctx, "manifest applied", "object", res.Ref.String(), "action", res.Action, "error", res.Err)
		if !writes(res.Action) {
			continue
		}
		redefined[res.Ref] = true
		if res.Accepted() && !res.Retried {
			noteRepair(r, &steps[n].Step)
		}
		if !slow(res) {
			r.config.Metrics.write(string(res.Action), res.Accepted())
		}
	}
}

// writes reports whether an action changes the cluster.
func writes(a apply.Action) bool { return a != apply.Unchanged && a != apply.Reject }
