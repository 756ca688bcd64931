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

// bootstrapStreams multiplies the subscription limit of a client for bootstrap accounts: many clusters join
// with one account. The limit per cluster stays the same.
const bootstrapStreams = 512

// maxPrivateEvents is the maximum number of private events that wait at one subscription.
const maxPrivateEvents = 16

// running is the part of a subscription that other goroutines use. They wake the stream, or end it.
type running struct {
	id     string
	client identity.Identity
	wake   *taskgroup.Turns

	mu  sync.Mutex
	why *transport.Error // the reason to end; nil while the subscription runs
}

func newRunning(id string, owner identity.Identity) running {
	return running{id: id, client: owner, wake: taskgroup.NewTurns()}
}

// Wake implements [request.Stream].
func (r *running) Wake() *taskgroup.Turns { return r.wake }

// stop ends the stream with an error. The first error wins.
func (r *running) stop(why *transport.Error) {
	r.mu.Lock()
	if r.why == nil {
		r.why = why
	}
	r.mu.Unlock()
	r.wake.Ring()
}

// subscription is the part of an agent's subscription that other goroutines use. They ring its bell when
// something changes; its [stream] then looks up the changes.
type subscription struct {
	running
	visibility
	conn uint64

	// Guarded by mu:
	list          *list    // what the agent holds, until it is compared; nil: no list
	privateEvents [][]byte // events for this subscription only
	left          bool
}

// list is the list of objects that a client holds. free releases its memory budget.
type list struct {
	versions []codec.ResourceVersion
	free     func()
}

// request stores a list for comparison. A list is complete, so it replaces one that was not compared yet.
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

// hand queues an event for this subscription only. It returns false if the subscription has ended or its queue
// is full.
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

// take returns the reason to end, or else the next private event. Otherwise, if lists is true, it returns the
// list, which the caller then owns.
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

// leave releases the queued events and the list after the stream has ended.
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
	// empty is closed when no new subscription is accepted and the last one has ended.
	empty chan struct{}
}

// share is the key of a subscription count: a client (cluster is ""), or one cluster of a client.
type share struct {
	client  identity.Identity
	cluster string
}

func newAgents() *agents {
	return &agents{byScope: map[streamScope][]*subscription{}, byID: map[string]*subscription{}, perShare: map[share]int{}, empty: make(chan struct{})}
}

// add adds s. It returns an error if the client has too many subscriptions or the broker drains.
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

// remove removes s, which was added.
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

// checkEmpty closes empty if new subscriptions are rejected and the last one has ended. The caller holds the
// lock.
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

// close rejects new subscriptions with why, and returns the running ones.
func (a *agents) close(why *transport.Error) []*subscription {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = why
	a.checkEmpty()
	return slices.Collect(maps.Values(a.byID))
}

// closing returns the error for new subscriptions, nil before close.
func (a *agents) closing() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end != nil {
		return a.end
	}
	return nil
}

// count returns the number of running subscriptions.
func (a *agents) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.byID)
}

// wake wakes the subscriptions of a scope.
func (a *agents) wake(p streamScope) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.byScope[p] {
		s.wake.Ring()
	}
}

// wakeCluster wakes all subscriptions of a cluster.
func (a *agents) wakeCluster(cluster string) {
	for _, d := range codec.RegistrationTypes() {
		a.wake(streamScope{d, cluster})
	}
}

// wakeAll wakes all subscriptions.
func (a *agents) wakeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.byID {
		s.wake.Ring()
	}
}

// requesters returns the subscriptions of the scope that an event of a client is about. If the event names a
// subscription, that is the only one. Otherwise it is those on the connection of the event or, if there are
// none, all of the client.
func (a *agents) requesters(p streamScope, e *request.Event) []*subscription {
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

// sameConnection returns the client's subscriptions of a scope on the connection of an event. If the event
// names a subscription, it returns only that one.
func (a *agents) sameConnection(p streamScope, e *request.Event) []*subscription {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(a.onConnection(p, e), func(s *subscription) bool {
		return e.Subscription != "" && e.Subscription != s.id
	})
}

// onConnection returns the client's subscriptions of a scope on the connection of an event. The caller holds
// the lock.
func (a *agents) onConnection(p streamScope, e *request.Event) (same []*subscription) {
	for _, s := range a.byScope[p] {
		if s.conn == e.Conn && s.client == e.From {
			same = append(same, s)
		}
	}
	return same
}
