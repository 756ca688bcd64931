package registration

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// hubCache holds the hub's objects, as the source reports them, and the accepted clusters. Objects are ordered
// by their last change. On each subscription the source reports all objects once, then each change.
//
// The cache keeps its objects while no source is connected. When a subscription has reported everything,
// objects that it did not report are removed.
type hubCache struct {
	mu     sync.Mutex
	scopes map[streamScope]map[string]*object // by scope and name
	// session is the current subscription of the source, "" while there is none.
	session string
	// complete is true if the current session has reported everything.
	complete bool
	// listed is true if any session of this process has reported everything.
	listed   bool
	sequence uint64 // number of the last change
	// accepted are the clusters that the hub has accepted, according to the last report. The set is loaded from the
	// store, so that report may be older than this process.
	accepted map[string]struct{}
	// unsaved are the clusters whose change of acceptance is not stored yet. saving are those that are being stored.
	unsaved map[string]struct{}
	saving  map[string]bool
}

// streamScope is the data type and the cluster that one subscription of an agent shows.
type streamScope struct {
	dataType codec.DataType
	cluster  string
}

// object is one object of the hub. It is immutable, because readers keep it without the lock.
type object struct {
	name, uid, version string
	requester          string
	facts              Facts
	json               []byte
	sequence           uint64 // number of its last change
	seenInSession      string // the session that reported it last
}

// Facts are the states of a ManagedCluster on the hub.
type Facts struct {
	// Accepted, Joined: the hub has accepted the cluster, and the cluster has joined.
	Accepted, Joined bool
	// Absent: the hub has no such cluster.
	Absent bool
	// Available is True, False, Unknown, or "" if the hub has no such condition.
	Available string
	// AvailableSince is the transition time of the condition, as the hub writes it. AvailableMessage is its
	// message.
	AvailableSince, AvailableMessage string
}

// changes are the effects of one message of the source.
type changes struct {
	scopes map[streamScope]struct{}
	// accepted and withdrawn are the clusters whose acceptance changed.
	accepted, withdrawn []string
	// completed is true if the session has just reported everything. Then missing objects do not exist on the hub.
	completed bool
}

// newHubCache returns a cache without objects. accepted are the bookmarks of the accepted clusters in the store.
func newHubCache(accepted map[string][]byte) *hubCache {
	m := &hubCache{scopes: map[streamScope]map[string]*object{}, accepted: map[string]struct{}{}, unsaved: map[string]struct{}{}}
	for name := range accepted {
		m.accepted[strings.TrimPrefix(name, bookmarkPrefix)] = struct{}{}
	}
	return m
}

// begin makes session the current one. Messages of the previous session are rejected from now on.
func (m *hubCache) begin(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session, m.complete = session, false
}

// end ends a session, if it is the current one.
func (m *hubCache) end(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == session {
		m.session, m.complete = "", false
	}
}

// apply stores the objects of one message. It returns false if session is not the current one.
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

// put stores one object, or removes it if it has no content. The caller holds the lock.
func (m *hubCache) put(o *hawserv1.RegistrationObject, c *changes) {
	d, err := codec.ParseDataType(o.GetDataType())
	if err != nil {
		return // unreachable: codec rejects such a type
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

// same reports whether o and p are equal for every reader. A nil o never is.
func (o *object) same(p *object) bool {
	return o != nil && o.uid == p.uid && o.version == p.version && o.requester == p.requester && o.facts == p.facts && bytes.Equal(o.json, p.json)
}

// remove removes an object. The caller holds the lock.
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

// dropStale removes the objects that the current session did not report, and withdraws the acceptance of
// clusters that the hub does not have. The caller holds the lock.
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

// accept records whether the hub has accepted a cluster. The caller holds the lock.
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

// isAccepted reports whether the hub has accepted a cluster, by the last report.
func (m *hubCache) isAccepted(cluster string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.accepted[cluster]
	return ok
}

// show returns the objects of a scope in the order of their changes, and whether the cluster is accepted. If
// complete is true, the hub has no other objects there.
func (m *hubCache) show(p streamScope) (objects []*object, accepted, complete bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	objects = slices.SortedFunc(maps.Values(m.scopes[p]), func(a, b *object) int { return cmp.Compare(a.sequence, b.sequence) })
	_, accepted = m.accepted[p.cluster]
	return objects, accepted, m.complete
}

// clusters returns the names of all ManagedClusters and of all accepted clusters, sorted.
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

// factsOf returns the states of a cluster; they are zero if it is unknown.
func (m *hubCache) factsOf(cluster string) Facts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.scopes[streamScope{codec.ManagedClusters, cluster}][cluster]; o != nil {
		return o.facts
	}
	_, accepted := m.accepted[cluster]
	return Facts{Accepted: accepted, Absent: m.listed && !accepted}
}

// size returns the number of objects and of accepted clusters.
func (m *hubCache) size() (objects, accepted int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range m.scopes {
		objects += len(at)
	}
	return objects, len(m.accepted)
}

// takeUnsaved removes and returns up to most unsaved clusters. The value is true if the cluster is accepted.
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
	m.saving = taken
	return taken
}

// saved records that the clusters of the last takeUnsaved are stored.
func (m *hubCache) saved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saving = nil
}

// applyStored applies the acceptance of a cluster that the store has. It returns false if nothing changed. A report of
// the source to this broker is newer than the store: it counts while the source is connected, and until it is
// stored.
func (m *hubCache) applyStored(cluster string, accepted bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, was := m.accepted[cluster]
	_, unsaved := m.unsaved[cluster]
	_, saving := m.saving[cluster]
	switch {
	case m.session != "" || unsaved || saving || was == accepted:
		return false
	case accepted:
		m.accepted[cluster] = struct{}{}
	default:
		delete(m.accepted, cluster)
	}
	return true
}

// putBack marks clusters as unsaved again. The next save stores their current state.
func (m *hubCache) putBack(taken map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for cluster := range taken {
		m.unsaved[cluster] = struct{}{}
	}
	m.saving = nil
}
