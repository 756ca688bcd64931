package registration

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// hubCache is what the hub has, as the source says it, and which clusters it has accepted. It has no
// order of its own: the source says what it has one after the other, and what arrives later is
// later. A subscription of the source says everything once, then each change.
//
// Nothing leaves the mirror because its source went away. What a subscription did not say by the
// time it has said everything is gone.
type hubCache struct {
	mu     sync.Mutex
	scopes map[streamScope]map[string]*object // by name
	// session is the subscription whose word counts, "" while there is none.
	session string
	// complete: the session has said everything.
	complete bool
	// listed: some session has said everything.
	listed   bool
	sequence uint64 // of the last change
	// accepted are the clusters that the hub has accepted, as was said last, perhaps to the
	// process before this one.
	accepted map[string]struct{}
	// unsaved are those of which the store does not know yet that this has changed.
	unsaved map[string]struct{}
}

// streamScope is what one subscription of an agent shows.
type streamScope struct {
	dataType codec.DataType
	cluster  string
}

// object is one object of the hub. Nobody changes it: others may still read it.
type object struct {
	name, uid, version string
	requester          string
	facts              Facts
	json               []byte
	sequence           uint64 // of its last change
	seenInSession      string // the session that said it last
}

// Facts are what the hub says of a ManagedCluster.
type Facts struct {
	// Accepted, Joined: the hub has accepted it, and it has joined.
	Accepted, Joined bool
	// Absent: the hub has no such cluster.
	Absent bool
	// Available is True, False, Unknown, or "" while nobody has said.
	Available string
	// AvailableSince is since when, as the condition has it, AvailableMessage why.
	AvailableSince, AvailableMessage string
}

// changes are what was not so before.
type changes struct {
	scopes map[streamScope]struct{}
	// accepted and withdrawn are clusters.
	accepted, withdrawn []string
	// completed: from now on it is known what the hub does not have.
	completed bool
}

// newHubCache returns an empty one. accepted are the clusters of which that was known before.
func newHubCache(accepted []string) *hubCache {
	m := &hubCache{scopes: map[streamScope]map[string]*object{}, accepted: map[string]struct{}{}, unsaved: map[string]struct{}{}}
	for _, c := range accepted {
		m.accepted[c] = struct{}{}
	}
	return m
}

// begin begins a session: the word of the one before counts no longer.
func (m *hubCache) begin(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session, m.complete = session, false
}

// end ends a session, if it is the present one.
func (m *hubCache) end(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == session {
		m.session, m.complete = "", false
	}
}

// apply takes what the source says on a subscription; false: its word counts no longer.
func (m *hubCache) apply(session string, reported *hawserv1.RegistrationObjects) (changes, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := changes{scopes: map[streamScope]struct{}{}}
	if session == "" || m.session != session {
		return c, false
	}
	for _, o := range reported.GetObjects() {
		m.put(o, &c)
	}
	if reported.GetSnapshotComplete() {
		m.dropStale(&c)
		c.completed = !m.complete
		m.complete, m.listed = true, true
	}
	return c, true
}

// put takes one object. The caller has the lock.
func (m *hubCache) put(o *hawserv1.RegistrationObject, c *changes) {
	d, err := codec.ParseDataType(o.GetDataType())
	if err != nil {
		return // codec has refused it
	}
	p := streamScope{d, o.GetCluster()}
	if len(o.GetJson()) == 0 {
		m.remove(p, o.GetName(), c)
		return
	}
	f := o.GetManagedClusterStatus()
	next := &object{
		name: o.GetName(), uid: o.GetUid(), version: o.GetResourceVersion(), requester: o.GetRequester(), json: o.GetJson(),
		facts:         Facts{Accepted: f.GetAccepted(), Joined: f.GetJoined(), Available: f.GetAvailable(), AvailableSince: f.GetAvailableSince(), AvailableMessage: f.GetAvailableMessage()},
		seenInSession: m.session,
	}
	had := m.scopes[p][next.name]
	switch {
	case had.same(next):
		next.sequence = had.sequence
	default:
		m.sequence++
		next.sequence = m.sequence
		c.scopes[p] = struct{}{}
	}
	if m.scopes[p] == nil {
		m.scopes[p] = map[string]*object{}
	}
	m.scopes[p][next.name] = next
	if d == codec.ManagedClusters {
		m.accept(p.cluster, next.facts.Accepted, c)
	}
}

// same reports whether nobody could tell two objects of one name apart.
func (o *object) same(p *object) bool {
	return o != nil && o.uid == p.uid && o.version == p.version && o.requester == p.requester && o.facts == p.facts && bytes.Equal(o.json, p.json)
}

// remove removes an object. The caller has the lock.
func (m *hubCache) remove(p streamScope, name string, c *changes) {
	if p.dataType == codec.ManagedClusters {
		m.accept(p.cluster, false, c)
	}
	if m.scopes[p][name] == nil {
		return
	}
	delete(m.scopes[p], name)
	if len(m.scopes[p]) == 0 {
		delete(m.scopes, p)
	}
	c.scopes[p] = struct{}{}
}

// dropStale removes what the session did not say, and the acceptance of clusters that the hub does not
// have. The caller has the lock.
func (m *hubCache) dropStale(c *changes) {
	for p, objects := range m.scopes {
		for name, o := range objects {
			if o.seenInSession != m.session {
				m.remove(p, name, c)
			}
		}
	}
	for cluster := range m.accepted {
		if m.scopes[streamScope{codec.ManagedClusters, cluster}][cluster] == nil {
			m.accept(cluster, false, c)
		}
	}
}

// accept notes whether the hub has accepted a cluster. The caller has the lock.
func (m *hubCache) accept(cluster string, accepted bool, c *changes) {
	if _, was := m.accepted[cluster]; was == accepted {
		return
	}
	m.unsaved[cluster] = struct{}{}
	if accepted {
		m.accepted[cluster] = struct{}{}
		c.accepted = append(c.accepted, cluster)
		return
	}
	delete(m.accepted, cluster)
	c.withdrawn = append(c.withdrawn, cluster)
}

// isAccepted reports whether the hub has accepted a cluster, as far as is known.
func (m *hubCache) isAccepted(cluster string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.accepted[cluster]
	return ok
}

// show returns what there is at a place, in the order of its changes, whether the cluster is
// accepted, and whether what is not shown does not exist.
func (m *hubCache) show(p streamScope) (objects []*object, accepted, complete bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	objects = slices.SortedFunc(maps.Values(m.scopes[p]), func(a, b *object) int { return cmp.Compare(a.sequence, b.sequence) })
	_, accepted = m.accepted[p.cluster]
	return objects, accepted, m.complete
}

// clusters returns the names of all ManagedClusters, and of what else is accepted, sorted.
func (m *hubCache) clusters() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.accepted)
	for p := range m.scopes {
		if p.dataType == codec.ManagedClusters {
			all[p.cluster] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// factsOf returns what is known of a cluster.
func (m *hubCache) factsOf(cluster string) Facts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.scopes[streamScope{codec.ManagedClusters, cluster}][cluster]; o != nil {
		return o.facts
	}
	_, accepted := m.accepted[cluster]
	return Facts{Accepted: accepted, Absent: m.listed && !accepted}
}

// size returns how many objects there are, and how many clusters are accepted.
func (m *hubCache) size() (objects, accepted int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range m.scopes {
		objects += len(at)
	}
	return objects, len(m.accepted)
}

// takeUnsaved returns at most so many clusters whose acceptance the store does not know, each with
// whether it is accepted.
func (m *hubCache) takeUnsaved(most int) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := make(map[string]bool, min(most, len(m.unsaved)))
	for cluster := range m.unsaved {
		if len(taken) == most {
			break
		}
		_, taken[cluster] = m.accepted[cluster]
		delete(m.unsaved, cluster)
	}
	return taken
}

// putBack says that clusters were not saved. What has changed since is saved as it is then.
func (m *hubCache) putBack(taken map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for cluster := range taken {
		m.unsaved[cluster] = struct{}{}
	}
}
