package agent

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/inventory"
)

// An AppliedManifestWork of this agent that no work explains any more is
// evicted: after a grace period it is removed, and its objects with it. That
// nobody explains it is no evidence by itself. It takes the broker's word that
// exactly what it has is held, the word of the owner that the broker has
// everything, and a state directory that works; and all that once more at the
// end of the grace period.

// evictionOff is the grace period that means never, as in OCM.
const evictionOff = 100 * 365 * 24 * time.Hour

// Discovered is told of every AppliedManifestWork on the cluster that is not
// tracked, at the start and whenever it changes. due says that its name is to be
// woken.
func (c *Core) Discovered(m metav1.Object) (due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := m.GetName()
	s := stray{uid: m.GetUID(), source: m.GetAnnotations()[inventory.AnnotationSource]}.after(foundOwned)
	if s.source == "" {
		s = s.after(foundNameless)
	}
	if old := c.strays[key]; old.uid == s.uid && old.source == s.source {
		s = old
	}
	c.strays[key] = s
	if m.GetDeletionTimestamp() != nil {
		return slices.Contains(m.GetFinalizers(), workv1.AppliedManifestWorkFinalizer)
	}
	if _, ours := c.workName(key); !ours {
		return true // whose objects it has is in its status
	}
	if s.told.UID != "" {
		return true // what the broker was told of it may be out of date
	}
	return !strayRules[s.state].byItself && c.evictable(key, s)
}

// Vanished is told that one of those is gone.
func (c *Core) Vanished(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.strays, name)
	delete(c.graces, name)
	delete(c.foreign, name)
	delete(c.resolves, name)
	c.reviseUnexplained()
}

// evictable reports whether something is to be done about a stray. c.mu is
// held.
func (c *Core) evictable(key string, s stray) bool {
	if name, named := c.workName(key); !c.link.matched || c.degraded() || named && !c.set.ByName(name).Empty() {
		return false
	}
	needs := strayRules[s.state].needs
	return needs == inSync || needs == compared && c.proven(s.source)
}

// proven reports whether it is certain that a source wants nothing here but
// what is held and no orphan. c.mu is held.
func (c *Core) proven(source string) bool {
	return source != "" && c.link.matched && !c.degraded() && slices.Contains(c.link.compared, source)
}

// degraded: what is held may not survive a restart. c.mu is held.
func (c *Core) degraded() bool { return c.keeper.failing || len(c.keeper.unsaved) > 0 }

// suspects returns the keys whose eviction begins, goes on or ends now that the
// evidence is another. c.mu is held.
func (c *Core) suspects() []string {
	keys := map[string]bool{}
	for key, s := range c.strays {
		if c.evictable(key, s) {
			keys[key] = true
		}
	}
	for key := range c.graces {
		keys[key] = true
	}
	for _, id := range c.link.orphans {
		if w := c.set.Get(id); w != nil && c.proven(w.Source) {
			keys[c.key(w.Name)] = true
		}
	}
	if c.link.matched {
		c.set.Each(func(w *desired.Work, unconfirmed bool) {
			if unconfirmed && w.Deleting {
				keys[c.key(w.Name)] = true
			}
		})
	}
	return sorted(keys)
}

// unexplained reports whether the broker knows nothing of a held work. c.mu is held.
func (c *Core) unexplained(id string) bool {
	_, found := slices.BinarySearch(c.link.orphans, id)
	return found
}

// vouched reports whether a held work is certainly wanted. c.mu is held.
func (c *Core) vouched(id string) bool {
	switch {
	case c.set.Unconfirmed(id):
		return false
	case !c.link.hawser:
		return c.connected
	}
	return c.link.matched && !c.unexplained(id) || len(c.set.Lacks([]string{id}, c.link.mark)) == 0
}

// live applies a work, unless it is one that nobody explains and whose grace
// period is over.
func (r *reconciliation) live(ctx context.Context, w *desired.Work) (next time.Duration, err error) {
	r.mu.Lock()
	condemned := r.unexplained(w.ResourceID) && r.proven(w.Source)
	r.mu.Unlock()
	if !condemned || r.config.EvictionGracePeriod >= evictionOff {
		return r.bring(ctx, w)
	}
	if err := r.loadRecord(ctx); err != nil {
		return 0, err
	}
	left, recorded := time.Duration(0), r.record != nil && r.record.WorkID() == w.ResourceID
	if recorded {
		if left, err = r.grace(ctx); err != nil {
			return 0, err
		}
	}
	if left == 0 {
		if recorded && !r.record.Deleting() {
			// Nobody knows afterwards what of it is to outlive the work; it may never
			// have been applied as it is held.
			if err := r.spare(ctx, staysAfter(w)); err != nil {
				return 0, err
			}
		}
		r.giveUp(ctx, w)
		return firstSaveRetry, nil // its AppliedManifestWork is a stray then
	}
	next, err = r.bring(ctx, w)
	if next == 0 || next > left {
		next = left
	}
	return next, err
}

// giveUp forgets a work that nobody explains, if that is still so.
func (r *reconciliation) giveUp(ctx context.Context, w *desired.Work) {
	r.mu.Lock()
	still := r.unexplained(w.ResourceID) && r.proven(w.Source)
	if still {
		r.forget(w.ResourceID)
	}
	r.mu.Unlock()
	if still {
		r.save(0)
		r.log.InfoContext(ctx, "work that no source has any more is given up", "work", w.Name, "id", w.ResourceID, "source", w.Source)
	}
}

// grace runs the grace period and returns what is left of it: 0 when it is over.
func (r *reconciliation) grace(ctx context.Context) (left time.Duration, err error) {
	start := r.record.EvictionStart()
	switch {
	case r.config.EvictionGracePeriod >= evictionOff:
		return evictionOff, r.endGrace(ctx)
	case start.IsZero() || start.After(r.now): // or the clock went back
		start = r.now
		rec, err := r.store.SetEvictionStart(ctx, r.record, start)
		if err != nil {
			return 0, r.forgetRecord(err)
		}
		r.record = rec
		r.log.WarnContext(ctx, "no source has the work of this AppliedManifestWork any more: it is evicted, with its objects, unless that changes",
			"after", r.config.EvictionGracePeriod, "work_id", r.record.WorkID())
	}
	return max(0, start.Add(r.config.EvictionGracePeriod).Sub(r.now)), nil
}

// endGrace stops the grace period, if one runs.
func (r *reconciliation) endGrace(ctx context.Context) error {
	rec, err := r.store.SetEvictionStart(ctx, r.record, time.Time{})
	if err != nil {
		return r.forgetRecord(err)
	}
	if rec != r.record {
		r.log.InfoContext(ctx, "the AppliedManifestWork is not evicted")
	}
	r.record = rec
	return nil
}

// reprieve stops the grace period of a work that is wanted.
func (r *reconciliation) reprieve(ctx context.Context, w *desired.Work) error {
	if r.record.EvictionStart().IsZero() {
		return nil
	}
	r.mu.Lock()
	vouched := r.vouched(w.ResourceID)
	r.mu.Unlock()
	if !vouched && r.config.EvictionGracePeriod < evictionOff {
		return nil
	}
	return r.endGrace(ctx)
}

// pardon does that for a work that cannot be applied.
func (r *reconciliation) pardon(ctx context.Context, w *desired.Work) error {
	r.mu.Lock()
	running := r.graces[r.key]
	r.mu.Unlock()
	if !running {
		return nil
	}
	if err := r.loadRecord(ctx); err != nil || r.record == nil {
		return err
	}
	return r.reprieve(ctx, w)
}

// examine looks at an AppliedManifestWork of this agent that no work claims.
func (r *reconciliation) examine(ctx context.Context) (time.Duration, error) {
	o, _ := r.record.Origin()
	name, named := r.workName(r.key)
	r.mu.Lock()
	old := r.strays[r.key]
	proven := r.proven(o.Source)
	event := readUnproven
	switch {
	case o.Source == "":
		event = readOwnerless
	case proven:
		event = readProven
	}
	now := stray{uid: r.record.Metadata().GetUID(), source: o.Source, told: old.told}.after(event)
	r.strays[r.key] = now
	first := old.uid != now.uid || !old.read()
	w := r.set.Get(o.WorkID)
	renamed := named && w != nil && w.Name != name && !r.set.Unconfirmed(o.WorkID)
	_, leaving := r.keeper.gone[o.WorkID]
	r.mu.Unlock()
	switch {
	case renamed: // the agent was restarted before it cleared the old name
		return r.clearOldName(ctx, o.WorkID)
	case now.state == ownerless:
		if first {
			r.log.WarnContext(ctx, "an AppliedManifestWork has no work and says no owner: nobody can say that it is not wanted any more, it stays until somebody deletes it, or an operator approves that")
		}
		return r.resolveStray(ctx)
	case now.state == unproven:
		return 0, nil
	case leaving: // it would come back with the next process
		return firstSaveRetry, nil
	}
	left, err := r.grace(ctx)
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
	wanted := named && !r.set.ByName(name).Empty() || !r.proven(o.Source)
	r.mu.Unlock()
	if wanted {
		return 0, nil
	}
	r.log.WarnContext(ctx, "evicting an AppliedManifestWork: no source has its work any more", "work_id", o.WorkID, "source", o.Source, "objects", len(r.record.Entries()))
	r.config.Metrics.evicted()
	gone, err := r.dissolve(ctx, nil)
	if err != nil || gone {
		return 0, err
	}
	return r.removalWait(), nil
}
