package broker

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// hub knows the subscriptions and what the router has seen. Its lock is held
// while keys go into mailboxes, never while anything is sent.
type hub struct {
	mu       sync.Mutex
	index    route.Index[*subscription]
	byID     map[string]*subscription
	perParty map[identity.Identity]int
	// routed is the revision up to which every change is in the mailboxes it
	// belongs into. It is written under the lock.
	routed atomic.Uint64
	// unrouted are the revisions of specs that were accepted and that the router
	// has not come to, for clusters with stock agents: a deletion that the router
	// finds in the place of one is the first that they hear of it.
	unrouted map[store.Key]uint64
	// repeated are the deletions from before the store was opened that their sources
	// have published again since, with their revisions; see [Broker.stands].
	repeated map[store.Key]uint64
	unheard  unheard
	// awaited are the subscriptions that want to hear when routed is so far.
	awaited map[*subscription]uint64
	ledger  *ledger
	// end is why nobody may call any more; nil while everybody may. It is set
	// under the lock, once.
	end    atomic.Pointer[transport.Error]
	serial uint64 // counts subscriptions
	// empty is closed when end is set and the last subscription is gone.
	empty chan struct{}
}

func newHub(revision uint64, l *ledger) *hub {
	h := &hub{
		byID: map[string]*subscription{}, perParty: map[identity.Identity]int{},
		unrouted: map[store.Key]uint64{}, repeated: map[store.Key]uint64{}, awaited: map[*subscription]uint64{}, ledger: l, empty: make(chan struct{}),
		unheard: newUnheard(),
	}
	h.routed.Store(revision)
	return h
}

// position returns the revision up to which changes were routed.
func (h *hub) position() uint64 { return h.routed.Load() }

// await wakes s when changes up to a revision were routed. The last call
// counts.
func (h *hub) await(s *subscription, revision uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.routed.Load() >= revision {
		s.signal()
		return
	}
	h.awaited[s] = revision
}

// add registers s: every change routed from now on reaches it.
func (h *hub) add(s *subscription, perParty int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.end.Load(); err != nil {
		return err
	}
	if h.perParty[s.party] >= perParty {
		return overloaded("too many subscriptions of "+s.party.String(), comeBack)
	}
	h.perParty[s.party]++
	h.serial++
	s.serial = h.serial
	h.byID[s.id] = s
	h.index.Add(s.scope, s)
	return nil
}

// remove is the end of s; it must have been added. head is that of the store: of
// what is above it nothing was sent.
func (h *hub) remove(s *subscription, head uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.part == codec.Spec {
		h.unheard.left[place{s.scope.DataType, s.scope.Cluster}] = head
	}
	h.index.Remove(s.scope, s)
	delete(h.byID, s.id)
	delete(h.awaited, s)
	if h.perParty[s.party]--; h.perParty[s.party] == 0 {
		delete(h.perParty, s.party)
	}
	h.checkEmpty()
}

func (h *hub) checkEmpty() {
	if h.end.Load() == nil || len(h.byID) > 0 {
		return
	}
	select {
	case <-h.empty:
	default:
		close(h.empty)
	}
}

// close refuses new subscriptions with err, and returns those that there are.
func (h *hub) close(err *transport.Error) []*subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end.Store(err)
	h.checkEmpty()
	all := make([]*subscription, 0, len(h.byID))
	for _, s := range h.byID {
		all = append(all, s)
	}
	return all
}

// closing returns the error that new calls are refused with, nil before close.
func (h *hub) closing() error {
	if err := h.end.Load(); err != nil {
		return err
	}
	return nil
}

// accepted takes note of the spec that a record has at a revision. It is called
// before the source is told, which may then delete the work.
func (h *hub) accepted(k store.Key, revision uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	stock := func(s *subscription) bool { return s.hello.Protocol == 0 }
	if revision > h.routed.Load() && slices.ContainsFunc(h.index.Get(route.Scope{DataType: k.DataType, Cluster: k.Cluster}), stock) {
		h.unrouted[k] = revision
	}
}

// route puts changes, in the order of their revisions, into the mailboxes of
// whom they concern. all: there were no more when they were read.
func (h *hub) route(changes []store.Change, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range changes {
		h.routeOne(&changes[i])
	}
	routed := changes[len(changes)-1].Revision
	h.routed.Store(routed)
	if all { // what took their places was among the changes, or is in no feed
		maps.DeleteFunc(h.unrouted, func(_ store.Key, revision uint64) bool { return revision <= routed })
	}
	for s, revision := range h.awaited {
		if revision <= routed {
			delete(h.awaited, s)
			s.signal()
		}
	}
}

func (h *hub) routeOne(c *store.Change) {
	if c.Part == store.SpecPart || c.State == store.Grave {
		delete(h.repeated, c.Key)
	}
	h.unheard.changed(c)
	scope := route.Scope{DataType: c.Key.DataType, Cluster: c.Key.Cluster}
	if c.Part == store.StatusPart {
		scope = route.Scope{DataType: c.Key.DataType, Owner: c.Owner}
	}
	var flags route.Flags
	if c.Part == store.SpecPart {
		spec, unrouted := h.unrouted[c.Key]
		if c.State == store.Tombstone {
			flags = route.Deletion
			if unrouted && spec < c.Revision {
				flags |= route.SpecFirst
			}
		}
		if spec <= c.Revision {
			delete(h.unrouted, c.Key)
		}
		h.ledger.changed(c.Key, c.Revision, c.Gone)
	}
	key := route.Key{Cluster: c.Key.Cluster, ResourceID: c.Key.ResourceID}
	for _, s := range h.index.Get(scope) {
		if c.Gone {
			s.discard(key)
		} else {
			s.post(key, c.Revision, flags)
		}
	}
}

// again puts a record into the mailboxes of its cluster's agents once more.
func (h *hub) again(k store.Key, revision uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.index.Get(route.Scope{DataType: k.DataType, Cluster: k.Cluster}) {
		s.answer(route.Key{Cluster: k.Cluster, ResourceID: k.ResourceID}, max(revision, 1), 0)
	}
}

// outrun tells the agents of a record's cluster how high sequence ids have come:
// one of them sent a status under an id that is too low. The highest may have
// been accepted after they were told last, from a process before theirs.
func (h *hub) outrun(k store.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.index.Get(route.Scope{DataType: k.DataType, Cluster: k.Cluster}) {
		s.touch()
	}
}

// rest lets specs of a work wait at the stock agents of its cluster.
func (h *hub) rest(k store.Key, name string, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.index.Get(route.Scope{DataType: k.DataType, Cluster: k.Cluster}) {
		if s.hello.Protocol == 0 {
			s.rest(k.ResourceID, name, until)
		}
	}
}

// askers returns the subscriptions that a resync request is about: the one
// whose id it echoes and no other, since a list that outlived its stream is not
// what the party holds now; without an id those of its connection, else all of
// its scope.
func (h *hub) askers(scope route.Scope, id string, conn uint64) []*subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id != "" {
		if s := h.byID[id]; s != nil && s.scope == scope {
			return []*subscription{s}
		}
		return nil
	}
	var same, all []*subscription
	for _, s := range h.index.Get(scope) {
		if s.conn == conn {
			same = append(same, s)
		}
		all = append(all, s)
	}
	if len(same) > 0 {
		return same
	}
	return all
}

// agents returns the subscriptions of a cluster's agents, of every cluster
// where it is "".
func (h *hub) agents(cluster string) []*subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*subscription
	if cluster != "" {
		for _, d := range codec.DataTypes() {
			list = append(list, h.index.Get(route.Scope{DataType: d, Cluster: cluster})...)
		}
		return list
	}
	for _, s := range h.byID {
		if s.part == codec.Spec {
			list = append(list, s)
		}
	}
	return list
}

// recheck tells agents that other sources than before have compared what they
// own on their cluster.
func (h *hub) recheck(d codec.DataType, c changes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.everywhere {
		for _, s := range h.byID {
			if s.part == codec.Spec && s.scope.DataType == d {
				s.recheck()
			}
		}
		return
	}
	for _, cluster := range c.clusters {
		for _, s := range h.index.Get(route.Scope{DataType: d, Cluster: cluster}) {
			s.recheck()
		}
	}
}

// count returns the number of subscriptions by kind.
func (h *hub) count() (agents, sources int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.byID {
		if s.part == codec.Spec {
			agents++
		} else {
			sources++
		}
	}
	return agents, sources
}
