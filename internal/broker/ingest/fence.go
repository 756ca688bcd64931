package ingest

import (
	"sync"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Fences keep out what comes too late to count.
//
//	t1  a party publishes; its connection breaks and holds the event back
//	t2  it connects anew, and compares what there is
//	t3  the event arrives: the comparison would not repair what it then does
//
// Therefore an event that names a subscription counts only while that is running, and a
// source that compares, or releases a cluster, ends the subscriptions that it had before.
// Stock parties name none. What must not change places within a subscription is numbered by
// the source; see [fenceOrder].
type Fences struct {
	mu     sync.Mutex
	byID   map[string]*Fence
	serial uint64
}

// Fence is what counts of one subscription that speaks Hawser's protocol.
type Fence struct {
	client identity.Identity
	scope  store.Scope
	serial uint64 // orders subscriptions by the time they began
	end    func(*transport.Error)

	mu    sync.Mutex
	ended bool
	order fenceOrder
}

func newFences() *Fences { return &Fences{byID: map[string]*Fence{}} }

// Open begins a subscription; end ends it.
func (x *Fences) Open(id string, owner identity.Identity, scope store.Scope, end func(*transport.Error)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.serial++
	x.byID[id] = &Fence{client: owner, scope: scope, serial: x.serial, end: end}
}

// End says that a subscription is about to end: nothing that names it counts any more.
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

// Close forgets a subscription that has ended.
func (x *Fences) Close(id string) {
	x.End(id)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, id)
}

// Find returns the running subscription with an id, if it is of this party and of Hawser's
// protocol; else nil.
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

// guard returns the subscription that an event names, and what says why the event counts no
// longer; both are nil where it names none.
func (x *Fences) guard(e *request.Event) (f *Fence, void func() *transport.Error, err error) {
	if e.Subscription == "" {
		return nil, nil, nil
	}
	f = x.Find(e.Subscription, e.From)
	if f == nil {
		return nil, nil, subscriptionOver()
	}
	void = func() *transport.Error { return f.checkValid(e.Env.Cluster, e.Env.Fence) }
	if err := void(); err != nil {
		return nil, nil, err
	}
	return f, void, nil
}

// Scope is what the subscription covers.
func (f *Fence) Scope() store.Scope { return f.scope }

// checkValid says why an event does not count, nil if it does: the subscription was ended, or the
// cluster was released later than the event was said. A release is not later than itself.
func (f *Fence) checkValid(cluster string, n uint64) *transport.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return subscriptionOver()
	case n != 0 && n < f.order.releasedAt(cluster):
		return request.Superseded()
	}
	return nil
}

// release takes note of a release and calls revoke, unless it is void. revoke is called under
// the lock: once a later subscription has begun, nothing is revoked.
func (f *Fence) release(cluster string, n uint64, revoke func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return subscriptionOver()
	case !f.order.release(cluster, n):
		return request.Superseded()
	}
	revoke()
	return nil
}

// Compares takes note of a comparison, unless it is void.
func (f *Fence) Compares(n uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return subscriptionOver()
	case !f.order.compare(n):
		return request.Superseded()
	}
	return nil
}

func subscriptionOver() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Attribute: codec.HeaderSubscriptionID,
		Message: "the subscription that the event names is over", Hint: "publish it again through the next one",
	}
}

// maxReleased is how many releases of one subscription are remembered one by one.
const maxReleased = 1 << 12

// fenceOrder is how far a source has come on one subscription, by the fencing tokens with which
// it numbers what it says of clusters. A call that it gave up may arrive behind a later one:
// handlers run at the same time, and proxies open connections of their own. Of the specs of
// one work the version tells which is the later. But
//
//   - a spec behind the release of its cluster would be left behind there,
//   - a release behind the specs of a cluster that is served again would drop them,
//   - a comparison behind either would count as one of what is so now.
//
// So a release divides earlier from later. What has no number, 0, counts as said when it
// arrives.
type fenceOrder struct {
	// last is the highest number of a comparison or a release.
	last uint64
	// released are those of the last release of each cluster. Of the others nothing up to
	// forgotten counts.
	released  map[string]uint64
	forgotten uint64
}

// releasedAt returns the number up to which nothing counts that is about a cluster.
func (o *fenceOrder) releasedAt(cluster string) uint64 {
	if n, ok := o.released[cluster]; ok {
		return n
	}
	return o.forgotten
}

// release takes note of a release; false: something later made it void.
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

// compare takes note of a comparison; false: something later made it void.
func (o *fenceOrder) compare(n uint64) bool {
	if n != 0 && n <= o.last {
		return false
	}
	o.last = max(o.last, n)
	return true
}
