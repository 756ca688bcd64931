package syncstate

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/identity"
)

// MaxListBytes limits the ids of orphan works that are kept of one list, in bytes. Checkpoints repeat all of
// them. Further ids are counted but not named.
const MaxListBytes = 1 << 20

// shownIDs is the maximum number of ids in a log line.
const shownIDs = 10

// Lists keeps the mismatches of the last list of each agent. Operators can inspect them after the agent has
// disconnected, until an agent of the cluster lists again.
type Lists struct {
	cfg            *settings.Config
	budget         *bytebudget.Budget
	orphans, newer prometheus.Counter

	mu      sync.Mutex
	byScope map[store.Scope][]*List
}

// List holds the mismatches of the last list of one agent.
type List struct {
	lists  *Lists
	scope  store.Scope
	client identity.Identity
	bytes  int
	// closed is true after the subscription has ended.
	closed bool
	// orphans maps ids without a record to the listed versions. explained maps ids whose record was created after
	// the list, and was not sent yet, to the listed versions.
	orphans, explained map[string]int64
	// newer holds the ahead works whose delivery waits.
	newer   map[string]AheadWork
	omitted int // number of orphan ids that are not named
}

// AheadWork is a record of which an agent holds a newer version.
type AheadWork struct {
	Owner    string
	Version  int64
	Revision uint64
	Flags    deliveryqueue.Flags
	Listed   int64 // the version that the agent listed
}

// NewerOf returns the ahead work for a record and the version that an agent listed.
func NewerOf(m *store.Meta, listed int64) AheadWork {
	w := AheadWork{Owner: m.Owner, Version: m.Version, Revision: m.SpecRevision, Listed: listed}
	if m.State != store.Live {
		w.Flags = deliveryqueue.Deletion
	}
	return w
}

// Mismatch holds the listed works that have no record, or that are newer than their record.
type Mismatch struct {
	Orphans map[string]int64     // versions by id
	Newer   map[string]AheadWork // by id
	// MaxBytes limits the total size of the orphan ids.
	MaxBytes int
}

// Open returns the list of an agent that subscribes. It has no mismatches.
func (x *Lists) Open(at store.Scope, owner identity.Identity) *List {
	return &List{lists: x, scope: at, client: owner}
}

// Replace stores the mismatches of a new list. It holds the lock only briefly, so a long list does not delay
// the routers.
func (l *List) Replace(o Mismatch) {
	x, ids := l.lists, slices.Sorted(maps.Keys(o.Orphans))
	l.note(o, ids)
	x.forget(l.scope, l)
	named, bytes := map[string]int64{}, 0
	for _, id := range ids {
		if bytes+len(id) > o.MaxBytes {
			break
		}
		bytes += len(id)
		named[id] = o.Orphans[id]
	}
	if !x.budget.Reserve(l.client, bytes) {
		clear(named)
		bytes = 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	l.orphans, l.explained, l.newer = named, map[string]int64{}, o.Newer
	l.bytes, l.omitted = bytes, len(ids)-len(named)
	if len(ids)+len(o.Newer) > 0 {
		x.byScope[l.scope] = append(x.byScope[l.scope], l)
	}
}

// Forget drops the lists of disconnected agents of a cluster: an agent has connected again, here or to another broker.
func (x *Lists) Forget(scope store.Scope) { x.forget(scope, nil) }

// forget drops the previous entries of a list, nil for none, and the lists of disconnected agents of its cluster.
func (x *Lists) forget(scope store.Scope, mine *List) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range slices.Clone(x.byScope[scope]) {
		if l.closed || l == mine {
			x.drop(l)
		}
	}
}

// note counts and logs the mismatches. Orphan works are left unchanged, because absence never causes a
// deletion. Ahead works wait until their sources are synced.
func (l *List) note(o Mismatch, ids []string) {
	x := l.lists
	if len(ids) > 0 {
		x.orphans.Add(float64(len(ids)))
		x.cfg.Log.Warn("agent holds orphan works; they are left unchanged",
			"cluster", l.scope.Cluster, "count", len(ids), "first_ids", ids[:min(len(ids), shownIDs)])
	}
	if len(o.Newer) > 0 {
		x.newer.Add(float64(len(o.Newer)))
		x.cfg.Log.Warn("agent holds newer versions than the broker; their sources must publish the works again",
			"cluster", l.scope.Cluster, "count", len(o.Newer))
	}
}

// drop removes a list. The caller holds mu.
func (x *Lists) drop(l *List) {
	x.budget.Free(l.client, l.bytes)
	l.bytes = 0
	rest := slices.DeleteFunc(x.byScope[l.scope], func(o *List) bool { return o == l })
	if len(rest) == 0 {
		delete(x.byScope, l.scope)
	} else {
		x.byScope[l.scope] = rest
	}
}

// Close records that the subscription ended.
func (l *List) Close() {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	l.closed = true
	clear(l.explained)
	l.tidy()
}

// tidy removes a closed list that has no mismatch left.
func (l *List) tidy() {
	if l.closed && len(l.orphans)+len(l.newer)+l.omitted == 0 {
		l.lists.drop(l)
	}
}

// changed updates the lists when a record is created or removed.
func (x *Lists) changed(c *store.Change) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := c.Key.ResourceID
	for _, l := range slices.Clone(x.byScope[scopeOf(c.Key)]) {
		version, orphans := l.orphans[id]
		switch {
		case c.Gone:
			delete(l.newer, id)
			delete(l.explained, id)
		case orphans:
			delete(l.orphans, id)
			if !l.closed {
				l.explained[id] = version
			}
		}
		l.tidy()
	}
}

// Orphans returns the sorted ids that have no record.
func (l *List) Orphans() []string {
	l.lists.mu.Lock()
	ids := slices.Collect(maps.Keys(l.orphans))
	l.lists.mu.Unlock()
	slices.Sort(ids)
	return ids
}

// HasNewer reports whether the list has ahead works.
func (l *List) HasNewer() bool {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	return len(l.newer) > 0
}

// MarkInSync clears the ahead works: the agent holds exactly the records and the orphan works.
func (l *List) MarkInSync() {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	clear(l.newer)
}

// about returns the listed version of a record that has no final decision yet. ok is false if there is none.
func (l *List) about(id string) (listed int64, ok bool) {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	if w, ok := l.newer[id]; ok {
		return w.Listed, true
	}
	listed, ok = l.explained[id]
	return listed, ok
}

// decided applies a decision to the list: it adds a record that waits to the ahead works, and removes any other
// record.
func (l *List) decided(id string, d DeliveryDecision, w AheadWork) {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	delete(l.explained, id)
	if d == Wait {
		l.newer[id] = w
	} else {
		delete(l.newer, id)
	}
}

// Classify decides how a record is delivered to the agent of a list.
func (c *State) Classify(l *List, m *store.Meta) (DeliveryDecision, AheadWork) {
	listed, ok := l.about(m.ResourceID)
	if !ok {
		return Send, AheadWork{}
	}
	w := NewerOf(m, listed)
	d := ResolveConflict(c.ConflictOf(m, listed))
	l.decided(m.ResourceID, d, w)
	return d, w
}

// Forced removes and returns, by id, the ahead works whose records may be forced now.
func (c *State) Forced(l *List) map[string]AheadWork {
	l.lists.mu.Lock()
	waiting := maps.Clone(l.newer)
	l.lists.mu.Unlock()
	forced := c.ForcedOf(l.scope, waiting)
	for id, w := range forced {
		l.decided(id, Force, w)
	}
	return forced
}

// ForcedOf returns those ahead works of a cluster whose records may be forced: their source is synced, or the
// deletion is in force.
func (c *State) ForcedOf(scope store.Scope, works map[string]AheadWork) map[string]AheadWork {
	owners := c.Sources.SyncedSources(scope)
	forced := map[string]AheadWork{}
	for id, w := range works {
		d := ResolveConflict(Conflict{
			Listed: w.Listed, Version: w.Version, Synced: slices.Contains(owners, w.Owner),
			InForce: w.Flags&deliveryqueue.Deletion != 0 && c.inForce(w.Revision),
		})
		if d == Force {
			forced[id] = w
		}
	}
	return forced
}

// scopes adds the clusters with mismatches.
func (x *Lists) scopes(all map[store.Scope]struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for scope := range x.byScope {
		all[scope] = struct{}{}
	}
}

// Findings returns the mismatches of a cluster, in no order.
func (x *Lists) Findings(scope store.Scope) []Discrepancy {
	x.mu.Lock()
	defer x.mu.Unlock()
	omitted := 0
	seen := map[Discrepancy]struct{}{} // agents of one cluster may list the same works
	for _, l := range x.byScope[scope] {
		omitted += l.omitted
		for id := range l.orphans {
			seen[Discrepancy{Cause: Orphan, Scope: scope, ResourceID: id}] = struct{}{}
		}
		for id := range l.newer {
			seen[Discrepancy{Cause: Ahead, Scope: scope, ResourceID: id}] = struct{}{}
		}
	}
	if omitted > 0 {
		seen[Discrepancy{Cause: Orphan, Scope: scope, Omitted: omitted}] = struct{}{}
	}
	return slices.Collect(maps.Keys(seen))
}
