package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/drift"
)

// After roles changed, the works that depend on roles are reconciled after rolePause, so that the server's own
// view is up to date. The cost bounds the repetition: each object of such works needs a few requests. A burst
// of reconciliations covers at most burstObjects objects. After it, the interval is sweepPerObject for each
// object of such works.
const (
	rolePause       = time.Second
	sweepPerObject  = 200 * time.Millisecond
	firstSweepWait  = 2 * time.Second
	lastSweepWait   = time.Minute
	burstObjects    = 600
	mostLooksInARow = 10
	// rolesDelay is the time for which a server of the cluster may still use the roles before a change.
	rolesDelay = time.Minute
)

// Roles watches roles and bindings, and calls Core.RolesChanged after a change.
type Roles interface {
	// StartWatch starts the watch. It may be called again.
	StartWatch()
	// Watched reports whether every change is noticed.
	Watched() bool
}

// roleState is a Core's state about roles.
type roleState struct {
	mu sync.Mutex
	// changes counts the changes; changed is the time of the last one.
	changes uint64
	changed time.Time
	// waiting has the keys that depend on roles, with the number of their objects. reported has those of them that
	// will be reconciled at look.
	waiting  map[string]int
	reported map[string]bool
	// look is when the changes are, or were, handled. sweeps bounds how often.
	look   time.Time
	sweeps tokenBucket
}

// sweepRate returns the rate at which the waiting objects may be checked because roles changed.
func (s *roleState) sweepRate() rate {
	n := 0
	for _, objects := range s.waiting {
		n += objects
	}
	return rate{
		burst: min(mostLooksInARow, max(1, burstObjects/n)),
		every: min(lastSweepWait, max(firstSweepWait, time.Duration(n)*sweepPerObject)),
	}
}

// RolesChanged reports that roles or bindings changed, or may have changed. It returns the keys for which
// Reconcile is due, and the wait. If a key is reconciled earlier, comeBack schedules it again for this change.
func (c *Core) RolesChanged() (keys []string, after time.Duration) {
	return c.roles.change(c.config.Now())
}

func (s *roleState) change(now time.Time) (keys []string, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	s.changed = now
	if len(s.waiting) == 0 {
		return nil, 0
	}
	if !s.look.After(now) { // none is pending
		r := s.sweepRate()
		s.look = now.Add(max(rolePause, s.sweeps.wait(r, now)))
		s.sweeps.spend(r, s.look)
		s.reported = map[string]bool{}
	}
	for _, key := range slices.Sorted(maps.Keys(s.waiting)) {
		if !s.reported[key] {
			s.reported[key] = true
			keys = append(keys, key)
		}
	}
	return keys, s.look.Sub(now)
}

// lookDue returns when to handle role changes that the server itself may not apply yet; 0 if there are none.
func (s *roleState) lookDue(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.look.After(now) {
		return s.look.Sub(now)
	}
	return max(0, s.changed.Add(rolePause).Sub(now))
}

// inForceAt returns when all servers of the cluster use the current roles; zero if they do.
func (s *roleState) inForceAt(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.changed.Add(rolesDelay); at.After(now) {
		return at
	}
	return time.Time{}
}

// present returns the number of role changes so far, and whether the server may not apply the last one yet.
func (s *roleState) present(now time.Time) (changes uint64, early bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes, now.Before(s.changed.Add(rolePause))
}

// wait sets the number of objects of a key to check after a role change; 0 if the key does not depend on roles.
func (s *roleState) wait(key string, objects int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[key] = objects; objects == 0 {
		delete(s.waiting, key)
	}
}

// roleWatch watches roles and bindings, or admission policies, as soon as it is needed. It stores no objects:
// any change may concern any executor, by its groups, and any object.
type roleWatch struct {
	watcher *drift.Watcher
	needed  chan struct{} // closed by the first call
	need    func()
	// begun: all roles and bindings were listed once.
	begun atomic.Bool
}

// roleResources are the resources that grant rights.
var roleResources = []schema.GroupVersionResource{
	rbacv1.SchemeGroupVersion.WithResource("roles"), rbacv1.SchemeGroupVersion.WithResource("rolebindings"),
	rbacv1.SchemeGroupVersion.WithResource("clusterroles"), rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"),
}

func newRoleWatch(c drift.Config, resources []schema.GroupVersionResource, reported func()) *roleWatch {
	w := &roleWatch{needed: make(chan struct{})}
	w.need = sync.OnceFunc(func() { close(w.needed) })
	// Before everything is listed, changes are not reported one by one.
	changed := func() {
		if w.listed() {
			reported()
		}
	}
	all := drift.Permanent{
		Seen: func(*metav1.PartialObjectMetadata) (string, bool) { changed(); return "", false },
		Gone: func(string) { changed() },
		// The first complete list counts as a change.
		//
		// Scenario:
		//   t1: an executor is checked and has a right.
		//   t2: an administrator removes it.
		//   t3: the first list no longer has it.
		// Result: everything that was checked before the list is checked again.
		Unsure: changed,
	}
	permanent := map[schema.GroupVersionResource]drift.Permanent{}
	for _, resource := range resources {
		permanent[resource] = all
	}
	c.Changed, c.Permanent = func(string) {}, permanent
	w.watcher = drift.New(c)
	return w
}

// listed reports whether all roles and bindings were listed once.
func (w *roleWatch) listed() bool {
	if !w.begun.Load() && w.watcher.Ready() == nil {
		w.begun.Store(true)
	}
	return w.begun.Load()
}

// StartWatch implements Roles.
func (w *roleWatch) StartWatch() { w.need() }

// Watched implements Roles.
func (w *roleWatch) Watched() bool { return w.begun.Load() && w.watcher.Ready() == nil }

// Run watches until ctx ends. It starts when the watch is needed.
func (w *roleWatch) Run(ctx context.Context) error {
	select {
	case <-w.needed:
		return w.watcher.Run(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counts returns the counts of the Watcher; zero until it is needed.
func (w *roleWatch) counts() (n drift.Counts) {
	select {
	case <-w.needed:
		return w.watcher.Counts()
	default:
		return n
	}
}
