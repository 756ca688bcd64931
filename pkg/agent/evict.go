package agent

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// An AppliedManifestWork of this agent that no work explains any more is
// evicted: after a grace period it is removed, and its objects with it. That
// nobody explains it is no evidence by itself. It takes the broker's word that
// exactly what it has is held, the word of the owner that the broker has
// everything, and a state directory that works; and all that once more at the
// end of the grace period.

// evictionOff is the grace period that means never, as in OCM.
const evictionOff = 100 * 365 * 24 * time.Hour

// live applies a work, unless it is one that nobody explains and whose grace
// period is over.
func (r *reconciliation) live(ctx context.Context, w *desired.Work) (next time.Duration, err error) {
	r.mu.Lock()
	verified := r.orphans.isVerifiedOrphan(w)
	r.mu.Unlock()
	if !verified || r.config.EvictionGracePeriod >= evictionOff {
		return r.applyWork(ctx, w)
	}
	if err := r.recorder.loadRecord(ctx); err != nil {
		return 0, err
	}
	left, recorded := time.Duration(0), r.record != nil && r.record.WorkID() == w.ResourceID
	if recorded {
		if left, err = r.recorder.graceLeft(ctx); err != nil {
			return 0, err
		}
	}
	if left == 0 {
		if recorded && !r.record.Deleting() {
			// Nobody knows afterwards what of it is to outlive the work; it may never
			// have been applied as it is held.
			if err := r.recorder.spare(ctx, staysAfter(w)); err != nil {
				return 0, err
			}
		}
		r.giveUp(ctx, w)
		return firstSaveRetry, nil // its AppliedManifestWork is a stray then
	}
	next, err = r.applyWork(ctx, w)
	if next == 0 || next > left {
		next = left
	}
	return next, err
}

// giveUp forgets a work that nobody explains, if that is still so.
func (r *reconciliation) giveUp(ctx context.Context, w *desired.Work) {
	r.mu.Lock()
	still := r.orphans.isVerifiedOrphan(w)
	if still {
		r.persister.forget(w.ResourceID)
	}
	r.mu.Unlock()
	if still {
		r.save(0)
		r.log.InfoContext(ctx, "work that no source has any more is given up", "work", w.Name, "id", w.ResourceID, "source", w.Source)
	}
}

// stopEviction does that for a work that cannot be applied.
func (r *reconciliation) stopEviction(ctx context.Context, w *desired.Work) error {
	r.mu.Lock()
	running := r.orphans.graces[r.key]
	r.mu.Unlock()
	if !running {
		return nil
	}
	if err := r.recorder.loadRecord(ctx); err != nil || r.record == nil {
		return err
	}
	return r.recorder.keepWanted(ctx, w)
}

// examine looks at an AppliedManifestWork of this agent that no work claims.
func (r *reconciliation) examine(ctx context.Context) (time.Duration, error) {
	o, _ := r.record.Origin()
	name, named := r.workName(r.key)
	r.mu.Lock()
	now, first := r.orphans.read(r.key, r.record)
	w := r.set.Get(o.WorkID)
	renamed := named && w != nil && w.Name != name && !r.set.Unconfirmed(o.WorkID)
	_, leaving := r.persister.gone[o.WorkID]
	r.mu.Unlock()
	switch {
	case renamed: // the agent was restarted before it cleared the old name
		return r.clearOldName(ctx, o.WorkID)
	case now.state == unowned:
		if first {
			r.log.WarnContext(ctx, "an AppliedManifestWork has no work and says no owner: nobody can say that it is not wanted any more, it stays until somebody deletes it, or an operator approves that")
		}
		return r.resolveOrphan(ctx)
	case now.state == unverified:
		return 0, nil
	case leaving: // it would come back with the next process
		return firstSaveRetry, nil
	}
	left, err := r.recorder.graceLeft(ctx)
	if err != nil || left > 0 {
		if left >= evictionOff {
			left = 0
		}
		return left, err
	}
	return r.evict(ctx)
}

// evict removes an AppliedManifestWork and its objects, if that is still right.
func (r *reconciliation) evict(ctx context.Context) (time.Duration, error) {
	o, _ := r.record.Origin()
	name, named := r.workName(r.key)
	r.mu.Lock()
	wanted := named && !r.set.ByName(name).Empty() || !r.orphans.isVerified(o.Source)
	r.mu.Unlock()
	if wanted {
		return 0, nil
	}
	r.log.WarnContext(ctx, "evicting an AppliedManifestWork: no source has its work any more", "work_id", o.WorkID, "source", o.Source, "objects", len(r.record.Entries()))
	r.config.Metrics.evicted()
	gone, err := r.recorder.dissolve(ctx, nil)
	if err != nil || gone {
		return 0, err
	}
	return r.removalWait(), nil
}
