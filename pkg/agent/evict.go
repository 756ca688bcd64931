package agent

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/desired"
)

// An AppliedManifestWork of this agent without a work is evicted: after a grace period it is removed with its
// objects. A missing work alone proves nothing. Eviction also needs this evidence, at the start and at the end
// of the grace period:
//   - the broker confirms that the agent holds exactly its works;
//   - the owner confirms that the broker has all works;
//   - the state directory works.

// evictionOff is the grace period that disables eviction, as in OCM.
const evictionOff = 100 * 365 * 24 * time.Hour

// live applies a work, unless it is an orphan whose grace period is over.
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
			// The held version may never have been applied. Without the work it is unknown which objects must
			// outlive it.
			if err := r.recorder.spare(ctx, staysAfter(w)); err != nil {
				return 0, err
			}
		}
		r.giveUp(ctx, w)
		return firstSaveRetry, nil // after that, its AppliedManifestWork is an orphan
	}
	next, err = r.applyWork(ctx, w)
	if next == 0 || next > left {
		next = left
	}
	return next, err
}

// giveUp forgets the work, if it is still a verified orphan.
func (r *reconciliation) giveUp(ctx context.Context, w *desired.Work) {
	r.mu.Lock()
	still := r.orphans.isVerifiedOrphan(w)
	if still {
		r.persister.forget(w.ResourceID)
	}
	r.mu.Unlock()
	if still {
		r.save(0)
		r.log.InfoContext(ctx, "dropping a work that no source has any more", "work", w.Name, "id", w.ResourceID, "source", w.Source)
	}
}

// stopEviction stops the grace period of a work that cannot be applied.
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

// examine reads an AppliedManifestWork of this agent that no work claims.
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
	case renamed: // the agent was restarted before it removed the objects under the old name
		return r.clearOldName(ctx, o.WorkID)
	case now.state == unowned:
		if first {
			r.log.WarnContext(ctx, "an AppliedManifestWork has no work and names no source, so it is never evicted: delete it, or let an operator approve its removal")
		}
		return r.resolveOrphan(ctx)
	case now.state == unverified:
		return 0, nil
	case leaving: // the work is still in the journal: the next process would load it again
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

// evict removes an AppliedManifestWork and its objects, if it is still a verified orphan.
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
