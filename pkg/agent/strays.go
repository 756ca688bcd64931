package agent

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/inventory"
	"github.com/hawser-io/hawser/pkg/codec"
)

// strays are the AppliedManifestWorks that no work claims, with what is to become of
// them. Guarded by works.mu.
type strays struct {
	*works
	link      *subscriptionState
	persister *persister

	found map[string]stray // by name, as the rest
	// graces are those whose grace period runs.
	graces map[string]bool
	// resolves are what operators want of those that are nobody's.
	resolves map[string]codec.Resolve
	neighbours
}

func newStrays(w *works, l *subscriptionState, k *persister) *strays {
	return &strays{
		works: w, link: l, persister: k, found: map[string]stray{}, graces: map[string]bool{}, resolves: map[string]codec.Resolve{},
		neighbours: neighbours{own: map[string]*inventory.Record{}, foreign: map[string]*inventory.Record{}},
	}
}

// Discovered is told of every AppliedManifestWork on the cluster that is not
// tracked, at the start and whenever it changes. due says that its name is to be
// woken.
func (c *Core) Discovered(m metav1.Object) (due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.strays.discovered(m)
}

// Vanished is told that one of those is gone.
func (c *Core) Vanished(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.strays.vanished(name)
}

func (s *strays) discovered(m metav1.Object) (due bool) {
	key := m.GetName()
	now := stray{uid: m.GetUID(), source: m.GetAnnotations()[inventory.AnnotationSource]}.after(foundOwned)
	if now.source == "" {
		now = now.after(foundNameless)
	}
	if old := s.found[key]; old.uid == now.uid && old.source == now.source {
		now = old
	}
	s.found[key] = now
	if m.GetDeletionTimestamp() != nil {
		return slices.Contains(m.GetFinalizers(), workv1.AppliedManifestWorkFinalizer)
	}
	if _, ours := s.workName(key); !ours {
		return true // whose objects it has is in its status
	}
	if now.told.UID != "" {
		return true // what the broker was told of it may be out of date
	}
	return !strayRules[now.state].byItself && s.evictable(key, now)
}

func (s *strays) vanished(name string) {
	delete(s.found, name)
	delete(s.graces, name)
	delete(s.foreign, name)
	delete(s.resolves, name)
	s.revise()
}

// drop: this AppliedManifestWork is claimed by a work, or gone.
func (s *strays) drop(key string) {
	delete(s.found, key)
	delete(s.resolves, key)
	s.revise()
}

// ignore remembers of one that was read that it is gone, or another agent's.
func (s *strays) ignore(key string, rec *inventory.Record) {
	if rec == nil {
		delete(s.found, key)
		return
	}
	s.found[key] = stray{uid: rec.Metadata().GetUID(), source: s.found[key].source}.after(readAnothers)
}

// read lets a reading of one count that no work claims. first says that it was not
// read before.
func (s *strays) read(key string, rec *inventory.Record) (now stray, first bool) {
	o, _ := rec.Origin()
	event := readUnproven
	switch {
	case o.Source == "":
		event = readOwnerless
	case s.proven(o.Source):
		event = readProven
	}
	old := s.found[key]
	now = stray{uid: rec.Metadata().GetUID(), source: o.Source, told: old.told}.after(event)
	s.found[key] = now
	return now, old.uid != now.uid || !old.read()
}

// evictable reports whether something is to be done about a stray.
func (s *strays) evictable(key string, one stray) bool {
	if name, named := s.workName(key); !s.link.matched || s.persister.degraded() || named && !s.set.ByName(name).Empty() {
		return false
	}
	needs := strayRules[one.state].needs
	return needs == inSync || needs == compared && s.proven(one.source)
}

// proven reports whether it is certain that a source wants nothing here but
// what is held and no orphan.
func (s *strays) proven(source string) bool {
	return source != "" && s.link.matched && !s.persister.degraded() && slices.Contains(s.link.compared, source)
}

// condemned reports whether a held work is one that certainly nobody wants.
func (s *strays) condemned(w *desired.Work) bool {
	return s.link.unexplained(w.ResourceID) && s.proven(w.Source)
}

// vouched reports whether a held work is certainly wanted.
func (s *strays) vouched(id string) bool {
	switch {
	case s.set.Unconfirmed(id):
		return false
	case !s.link.hawser:
		return s.connected
	}
	return s.link.matched && !s.link.unexplained(id) || len(s.set.Lacks([]string{id}, s.link.listClock)) == 0
}

// suspects returns the keys whose eviction begins, goes on or ends now that the
// evidence is another.
func (s *strays) suspects() []string {
	keys := map[string]bool{}
	for key, one := range s.found {
		if s.evictable(key, one) {
			keys[key] = true
		}
	}
	for key := range s.graces {
		keys[key] = true
	}
	for _, id := range s.link.orphans {
		if w := s.set.Get(id); w != nil && s.proven(w.Source) {
			keys[s.keyOf(w.Name)] = true
		}
	}
	if s.link.matched {
		s.set.Each(func(w *desired.Work, unconfirmed bool) {
			if unconfirmed && w.Deleting {
				keys[s.keyOf(w.Name)] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(keys))
}
