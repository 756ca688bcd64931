package ingest

import (
	"cmp"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Fences reject events that arrive too late.
//
// Scenario:
//
//	t1: a client publishes; its connection breaks and delays the event.
//	t2: the client reconnects and compares.
//	t3: the event arrives; the comparison would not repair its effect.
//
// Result: an event that names a subscription is accepted only while that subscription runs. A source that
// publishes, compares, or releases a cluster, ends its earlier subscriptions, also those at other brokers (see
// [store.Fence]).
//
// OCM clients name no subscription. Within a subscription the source numbers the events whose order matters;
// see [fenceOrder].
type Fences struct {
	store FenceStore

	mu   sync.Mutex
	byID map[string]*Fence
}

// FenceStore has the fences of all brokers.
type FenceStore interface {
	Head() store.Head
	Bookmark(name string) (store.Bookmark, bool)
}

// Fence decides which events of one subscription are accepted. Only subscriptions of Hawser clients have one.
type Fence struct {
	client identity.Identity
	scope  store.Scope
	// shared is the fence for all brokers, the zero value if the client is an agent.
	shared store.Fence
	end    func(*transport.Error)

	mu    sync.Mutex
	ended bool
	order fenceOrder
}

func newFences(s FenceStore) *Fences { return &Fences{store: s, byID: map[string]*Fence{}} }

// Open begins a subscription. The function end ends it. This broker must have followed the store up to the head that
// the store had when the client subscribed.
func (x *Fences) Open(id string, client identity.Identity, scope store.Scope, end func(*transport.Error)) {
	f := &Fence{client: client, scope: scope, end: end}
	if scope.Owner != "" {
		f.shared = store.FenceOf(scope, x.store.Head().Revision, id)
	}
	x.mu.Lock()
	x.byID[id] = f
	x.mu.Unlock()
	// Follow may have passed a takeover since the head was read.
	if b, ok := x.store.Bookmark(f.shared.Name); ok {
		if err := x.endBehind(f.shared.Name, b.Value); err != nil {
			end(request.Internal(err))
		}
	}
}

// End notes that a subscription is about to end. From now on events that name it are rejected.
func (x *Fences) End(id string) {
	x.mu.Lock()
	f := x.byID[id]
	x.mu.Unlock()
	if f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ended = true
	}
}

// Close removes a subscription that has ended.
func (x *Fences) Close(id string) {
	x.End(id)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, id)
}

// Find returns the fence of a running subscription if the subscription belongs to this client, otherwise nil.
func (x *Fences) Find(id string, client identity.Identity) *Fence {
	x.mu.Lock()
	defer x.mu.Unlock()
	if f := x.byID[id]; f != nil && f.client == client {
		return f
	}
	return nil
}

// fenced returns the ops that commit an event of a subscription. f is nil if the event names none. The first event of a
// source's subscription takes over from the earlier ones.
//
// Scenario:
//
//	t1: a source publishes a spec; its broker cannot commit it, and the connection breaks.
//	t2: the source subscribes at another broker, and publishes the spec and its deletion. The agent confirms it, the
//	    source acknowledges that, and no tombstone is left.
//	t3: the first broker can commit again.
//
// Result: it does not commit the spec.
func (x *Fences) fenced(f *Fence, op store.Op) []store.Op {
	if f == nil || f.shared.Name == "" {
		return []store.Op{op}
	}
	op.Fence = f.shared
	if b, ok := x.store.Bookmark(f.shared.Name); ok && f.shared.Leads(b.Value) {
		return []store.Op{op}
	}
	return []store.Op{f.shared.Takeover(), op}
}

// endBehind ends the subscriptions that run here and that are behind last, the value of the bookmark name.
func (x *Fences) endBehind(name string, last []byte) (err error) {
	x.mu.Lock()
	var behind []*Fence
	for _, f := range x.byID {
		if f.shared.Name != name {
			continue
		}
		is, unreadable := f.shared.IsBehind(last)
		if err = cmp.Or(err, unreadable); is {
			behind = append(behind, f)
		}
	}
	x.mu.Unlock()
	for _, f := range behind {
		f.end(request.Unavailable("", "a later session of "+f.client.String()+" publishes or compares",
			"run one process for each source id, or let them elect a leader"))
	}
	return err
}

// Follow ends the subscriptions from which another one has taken over, maybe at another broker. It is a part of the
// change feed.
func (x *Fences) Follow(changes []store.Change) error {
	for i := range changes {
		c := &changes[i]
		if c.Part != store.BookmarkPart || c.Gone || !store.IsFence(c.Key.ResourceID) {
			continue
		}
		if err := x.endBehind(c.Key.ResourceID, c.Value); err != nil {
			return err
		}
	}
	return nil
}

// guard returns the fence of the subscription that an event names, and a function that returns the error if the
// event is rejected. Both are nil if the event names no subscription.
func (x *Fences) guard(e *request.Event) (f *Fence, checkValid func() *transport.Error, err error) {
	if e.Subscription == "" {
		return nil, nil, nil
	}
	f = x.Find(e.Subscription, e.From)
	if f == nil {
		return nil, nil, request.SubscriptionOver()
	}
	checkValid = func() *transport.Error { return f.checkValid(e.Env.Cluster, e.Env.Fence) }
	if err := checkValid(); err != nil {
		return nil, nil, err
	}
	return f, checkValid, nil
}

// Scope returns the scope of the subscription.
func (f *Fence) Scope() store.Scope { return f.scope }

// Shared returns the fence for all brokers.
func (f *Fence) Shared() store.Fence { return f.shared }

// checkValid returns why an event is rejected, nil if it is not. Either the subscription has ended, or a
// release of the cluster has a higher number than the event. A release never rejects itself, because the number
// must be higher.
func (f *Fence) checkValid(cluster string, n uint64) *transport.Error {
	return f.accepts(func() bool { return n == 0 || n >= f.order.releasedAt(cluster) })
}

// accepts records an event with record, which returns false if the event comes too late. It returns why an event
// is rejected.
func (f *Fence) accepts(record func() bool) *transport.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return request.SubscriptionOver()
	case !record():
		return request.Superseded()
	}
	return nil
}

// release records a release, or returns why it is rejected.
func (f *Fence) release(cluster string, n uint64) *transport.Error {
	return f.accepts(func() bool { return f.order.release(cluster, n) })
}

// Compares records a comparison, or returns why it is rejected.
func (f *Fence) Compares(n uint64) *transport.Error {
	return f.accepts(func() bool { return f.order.compare(n) })
}

// maxReleased is the maximum number of clusters of one subscription for which the last release is stored
// separately.
const maxReleased = 1 << 12

// fenceOrder tracks the fencing tokens with which a source numbers its events about clusters on one
// subscription. A call that the source gave up may arrive after a later call, because handlers run concurrently
// and proxies open their own connections. Versions order only the specs of one work. But
//
//   - a spec that arrives after the release of its cluster would stay in the store,
//   - a release that arrives after the specs of a cluster that is served again would drop them,
//   - a comparison that arrives after either would be taken as current.
//
// So a release separates earlier events from later ones. An event without a number (0) is ordered by its
// arrival.
type fenceOrder struct {
	// last is the highest number of a comparison or a release.
	last uint64
	// released maps clusters to the number of their last release. For other clusters, numbers up to forgotten are
	// rejected.
	released  map[string]uint64
	forgotten uint64
}

// releasedAt returns the number up to which events about a cluster are rejected.
func (o *fenceOrder) releasedAt(cluster string) uint64 {
	if n, ok := o.released[cluster]; ok {
		return n
	}
	return o.forgotten
}

// release records a release. It returns false if a later event supersedes it.
func (o *fenceOrder) release(cluster string, n uint64) bool {
	if n == 0 {
		return true
	}
	if _, known := o.released[cluster]; !known && len(o.released) >= maxReleased {
		clear(o.released)
		o.forgotten = o.last
	}
	if n <= o.releasedAt(cluster) {
		return false
	}
	if o.released == nil {
		o.released = map[string]uint64{}
	}
	o.released[cluster] = n
	o.last = max(o.last, n)
	return true
}

// compare records a comparison. It returns false if a later event supersedes it.
func (o *fenceOrder) compare(n uint64) bool {
	if n != 0 && n <= o.last {
		return false
	}
	o.last = max(o.last, n)
	return true
}
