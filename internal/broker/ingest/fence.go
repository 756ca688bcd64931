package ingest

import (
	"sync"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
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
// compares, or releases a cluster, ends its earlier subscriptions.
//
// OCM clients name no subscription. Within a subscription the source numbers the events whose order matters;
// see [fenceOrder].
type Fences struct {
	mu     sync.Mutex
	byID   map[string]*Fence
	serial uint64
}

// Fence decides which events of one subscription are accepted. Only subscriptions of Hawser clients have one.
type Fence struct {
	client identity.Identity
	scope  store.Scope
	serial uint64 // orders subscriptions by their start
	end    func(*transport.Error)

	mu    sync.Mutex
	ended bool
	order fenceOrder
}

func newFences() *Fences { return &Fences{byID: map[string]*Fence{}} }

// Open begins a subscription. The function end ends it.
func (x *Fences) Open(id string, owner identity.Identity, scope store.Scope, end func(*transport.Error)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.serial++
	x.byID[id] = &Fence{client: owner, scope: scope, serial: x.serial, end: end}
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

// endBefore ends the earlier subscriptions of the source of f.
func (x *Fences) endBefore(f *Fence) {
	x.mu.Lock()
	var earlier []*Fence
	for _, o := range x.byID {
		if o.scope == f.scope && o.serial < f.serial {
			earlier = append(earlier, o)
		}
	}
	x.mu.Unlock()
	for _, o := range earlier {
		o.end(request.Unavailable("", "another session of "+f.client.String()+" compares what it owns, or releases a cluster",
			"run one process for each source id, or let them elect a leader"))
	}
}

// guard returns the fence of the subscription that an event names, and a function that returns the error if the
// event is rejected. Both are nil if the event names no subscription.
func (x *Fences) guard(e *request.Event) (f *Fence, checkValid func() *transport.Error, err error) {
	if e.Subscription == "" {
		return nil, nil, nil
	}
	f = x.Find(e.Subscription, e.From)
	if f == nil {
		return nil, nil, subscriptionOver()
	}
	checkValid = func() *transport.Error { return f.checkValid(e.Env.Cluster, e.Env.Fence) }
	if err := checkValid(); err != nil {
		return nil, nil, err
	}
	return f, checkValid, nil
}

// Scope returns the scope of the subscription.
func (f *Fence) Scope() store.Scope { return f.scope }

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
		return subscriptionOver()
	case !record():
		return request.Superseded()
	}
	return nil
}

// release records a release and calls revoke, unless the release is rejected. revoke is called under the lock,
// so it is never called after a later subscription has ended this one.
func (f *Fence) release(cluster string, n uint64, revoke func()) *transport.Error {
	return f.accepts(func() bool {
		recorded := f.order.release(cluster, n)
		if recorded {
			revoke()
		}
		return recorded
	})
}

// Compares records a comparison, or returns why it is rejected.
func (f *Fence) Compares(n uint64) *transport.Error {
	return f.accepts(func() bool { return f.order.compare(n) })
}

func subscriptionOver() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Attribute: codec.HeaderSubscriptionID,
		Message: "the subscription that the event names has ended", Hint: "publish it again on the next subscription",
	}
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
