package agent

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/codec"
)

// orphans has the AppliedManifestWorks that no work claims, and their next steps. Guarded by works.mu.
type orphans struct {
	*works
	subscription *subscriptionState
	persister    *persister

	found map[string]orphan // by name, like the other maps
	// graces has the AppliedManifestWorks in their grace period.
	graces map[string]bool
	// resolves has the orders of operators about unowned orphans.
	resolves map[string]codec.ResolveOrphan
	sharedObjects
}

func newOrphans(w *works, l *subscriptionState, k *persister) *orphans {
	return &orphans{
		works: w, subscription: l, persister: k, found: map[string]orphan{}, graces: map[string]bool{}, resolves: map[string]codec.ResolveOrphan{},
		sharedObjects: sharedObjects{own: map[string]*appliedwork.Record{}, foreign: map[string]*appliedwork.Record{}},
	}
}

// Discovered reports an AppliedManifestWork that is not tracked. It is called for each at the start and after
// every change. due: its name must be woken.
func (c *Core) Discovered(m metav1.Object) (due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.orphans.discovered(m)
}

// Vanished reports that an AppliedManifestWork that is not tracked is gone.
func (c *Core) Vanished(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orphans.vanished(name)
}

func (s *orphans) discovered(m metav1.Object) (due bool) {
	key := m.GetName()
	now := orphan{uid: m.GetUID(), source: m.GetAnnotations()[appliedwork.AnnotationSource]}.after(foundOwned)
	if now.source == "" {
		now = now.after(discoveredUnowned)
	}
	if old := s.found[key]; old.uid == now.uid && old.source == now.source {
		now = old
	}
	s.found[key] = now
	if m.GetDeletionTimestamp() != nil {
		return slices.Contains(m.GetFinalizers(), workv1.AppliedManifestWorkFinalizer)
	}
	if _, ours := s.workName(key); !ours {
		return true // the status lists objects that may be shared
	}
	if now.report.UID != "" {
		return true // the report to the broker may be outdated
	}
	return !orphanRules[now.state].byItself && s.evictable(key, now)
}

func (s *orphans) vanished(name string) {
	delete(s.found, name)
	delete(s.graces, name)
	delete(s.foreign, name)
	delete(s.resolves, name)
	s.revise()
}

// drop removes an AppliedManifestWork from the orphans: a work has claimed it, or it is gone.
func (s *orphans) drop(key string) {
	delete(s.found, key)
	delete(s.resolves, key)
	s.revise()
}

// ignore records that an AppliedManifestWork is gone, or belongs to another agent.
func (s *orphans) ignore(key string, rec *appliedwork.Record) {
	if rec == nil {
		delete(s.found, key)
		return
	}
	s.found[key] = orphan{uid: rec.Metadata().GetUID(), source: s.found[key].source}.after(readOtherAgent)
}

// read updates the state of an orphan that was read. first: it was not read before.
func (s *orphans) read(key string, rec *appliedwork.Record) (now orphan, first bool) {
	o, _ := rec.Origin()
	event := readUnverified
	switch {
	case o.Source == "":
		event = readUnowned
	case s.isVerified(o.Source):
		event = readVerified
	}
	old := s.found[key]
	now = orphan{uid: rec.Metadata().GetUID(), source: o.Source, report: old.report}.after(event)
	s.found[key] = now
	return now, old.uid != now.uid || !old.read()
}

// evictable reports whether the evidence suffices for the agent to read the orphan now.
func (s *orphans) evictable(key string, one orphan) bool {
	if name, named := s.workName(key); !s.subscription.inSync || s.persister.degraded() || named && !s.set.ByName(name).Empty() {
		return false
	}
	needs := orphanRules[one.state].needs
	return needs == needsInSync || needs == needsSynced && s.isVerified(one.source)
}

// isVerified reports whether source certainly has no works here except the held works without orphans.
func (s *orphans) isVerified(source string) bool {
	return source != "" && s.subscription.inSync && !s.persister.degraded() && slices.Contains(s.subscription.syncedSources, source)
}

// isVerifiedOrphan reports whether the broker and the owner have confirmed that no source wants the work.
func (s *orphans) isVerifiedOrphan(w *desired.Work) bool {
	return s.subscription.isOrphan(w.ResourceID) && s.isVerified(w.Source)
}

// isVerifiedWanted reports whether the work is certainly wanted.
func (s *orphans) isVerifiedWanted(id string) bool {
	switch {
	case s.set.Unconfirmed(id):
		return false
	case !s.subscription.hawser:
		return s.connected
	}
	return s.subscription.inSync && !s.subscription.isOrphan(id) || len(s.set.Missing([]string{id}, s.subscription.listClock)) == 0
}

// keysToRecheck returns the keys whose eviction may begin, continue or end because the evidence changed.
func (s *orphans) keysToRecheck() []string {
	keys := map[string]bool{}
	for key, one := range s.found {
		if s.evictable(key, one) {
			keys[key] = true
		}
	}
	for key := range s.graces {
		keys[key] = true
	}
	for _, id := range s.subscription.orphans {
		if w := s.set.Get(id); w != nil && s.isVerified(w.Source) {
			keys[s.keyOf(w.Name)] = true
		}
	}
	if s.subscription.inSync {
		s.set.Each(func(w *desired.Work, unconfirmed bool) {
			if unconfirmed && w.Deleting {
				keys[s.keyOf(w.Name)] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(keys))
}
