package registration

import (
	"maps"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// bootstrapStreams is how many subscriptions a bootstrap account may have, as a multiple of what
// the cluster may have for which it subscribes: many clusters join by one account.
const bootstrapStreams = 512

// maxPrivateEvents is how many events wait at a subscription that are for it alone.
const maxPrivateEvents = 16

// running is a subscription of an agent, or of the source, as others see it: they wake the goroutine
// that serves it, or have it end.
type running struct {
	id     string
	client identity.Identity
	wake   taskgroup.Bell

	mu  sync.Mutex
	why *transport.Error // it has to end; nil: it need not
}

func newRunning(id string, owner identity.Identity) running {
	return running{id: id, client: owner, wake: taskgroup.NewBell()}
}

// stop ends the stream with an error.
func (r *running) stop(why *transport.Error) {
	r.mu.Lock()
	if r.why == nil {
		r.why = why
	}
	r.mu.Unlock()
	r.wake.Ring()
}

// subscription is what everybody sees of an agent that subscribed. Others tell it that something
// has changed; what that is its stream looks up.
type subscription struct {
	running
	visibility
	conn uint64

	// Guarded by mu.
	list          *list    // what it said that it has, until that is compared
	privateEvents [][]byte // events for it alone
	left          bool
}

// list is what a party says that it has; free gives its memory back.
type list struct {
	versions []codec.ResourceVersion
	free     func()
}

// request hands a list over. It is complete, so it replaces one that was not looked at yet.
func (s *subscription) request(l *list) {
	s.mu.Lock()
	defer s.wake.Ring()
	defer s.mu.Unlock()
	if s.left {
		l.free()
		return
	}
	if s.list != nil {
		s.list.free()
	}
	s.list = l
}

// hand hands an event over that is for this subscription alone; false: it takes no more.
func (s *subscription) hand(event []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left || len(s.privateEvents) >= maxPrivateEvents {
		return false
	}
	s.privateEvents = append(s.privateEvents, event)
	s.wake.Ring()
	return true
}

// take returns what was put into it: an event that is for it alone, or why it ends. lists: also
// the list, which is then the caller's.
func (s *subscription) take(lists bool) (event []byte, l *list, why *transport.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return nil, nil, s.why
	}
	if len(s.privateEvents) > 0 {
		event = s.privateEvents[0]
		s.privateEvents[0] = nil
		s.privateEvents = s.privateEvents[1:]
		return event, nil, nil
	}
	if lists {
		l, s.list = s.list, nil
	}
	return nil, l, nil
}

// leave gives back what it still had when its stream ended.
func (s *subscription) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.privateEvents = true, nil
	if s.list != nil {
		s.list.free()
		s.list = nil
	}
}

// agents is the set of running subscriptions of agents.
type agents struct {
	mu       sync.Mutex
	byScope  map[streamScope][]*subscription
	byID     map[string]*subscription
	perShare map[share]int
	end      *transport.Error
	// empty is closed when nobody may come any more and the last one is gone.
	empty chan struct{}
}

// share is what subscriptions are counted by: a party, or one cluster of it.
type share struct {
	client  identity.Identity
	cluster string
}

func newAgents() *agents {
	return &agents{byScope: map[streamScope][]*subscription{}, byID: map[string]*subscription{}, perShare: map[share]int{}, empty: make(chan struct{})}
}

// add adds s, or says why not.
func (a *agents) add(s *subscription, perClient int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end != nil {
		return a.end
	}
	most := perClient
	if s.client.Role == identity.Bootstrap {
		most *= bootstrapStreams
	}
	if a.perShare[share{s.client, s.cluster}] >= perClient || a.perShare[share{client: s.client}] >= most {
		return overloaded("too many subscriptions of " + s.client.String())
	}
	for _, sh := range s.shares() {
		a.perShare[sh]++
	}
	a.byID[s.id] = s
	a.byScope[s.streamScope] = append(a.byScope[s.streamScope], s)
	return nil
}

func (s *subscription) shares() [2]share {
	return [2]share{{s.client, s.cluster}, {client: s.client}}
}

// remove is the end of s, which was added.
func (a *agents) remove(s *subscription) {
	a.mu.Lock()
	defer a.mu.Unlock()
	rest := slices.DeleteFunc(a.byScope[s.streamScope], func(o *subscription) bool { return o == s })
	if a.byScope[s.streamScope] = rest; len(rest) == 0 {
		delete(a.byScope, s.streamScope)
	}
	delete(a.byID, s.id)
	for _, sh := range s.shares() {
		if a.perShare[sh]--; a.perShare[sh] == 0 {
			delete(a.perShare, sh)
		}
	}
	a.checkEmpty()
}

// checkEmpty: the caller has the lock.
func (a *agents) checkEmpty() {
	if a.end == nil || len(a.byID) > 0 {
		return
	}
	select {
	case <-a.empty:
	default:
		close(a.empty)
	}
}

// close refuses new subscriptions, and returns those that there are.
func (a *agents) close(why *transport.Error) []*subscription {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = why
	a.checkEmpty()
	return slices.Collect(maps.Values(a.byID))
}

// closing returns why nobody may come any more, nil before close.
func (a *agents) closing() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end != nil {
		return a.end
	}
	return nil
}

// count returns how many there are.
func (a *agents) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.byID)
}

// wake tells the subscriptions of a place that something has changed there.
func (a *agents) wake(p streamScope) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.byScope[p] {
		s.wake.Ring()
	}
}

// wakeCluster tells all subscriptions of a cluster.
func (a *agents) wakeCluster(cluster string) {
	for _, d := range codec.RegistrationTypes() {
		a.wake(streamScope{d, cluster})
	}
}

// wakeAll tells the subscriptions of all clusters.
func (a *agents) wakeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.byID {
		s.wake.Ring()
	}
}

// askers returns the subscriptions that an event of a party is about: the one that it names; of a
// party that names none those of its connection, or else all that it has of the place.
func (a *agents) askers(p streamScope, e *request.Event) []*subscription {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.Subscription != "" {
		if s := a.byID[e.Subscription]; s != nil && s.streamScope == p && s.client == e.From {
			return []*subscription{s}
		}
		return nil
	}
	if same := a.onConnection(p, e); len(same) > 0 {
		return same
	}
	return slices.DeleteFunc(slices.Clone(a.byScope[p]), func(s *subscription) bool { return s.client != e.From })
}

// sameConnection returns those that a party has of a place on the connection of an event; of a
// party that names one, that alone.
func (a *agents) sameConnection(p streamScope, e *request.Event) []*subscription {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(a.onConnection(p, e), func(s *subscription) bool {
		return e.Subscription != "" && e.Subscription != s.id
	})
}

// onConnection: the caller has the lock.
func (a *agents) onConnection(p streamScope, e *request.Event) (same []*subscription) {
	for _, s := range a.byScope[p] {
		if s.conn == e.Conn && s.client == e.From {
			same = append(same, s)
		}
	}
	return same
}
