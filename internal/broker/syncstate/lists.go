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

// MaxListBytes is how many bytes of ids that no record explains are remembered of one
// list, all of which a checkpoint repeats. What is beyond is counted and not named.
const MaxListBytes = 1 << 20

// shownIDs is how many ids a log line shows.
const shownIDs = 10

// Lists knows what agents listed last, as far as it does not fit the records. It stays
// after the agent left, for whoever looks, until an agent of the cluster lists anew.
type Lists struct {
	cfg            *settings.Config
	budget         *bytebudget.Budget
	orphans, newer prometheus.Counter

	mu      sync.Mutex
	byScope map[store.Scope][]*List
}

// List is what does not fit of what one agent listed last.
type List struct {
	lists  *Lists
	scope  store.Scope
	client identity.Identity
	bytes  int
	// closed: its subscription is over.
	closed bool
	// orphans are ids of which there is no record, with the versions that were listed.
	// explained are those of which there is a record by now that was not sent yet.
	orphans, explained map[string]int64
	// newer are the records of which a newer version was listed; they wait.
	newer   map[string]AheadWork
	omitted int // unexplained ids that are not named
}

// AheadWork is a record of which an agent holds a newer version.
type AheadWork struct {
	Owner    string
	Version  int64
	Revision uint64
	Flags    deliveryqueue.Flags
	Listed   int64 // the version that the agent listed
}

// NewerOf is a record of which an agent listed a version.
func NewerOf(m *store.Meta, listed int64) AheadWork {
	w := AheadWork{Owner: m.Owner, Version: m.Version, Revision: m.SpecRevision, Listed: listed}
	if m.State != store.Live {
		w.Flags = deliveryqueue.Deletion
	}
	return w
}

// Mismatch is what does not fit of what an agent lists.
type Mismatch struct {
	Orphans map[string]int64     // versions by id
	Newer   map[string]AheadWork // by id
	// MaxBytes bounds the unexplained ids.
	MaxBytes int
}

// Open returns the list of an agent that subscribes: of what it has listed, everything fits.
func (x *Lists) Open(at store.Scope, owner identity.Identity) *List {
	return &List{lists: x, scope: at, client: owner}
}

// Replace keeps what does not fit of what the agent lists anew. It holds up no router while it
// goes through a long list.
func (l *List) Replace(o Mismatch) {
	x, ids := l.lists, slices.Sorted(maps.Keys(o.Orphans))
	l.note(o, ids)
	x.forget(l)
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

// forget forgets what an agent listed before, and what agents of the cluster did that have left:
// it knows better now.
func (x *Lists) forget(mine *List) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range slices.Clone(x.byScope[mine.scope]) {
		if l.closed || l == mine {
			x.drop(l)
		}
	}
}

// note counts and logs what does not fit. Nothing is done about the unexplained works:
// absence is no deletion. The newer ones wait until their sources have compared.
func (l *List) note(o Mismatch, ids []string) {
	x := l.lists
	if len(ids) > 0 {
		x.orphans.Add(float64(len(ids)))
		x.cfg.Log.Warn("agent holds works that no record explains, they stay as they are",
			"cluster", l.scope.Cluster, "count", len(ids), "first_ids", ids[:min(len(ids), shownIDs)])
	}
	if len(o.Newer) > 0 {
		x.newer.Add(float64(len(o.Newer)))
		x.cfg.Log.Warn("agent holds newer versions than the broker, their sources have to publish them again",
			"cluster", l.scope.Cluster, "count", len(o.Newer))
	}
}

// drop forgets a list. The caller holds mu.
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

// Close says that the subscription is over.
func (l *List) Close() {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	l.closed = true
	clear(l.explained)
	l.tidy()
}

// tidy forgets a closed list in which nothing is left to show.
func (l *List) tidy() {
	if l.closed && len(l.orphans)+len(l.newer)+l.omitted == 0 {
		l.lists.drop(l)
	}
}

// changed takes note that there is a record of an id, or that there is none any more.
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

// Orphans returns, sorted, the ids that no record explains.
func (l *List) Orphans() []string {
	l.lists.mu.Lock()
	ids := slices.Collect(maps.Keys(l.orphans))
	l.lists.mu.Unlock()
	slices.Sort(ids)
	return ids
}

// HasNewer reports whether some record waits.
func (l *List) HasNewer() bool {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	return len(l.newer) > 0
}

// MarkInSync takes note that the agent holds exactly what the records say, and the unexplained
// works: none waits.
func (l *List) MarkInSync() {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	clear(l.newer)
}

// about returns the version that was listed of a record about which nothing was decided yet.
func (l *List) about(id string) (listed int64, ok bool) {
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	if w, ok := l.newer[id]; ok {
		return w.Listed, true
	}
	listed, ok = l.explained[id]
	return listed, ok
}

// decided takes a record out that is sent or forced, or puts it to those that wait.
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

// Classify decides about a record that is about to be sent to the agent of a list.
func (c *State) Classify(l *List, m *store.Meta) (DeliveryDecision, AheadWork) {
	listed, ok := l.about(m.ResourceID)
	if !ok {
		return Send, AheadWork{}
	}
	w := NewerOf(m, listed)
	d := ResolveConflict(c.About(m, listed))
	l.decided(m.ResourceID, d, w)
	return d, w
}

// Forced takes out, and returns by id, those of the waiting records that their sources have
// turned out to vouch for.
func (c *State) Forced(l *List) map[string]AheadWork {
	l.lists.mu.Lock()
	waiting := maps.Clone(l.newer)
	l.lists.mu.Unlock()
	owners := c.Sources.SyncedSources(l.scope)
	for id, w := range waiting {
		key := store.Key{DataType: l.scope.DataType, Cluster: l.scope.Cluster, ResourceID: id}
		d := ResolveConflict(Conflict{
			Listed: w.Listed, Version: w.Version, Synced: slices.Contains(owners, w.Owner),
			InForce: w.Flags&deliveryqueue.Deletion != 0 && c.Deletions.inForce(key, w.Revision),
		})
		if d == Force {
			l.decided(id, d, w)
		} else {
			delete(waiting, id)
		}
	}
	return waiting
}

// scopes adds the clusters of which something does not fit.
func (x *Lists) scopes(all map[store.Scope]struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for scope := range x.byScope {
		all[scope] = struct{}{}
	}
}

// findings are what does not fit on a cluster.
func (x *Lists) findings(scope store.Scope) []Discrepancy {
	x.mu.Lock()
	defer x.mu.Unlock()
	omitted := 0
	seen := map[Discrepancy]struct{}{} // several agents of a cluster may list the same
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
