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

// A manifest is not applied while its Complete rule is True. Its object is not created again after a deletion. A
// work is left alone as a whole when all its manifests with such a rule are complete. Completion is read from
// the last status. The AppliedManifestWork keeps it across restarts: a new agent must not run a finished job
// again.

// completion is the completion of a work in one reconciliation.
type completion struct {
	recorder *recorder
	observer *observer
	// ruled: the work has a rule for completion. held: the work is complete and left alone. since is when each
	// manifest became complete. left has the results of the manifests that are left alone. Both are indexed like
	// the manifests of the work.
	ruled, held bool
	since       []time.Time
	left        map[int]apply.Result
}

// leave finds the manifests that are left alone, and reads their objects.
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

// completeSince fills since from the last status or the record, and reports whether a manifest is complete.
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

// completes reports whether the manifest has a Complete rule.
func completes(m apply.Manifest) bool {
	return len(m.Config.Conditions) > 0 && slices.Contains(conditionrules.Types(m.Config.Conditions), workv1.WorkComplete)
}

// glance reads the object of a manifest that may be left alone. It skips the read if no watch has shown a change
// since the last one.
func (c *completion) glance(ctx context.Context, m apply.Manifest) apply.Result {
	m.Err = nil // the object is not applied, so these errors do not matter
	owner, k := c.recorder.record.Owner(), c.recorder.known[m.Ref]
	if (k.Matches(m, owner) || m.Resolved && k.heldFor == m.Hash()) && c.observer.quiet(m.Ref) {
		return apply.Remembered(m, k.KnownState)
	}
	s := c.recorder.applier.Plan(ctx, m, owner, k.KnownState)
	return s.SkippedResult()
}

// isComplete reports whether the manifest contributes to the completion of the work, and whether it is
// complete. While its object is absent, the last result counts.
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

// noteComplete stores the completion in the record.
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
