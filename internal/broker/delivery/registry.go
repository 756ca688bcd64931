package delivery

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/subscribers"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// registry is the set of running subscriptions and the position of the router. Its lock is held while keys are
// put into queues, never while anything is sent.
type registry struct {
	mu sync.Mutex
	subscribers.Set[store.Scope, *subscription]
	perClient subscribers.Counts[identity.Identity]
	// routed is a revision: the router has put each change up to it into the queues. It is written under the lock.
	routed   atomic.Uint64
	unrouted unrouted
	// awaited maps subscriptions to the value of routed at which they are woken.
	awaited map[*subscription]uint64
	// end is the error for new calls, nil while calls are allowed. It is set under the lock, once.
	end atomic.Pointer[transport.Error]
	// moved is the error for new subscriptions while the running ones move to other replicas, else nil.
	moved *transport.Error
}

func newRegistry(revision uint64) *registry {
	r := &registry{
		Set: subscribers.New[store.Scope, *subscription](), perClient: subscribers.Counts[identity.Identity]{}, unrouted: newUnrouted(revision),
		awaited: map[*subscription]uint64{},
	}
	r.routed.Store(revision)
	return r
}

// position returns the revision up to which changes are routed.
func (r *registry) position() uint64 { return r.routed.Load() }

// await wakes s when changes up to a revision are routed. A later call replaces the revision.
func (r *registry) await(s *subscription, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.routed.Load() >= revision {
		s.wake.Ring()
		return
	}
	r.awaited[s] = revision
}

// add registers s: each change routed from now on reaches it. perClient limits the subscriptions of a client.
func (r *registry) add(s *subscription, perClient int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmp.Or(r.end.Load(), r.moved); err != nil {
		return err
	}
	if r.perClient[s.client] >= perClient {
		return request.Overloaded("too many subscriptions of "+s.client.String(), request.RetryAfter)
	}
	r.perClient.Add(s.client, 1)
	r.Add(s)
	return nil
}

// remove removes s, which must have been added.
func (r *registry) remove(s *subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Remove(s)
	r.perClient.Add(s.client, -1)
	delete(r.awaited, s)
}

// move rejects new subscriptions with err, and returns the running ones.
func (r *registry) move(err *transport.Error) []*subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved = err
	return slices.Collect(maps.Values(r.ByID))
}

// someAgents returns up to n subscriptions of Hawser's agents, in any order.
func (r *registry) someAgents(n int) (list []*subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.ByID {
		if len(list) == n {
			break
		}
		if s.part == codec.Spec && s.hello.Protocol != 0 {
			list = append(list, s)
		}
	}
	return list
}

// close rejects new subscriptions with err and returns the existing ones.
func (r *registry) close(err *transport.Error) []*subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end.Store(err)
	return r.Close()
}

// route puts changes, in the order of their revisions, into the queues of their subscribers. all is true if the
// store had no further changes when they were read.
func (r *registry) route(changes []store.Change, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range changes {
		r.routeOne(&changes[i])
	}
	routed := changes[len(changes)-1].Revision
	r.routed.Store(routed)
	r.unrouted.pass(changes, all)
	for s, revision := range r.awaited {
		if revision <= routed {
			delete(r.awaited, s)
			s.wake.Ring()
		}
	}
}

func (r *registry) routeOne(c *store.Change) {
	if c.Part == store.BookmarkPart {
		return
	}
	scope := scopeOf(c.Key)
	if c.Part == store.StatusPart {
		scope = store.Scope{DataType: c.Key.DataType, Owner: c.Owner}
	}
	var flags deliveryqueue.Flags
	switch {
	case c.Part == store.SpecPart:
		flags = r.unrouted.flags(c)
	case c.State == store.ConfirmedTombstone: // the final status is queued with the deletions, because the source waits for it
		flags = deliveryqueue.Deletion
	}
	for _, s := range r.ByScope[scope] {
		if c.Gone {
			s.discard(keyOf(c.Key))
		} else {
			s.post(keyOf(c.Key), c.Revision, flags)
		}
	}
}

// scopeOf returns the scope of the agents of a record's cluster; keyOf returns its key in their queues.
func scopeOf(k store.Key) store.Scope {
	return store.Scope{DataType: k.DataType, Cluster: k.Cluster}
}

func keyOf(k store.Key) deliveryqueue.Key {
	return deliveryqueue.Key{Cluster: k.Cluster, ResourceID: k.ResourceID}
}

// each calls f for the subscriptions of a scope, with the lock held.
func (r *registry) each(scope store.Scope, f func(*subscription)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.ByScope[scope] {
		f(s)
	}
}

// of returns the subscriptions of a scope.
func (r *registry) of(scope store.Scope) []*subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ByScope[scope])
}

// agents returns the subscriptions of a cluster's agents. The cluster "" selects all.
func (r *registry) agents(cluster string) (list []*subscription) {
	if cluster == "" {
		return r.all(codec.Spec)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range codec.DataTypes() {
		list = append(list, r.ByScope[store.Scope{DataType: d, Cluster: cluster}]...)
	}
	return list
}

// all returns the subscriptions to a part: of agents to specs, of sources to statuses.
func (r *registry) all(part codec.Subresource) (list []*subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.ByID {
		if s.part == part {
			list = append(list, s)
		}
	}
	return list
}

// sources returns the names of the sources with subscriptions, once per data type.
func (r *registry) sources() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for scope := range r.ByScope {
		if scope.Owner != "" {
			names = append(names, scope.Owner)
		}
	}
	return names
}

// requesters returns the subscriptions that a resync request is about.
func (r *registry) requesters(scope store.Scope, id string, conn uint64) []*subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Requesters(scope, id, conn, func(*subscription) bool { return true })
}

// named returns the running subscription that a sync event names. It must belong to the publisher and use
// Hawser's protocol.
func (r *registry) named(e *request.Event) (*subscription, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.ByID[e.Subscription]
	if s == nil || s.client != e.From || s.hello.Protocol == 0 {
		return nil, request.NoSubscription(e.From)
	}
	return s, nil
}

// delivered returns the running subscription that a sync event names, and the parsed content of the event.
func delivered[T any](r *registry, e *request.Event, parse func(codec.Event) (T, error)) (s *subscription, reported T, err error) {
	if s, err = r.named(e); err != nil {
		return nil, reported, err
	}
	reported, err = request.Decode(e, parse)
	return s, reported, err
}

// count returns the number of subscriptions to this part over this transport; over "" selects all transports.
func (r *registry) count(part codec.Subresource, over string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.ByID {
		if s.part == part && (over == "" || s.transport == over) {
			n++
		}
	}
	return n
}

// mailed returns the number of records in the queues of all subscriptions.
func (r *registry) mailed() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.ByID {
		n += s.mailed()
	}
	return n
}

// Move rejects new subscriptions with an error. It returns one function for each running one, which ends it with the
// same error. Publishes of the others are accepted as before.
func (f *Feed) Move(why *transport.Error) (ends []func()) {
	for _, s := range f.registry.move(why) {
		ends = append(ends, func() { s.stop(why) })
	}
	return ends
}

// AgentCount returns the number of subscriptions of agents.
func (f *Feed) AgentCount() int { return f.registry.count(codec.Spec, "") }

// MoveAgents ends n subscriptions of agents with an error. Agents of Open Cluster Management stay: they would not choose
// another broker.
func (f *Feed) MoveAgents(why *transport.Error, n int) {
	for _, s := range f.registry.someAgents(n) {
		s.stop(why)
	}
}

// drain waits for ctx to end and then rejects new calls. It ends all streams at once, because the clients come back
// only after the restart: a slow end would delay all of them. It waits for the streams, up to the drain timeout.
func (f *Feed) drain(ctx context.Context) error {
	<-ctx.Done()
	streams := f.registry.close(request.ErrDraining())
	if len(streams) > 0 {
		f.cfg.Log.Info("draining", "streams", len(streams))
	}
	for _, s := range streams {
		s.stop(request.ErrDraining())
	}
	if !f.cfg.Drained(f.registry.Empty()) {
		f.cfg.Log.Warn("drain timeout is over, some streams did not end", "agents", f.registry.count(codec.Spec, ""), "sources", f.registry.count(codec.Status, ""))
	}
	return nil
}
