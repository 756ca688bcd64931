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

// Works that roles concern are looked at again rolePause after roles changed, so
// that the server's own picture of them is fresh. Looks that follow each other are
// bounded by what they cost: a few requests for each object of such works. Those
// of burstObjects may be looked at in a row, and then there is one look for every
// sweepPerObject that they have.
const (
	rolePause       = time.Second
	sweepPerObject  = 200 * time.Millisecond
	firstSweepWait  = 2 * time.Second
	lastSweepWait   = time.Minute
	burstObjects    = 600
	mostLooksInARow = 10
	// rolesDelay is how long after a change some server of the cluster may still go
	// by the roles before it.
	rolesDelay = time.Minute
)

// Roles notices that roles or bindings changed, and calls Core.RolesChanged.
type Roles interface {
	// Need asks for that, from now on. It may be called again.
	Need()
	// Watched reports whether every change is noticed.
	Watched() bool
}

// roleState is what a Core knows of roles.
type roleState struct {
	mu sync.Mutex
	// changes counts them, changed is when the last one was.
	changes uint64
	changed time.Time
	// waiting are the keys to which roles matter, with the number of their objects;
	// told are those of them that are to come back at look.
	waiting  map[string]int
	reported map[string]bool
	// look is when the changes are, or were, looked at; sweeps bound how often.
	look   time.Time
	sweeps tokenBucket
}

// sweepRate is how often the objects that wait may be looked at because roles
// changed.
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

// RolesChanged is told that roles or bindings changed, or may have. It returns
// keys for which Reconcile is due, and after what time. Keys that are due earlier
// for something else come back for it: see comeBack.
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
	if !s.look.After(now) { // none is due yet
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

// lookDue returns when changes of roles are looked at that the server itself
// may not know yet; 0 if there are none.
func (s *roleState) lookDue(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.look.After(now) {
		return s.look.Sub(now)
	}
	return max(0, s.changed.Add(rolePause).Sub(now))
}

// inForceAt returns when all servers of the cluster go by the roles as they are now;
// zero if they do.
func (s *roleState) inForceAt(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.changed.Add(rolesDelay); at.After(now) {
		return at
	}
	return time.Time{}
}

// present says which roles there are at the moment: how many changes there were, and
// whether the server may not know of the last.
func (s *roleState) present(now time.Time) (changes uint64, early bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes, now.Before(s.changed.Add(rolePause))
}

// wait says how many objects of a key would be asked about if roles changed; 0 if
// that does not concern it.
func (s *roleState) wait(key string, objects int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[key] = objects; objects == 0 {
		delete(s.waiting, key)
	}
}

// roleWatch watches roles and bindings, or policies of admission, from when that is
// needed. It keeps nothing of them: any change may concern any executor, by whatever
// group it is bound, and any object.
type roleWatch struct {
	watcher *drift.Watcher
	needed  chan struct{} // closed when somebody does
	need    func()
	// begun: all roles and bindings were listed once.
	begun atomic.Bool
}

// roleResources are the resources by which rights are given.
var roleResources = []schema.GroupVersionResource{
	rbacv1.SchemeGroupVersion.WithResource("roles"), rbacv1.SchemeGroupVersion.WithResource("rolebindings"),
	rbacv1.SchemeGroupVersion.WithResource("clusterroles"), rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"),
}

func newRoleWatch(c drift.Config, resources []schema.GroupVersionResource, reported func()) *roleWatch {
	w := &roleWatch{needed: make(chan struct{})}
	w.need = sync.OnceFunc(func() { close(w.needed) })
	// Before everything was listed changes are not told one by one.
	changed := func() {
		if w.listed() {
			reported()
		}
	}
	all := drift.Permanent{
		Seen: func(*metav1.PartialObjectMetadata) (string, bool) { changed(); return "", false },
		Gone: func(string) { changed() },
		// The first complete list is news, too. t1: an executor is asked about, and
		// has a right. t2: somebody takes it away. t3: the list, where it is missing.
		// Therefore all that was asked by then is asked again.
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

// Need implements Roles.
func (w *roleWatch) Need() { w.need() }

// Watched implements Roles.
func (w *roleWatch) Watched() bool { return w.begun.Load() && w.watcher.Ready() == nil }

// Run watches, once that is needed, until ctx ends.
func (w *roleWatch) Run(ctx context.Context) error {
	select {
	case <-w.needed:
		return w.watcher.Run(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counts are those of the Watcher, nothing before anybody needs it.
func (w *roleWatch) counts() (n drift.Counts) {
	select {
	case <-w.needed:
		return w.watcher.Counts()
	default:
		return n
	}
}
