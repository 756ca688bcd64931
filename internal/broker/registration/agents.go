package registration

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/subscribers"
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
	r.why = cmp.Or(r.why, why)
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
	mu sync.Mutex
	subscribers.Set[streamScope, *subscription]
	perShare subscribers.Counts[share]
	end      error // for new subscriptions, nil before close
}

// ID, Scope and Conn implement [subscribers.Member].
func (s *subscription) ID() string         { return s.id }
func (s *subscription) Scope() streamScope { return s.streamScope }
func (s *subscription) Conn() uint64       { return s.conn }

// share is the key of a subscription count: a client (cluster is ""), or one cluster of a client.
type share struct {
	client  identity.Identity
	cluster string
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
	a.Add(s)
	a.count(s, 1)
	return nil
}

// count adds n to the counts that s is part of.
func (a *agents) count(s *subscription, n int) {
	a.perShare.Add(share{s.client, s.cluster}, n)
	a.perShare.Add(share{client: s.client}, n)
}

// remove removes s, which was added.
func (a *agents) remove(s *subscription) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Remove(s)
	a.count(s, -1)
}

// close lets Empty report the end of the last subscription. move has rejected new ones before.
func (a *agents) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Close()
}

// move rejects new subscriptions with why, and returns the running ones.
func (a *agents) move(why *transport.Error) []*subscription {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = why
	return slices.Collect(maps.Values(a.ByID))
}

// closing returns the error for new subscriptions, nil before close.
func (a *agents) closing() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end
}

// size returns the number of running subscriptions.
func (a *agents) size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ByID)
}

// wake wakes the subscriptions of a scope.
func (a *agents) wake(p streamScope) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.ByScope[p] {
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
	for _, s := range a.ByID {
		s.wake.Ring()
	}
}

// requesters returns the subscriptions of the scope that an event of a client is about.
func (a *agents) requesters(p streamScope, e *request.Event) []*subscription {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Requesters(p, e.Subscription, e.Conn, func(s *subscription) bool { return s.client == e.From })
}

// sameConnection returns the client's subscriptions of a scope on the connection of an event. If the event
// names a subscription, it returns only that one.
func (a *agents) sameConnection(p streamScope, e *request.Event) []*subscription {
	return slices.DeleteFunc(a.requesters(p, e), func(s *subscription) bool { return s.conn != e.Conn })
}
