package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// A manifest whose rule for Complete was once True is left alone as long as that
// holds: it is not applied, and not made anew when somebody removes its object.
// A work whose manifests are all complete, as far as they have such a rule, is
// left alone as a whole. What is complete is known from the last status; the
// AppliedManifestWork keeps it over restarts, because a job that ran must not run
// again for a new agent.

// completion is what of a work is complete, in one reconciliation.
type completion struct {
	recorder *recorder
	observer *observer
	// ruled: a rule of the work says when something is complete. held: the work is, and
	// left alone. since says of each manifest since when it is, left has the results of
	// those that are left alone, by place in the work.
	ruled, held bool
	since       []time.Time
	left        map[int]apply.Result
}

// leave finds out what is left alone, and how those objects are.
func (c *completion) leave(ctx context.Context, w *desired.Work, manifests []apply.Manifest) {
	if c.ruled = slices.ContainsFunc(manifests, completes); !c.ruled {
		return
	}
	done := conditions.CompletionOf(c.recorder.previous(w))
	if !c.completeSince(w, manifests, done) && !done.Work {
		return
	}
	c.left = map[int]apply.Result{}
	work, contributions := done.Work, 0
	for i, m := range manifests {
		if !done.Work && c.since[i].IsZero() {
			continue
		}
		res := c.glance(ctx, m)
		c.left[i] = res
		reported, complete := c.isComplete(ctx, i, res)
		if reported {
			contributions++
			work = work && complete
		}
		if !complete {
			c.since[i] = time.Time{}
		}
	}
	if c.held = work && contributions > 0; c.held {
		return
	}
	maps.DeleteFunc(c.left, func(i int, _ apply.Result) bool { return c.since[i].IsZero() })
}

// completeSince fills in since when manifests are complete, by the last status
// or by the record, and reports whether there are any.
func (c *completion) completeSince(w *desired.Work, manifests []apply.Manifest, done conditions.Completion) bool {
	recorded := c.recorder.record.Completed(w.ResourceID)
	c.since = make([]time.Time, len(manifests))
	found := false
	for i, m := range manifests {
		if !completes(m) {
			continue
		}
		if c.since[i] = done.Since(m.Meta); c.since[i].IsZero() {
			c.since[i] = recorded[appliedwork.CompletedID(m)]
		}
		found = found || !c.since[i].IsZero()
	}
	return found
}

// completes reports whether a rule says when a manifest is complete.
func completes(m apply.Manifest) bool {
	return len(m.Config.Conditions) > 0 && slices.Contains(conditionrules.Types(m.Config.Conditions), workv1.WorkComplete)
}

// glance reads an object that is perhaps left alone, unless it is as it was when
// it was read last.
func (c *completion) glance(ctx context.Context, m apply.Manifest) apply.Result {
	m.Err = nil // it does not matter whether it could be applied
	owner, k := c.recorder.record.Owner(), c.recorder.known[m.Ref]
	if (k.Same(m, owner) || m.Resolved && k.heldFor == m.Hash()) && c.observer.quiet(m.Ref) {
		return apply.Remembered(m, k.Known)
	}
	s := c.recorder.applier.Plan(ctx, m, owner, k.Known)
	return s.SkippedResult()
}

// isComplete reports whether a manifest has a word in whether the work is
// complete, and which. While its object is away, the last word counts.
func (c *completion) isComplete(ctx context.Context, i int, res apply.Result) (reported, complete bool) {
	if !completes(res.Manifest) {
		return false, false
	}
	if res.Presence != conditions.Present {
		return !c.since[i].IsZero(), !c.since[i].IsZero()
	}
	o := c.observer.observe(ctx, res)
	reported = slices.ContainsFunc(o.outcomes, func(o conditionrules.Outcome) bool { return o.Type == workv1.WorkComplete })
	return reported, conditions.Completes(o.outcomes)
}

// noteComplete has the record keep what is complete.
func (c *completion) noteComplete(ctx context.Context, w *desired.Work, manifests []apply.Manifest, status workv1.ManifestWorkStatus) error {
	completed := map[string]time.Time{}
	if c.ruled {
		done := conditions.CompletionOf(status)
		for _, m := range manifests {
			if since := done.Since(m.Meta); !since.IsZero() && completes(m) {
				completed[appliedwork.CompletedID(m)] = since
			}
		}
	}
	return c.recorder.took(c.recorder.store.SetCompleted(ctx, c.recorder.record, w.ResourceID, completed))
}
