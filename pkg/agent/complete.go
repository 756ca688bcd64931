package agent

import (
	"context"
	"slices"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/inventory"
	"github.com/hawser-io/hawser/pkg/agent/rule"
)

// A manifest whose rule for Complete was once True is left alone as long as that
// holds: it is not applied, and not made anew when somebody removes its object.
// A work whose manifests are all complete, as far as they have such a rule, is
// left alone as a whole. What is complete is known from the last status; the
// AppliedManifestWork keeps it over restarts, because a job that ran must not run
// again for a new agent.

// leave finds out what is left alone, and how those objects are. The results
// are by place in the work.
func (r *reconciliation) leave(ctx context.Context, w *desired.Work, manifests []apply.Manifest) map[int]apply.Result {
	if r.completes = slices.ContainsFunc(manifests, completes); !r.completes {
		return nil
	}
	done := conditions.CompletionOf(r.previous(w))
	if !r.completeSince(w, manifests, done) && !done.Work {
		return nil
	}
	left := map[int]apply.Result{}
	work, contributions := done.Work, 0
	for i, m := range manifests {
		if !done.Work && r.since[i].IsZero() {
			continue
		}
		res := r.glance(ctx, m)
		left[i] = res
		said, complete := r.saysComplete(ctx, i, res)
		if said {
			contributions++
			work = work && complete
		}
		if !complete {
			r.since[i] = time.Time{}
		}
	}
	if r.held = work && contributions > 0; r.held {
		return left
	}
	for i := range left {
		if r.since[i].IsZero() {
			delete(left, i)
		}
	}
	return left
}

// completeSince fills in since when manifests are complete, by the last status
// or by the record, and reports whether there are any.
func (r *reconciliation) completeSince(w *desired.Work, manifests []apply.Manifest, done conditions.Completion) bool {
	recorded := r.record.Completed(w.ResourceID)
	r.since = make([]time.Time, len(manifests))
	found := false
	for i, m := range manifests {
		if !completes(m) {
			continue
		}
		if r.since[i] = done.Since(m.Meta); r.since[i].IsZero() {
			r.since[i] = recorded[inventory.CompletedID(m)]
		}
		found = found || !r.since[i].IsZero()
	}
	return found
}

// completes reports whether a rule says when a manifest is complete.
func completes(m apply.Manifest) bool {
	return len(m.Config.Conditions) > 0 && slices.Contains(rule.Types(m.Config.Conditions), workv1.WorkComplete)
}

// glance reads an object that is perhaps left alone, unless it is as it was when
// it was read last.
func (r *reconciliation) glance(ctx context.Context, m apply.Manifest) apply.Result {
	m.Err = nil // it does not matter whether it could be applied
	owner, k := r.record.Owner(), r.known[m.Ref]
	if (k.Same(m, owner) || m.Resolved && k.heldFor == m.Hash()) && r.quiet(m.Ref) {
		return apply.Remembered(m, k.Known)
	}
	s := r.applier.Plan(ctx, m, owner, k.Known)
	return s.Held()
}

// saysComplete reports whether a manifest has a word in whether the work is
// complete, and which. While its object is away, the last word counts.
func (r *reconciliation) saysComplete(ctx context.Context, i int, res apply.Result) (said, complete bool) {
	if !completes(res.Manifest) {
		return false, false
	}
	if res.Presence != conditions.Present {
		return !r.since[i].IsZero(), !r.since[i].IsZero()
	}
	o := r.observer.observe(ctx, res)
	said = slices.ContainsFunc(o.outcomes, func(o rule.Outcome) bool { return o.Type == workv1.WorkComplete })
	return said, conditions.Completes(o.outcomes)
}

// noteComplete has the record keep what is complete.
func (r *reconciliation) noteComplete(ctx context.Context, w *desired.Work, manifests []apply.Manifest, status workv1.ManifestWorkStatus) error {
	completed := map[string]time.Time{}
	if r.completes {
		done := conditions.CompletionOf(status)
		for _, m := range manifests {
			if since := done.Since(m.Meta); !since.IsZero() && completes(m) {
				completed[inventory.CompletedID(m)] = since
			}
		}
	}
	return r.recorder.took(r.store.SetCompleted(ctx, r.record, w.ResourceID, completed))
}
