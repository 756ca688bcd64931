package broker

import (
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// A call that its source gave up may arrive, or be carried out, behind a later one:
// handlers run at the same time, and proxies open connections of their own. Of the
// specs of one work the version tells which is the later. But a spec behind the
// release of its cluster would be left behind there, a release behind the specs of
// a cluster that is served again would drop them, and a comparison behind either
// would count as one of what is so now. So a source numbers what it says of clusters
// on a subscription, and a release is what divides earlier from later.

// maxReleased is how many releases of one subscription are remembered one by one.
const maxReleased = 1 << 12

// order is how far a source has come on one subscription. What has no number, 0,
// counts as said when it arrives.
type order struct {
	// last is the highest number of a comparison or a release.
	last uint64
	// released are those of the last release of each cluster. Of the others nothing
	// up to forgotten counts.
	released  map[string]uint64
	forgotten uint64
}

// released returns the number up to which nothing counts that is about a cluster.
func (o *order) releasedAt(cluster string) uint64 {
	if n, ok := o.released[cluster]; ok {
		return n
	}
	return o.forgotten
}

// release takes note of a release; false: something later made it void.
func (o *order) release(cluster string, n uint64) bool {
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
func (o *order) compare(n uint64) bool {
	if n != 0 && n <= o.last {
		return false
	}
	o.last = max(o.last, n)
	return true
}

// void says why an event of the subscription does not count, nil if it does: the
// subscription was ended or left, or the cluster was released later than it was
// said. A release is not later than itself.
func (s *subscription) void(cluster string, n uint64) *transport.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.end != nil || s.released:
		return sessionOver()
	case n != 0 && n < s.order.releasedAt(cluster):
		return overtaken()
	}
	return nil
}

// releases takes note of a release and calls revoke, unless it is void. revoke is
// called under the lock: once a later session has begun, nothing is revoked.
func (s *subscription) releases(cluster string, n uint64, revoke func()) *transport.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.end != nil || s.released:
		return sessionOver()
	case !s.order.release(cluster, n):
		return overtaken()
	}
	revoke()
	return nil
}

// compares takes note of a comparison, unless it is void.
func (s *subscription) compares(n uint64) *transport.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.end != nil || s.released:
		return sessionOver()
	case !s.order.compare(n):
		return overtaken()
	}
	return nil
}

func overtaken() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: comeBack, Attribute: codec.ExtOrder,
		Message: "the source has said something later", Hint: "say it again of what is so now, with a higher number",
	}
}
