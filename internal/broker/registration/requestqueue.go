package registration

import (
	"sync"

	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/subscribers"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// Limits of the request queue. The source works on a few requests at a time; the other requests wait here in
// fair order.
const (
	// inFlight is the maximum number of requests at the source, inFlightPerClient that of one agent. inFlightOfMany
	// is that of a client with many clusters.
	inFlight          = 128
	inFlightPerClient = 8
	inFlightOfMany    = 32
	// queuedOfCluster is the maximum number of queued requests of a client for one cluster, queuedPerClient that
	// for all clusters.
	queuedOfCluster = 32
	queuedPerClient = 4096
)

// agentRequest is one request that waits for its answer.
type agentRequest struct {
	id string
	// from is the client that requests something for cluster.
	from     identity.Identity
	cluster  string
	size     int
	request  *hawserv1.RegistrationRequest
	sent     bool // to the source
	answered bool // done has received the answer
	// done receives once: the answer or the error.
	done chan outcome
}

type outcome struct {
	answer *hawserv1.RegistrationAnswer
	err    *transport.Error
}

// requestQueue holds requests until they are sent to the source, and then until they are answered. The
// scheduler serves clients fairly, and within a client its clusters, because a bootstrap account acts for many
// clusters.
//
// Each request belongs to a running call, which removes it at its end. So the number of calls bounds the queue,
// and a request leaves it when its caller gives up.
type requestQueue struct {
	budget *bytebudget.Budget
	// wake is called when there is something to send.
	wake func()

	mu      sync.Mutex
	open    bool // a source is connected
	closed  *transport.Error
	waiting fair.Tree[identity.Identity, string, struct{}, *agentRequest] // by client and cluster
	all     map[string]*agentRequest                                      // queued or in flight, by id
	// inFlight is the number of requests at the source, perClient that of each client.
	inFlight  int
	perClient subscribers.Counts[identity.Identity]
}

func newRequestQueue(bytes int, wake func()) *requestQueue {
	return &requestQueue{
		budget: bytebudget.NewBudget(bytes), wake: wake, all: map[string]*agentRequest{}, perClient: subscribers.Counts[identity.Identity]{},
	}
}

// most returns the maximum number of requests of a client at the source.
func most(of identity.Identity) int {
	if of.Role == identity.Agent {
		return inFlightPerClient
	}
	return inFlightOfMany
}

// put queues a request, or returns the error. After a success the caller must call drop in the end.
func (d *requestQueue) put(a *agentRequest) *transport.Error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ofClient, ofCluster := d.waiting.Len(a.from, a.cluster)
	switch {
	case d.closed != nil:
		return d.closed
	case !d.open:
		return unavailable(noSource)
	case ofCluster >= queuedOfCluster || ofClient >= queuedPerClient:
		return overloaded("too many requests of " + a.from.String() + " wait")
	}
	if ok, _ := d.budget.ReservePart(a.from, a.cluster, a.size); !ok {
		return overloaded("too many bytes of requests wait for the hub")
	}
	d.waiting.Push(a.from, a.cluster, struct{}{}, false, 1, a)
	d.all[a.id] = a
	d.wake()
	return nil
}

// next returns the next request for the source and marks it as in flight. It returns nil if there is none or
// inFlight requests are at the source.
func (d *requestQueue) next() *agentRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inFlight >= inFlight {
		return nil
	}
	from, a, ok := d.waiting.Pop()
	if !ok {
		return nil
	}
	a.sent = true
	d.count(from, 1)
	return a
}

// count adds n to the number of requests in flight. A client whose share at the source is used up waits. The caller
// holds the lock.
func (d *requestQueue) count(of identity.Identity, n int) {
	d.inFlight += n
	d.perClient.Add(of, n)
	if d.perClient[of] < most(of) {
		d.waiting.Resume(of)
	} else {
		d.waiting.Park(of)
	}
}

// drop removes a request, queued or in flight, and releases its memory.
func (d *requestQueue) drop(a *agentRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.sent {
		d.count(a.from, -1)
		d.wake() // there is capacity for another request
	} else {
		d.waiting.Remove(a.from, a.cluster, func(o *agentRequest) bool { return o == a })
	}
	delete(d.all, a.id)
	d.budget.FreePart(a.from, a.cluster, a.size)
}

// answer delivers an answer to its request. It returns false if the request was removed or already has an
// answer.
func (d *requestQueue) answer(answer *hawserv1.RegistrationAnswer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.all[answer.GetId()]
	return a != nil && a.sent && a.answer(outcome{answer: answer})
}

// answer ends a request. It returns false if it had ended before. The caller holds the lock.
func (a *agentRequest) answer(o outcome) bool {
	if a.answered {
		return false
	}
	a.answered = true
	a.done <- o // never blocks: the channel has a buffer of 1
	return true
}

// begin opens the queue for a new subscription of the source. Requests in flight at the previous one fail: it
// is unknown whether the hub has executed them.
func (d *requestQueue) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = true
	d.fail(unavailable(sourceGone), func(a *agentRequest) bool { return a.sent })
}

// end closes the queue while no source is connected. All requests fail at once.
func (d *requestQueue) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = false
	d.fail(unavailable(sourceGone), every)
}

// close rejects all requests from now on.
func (d *requestQueue) close(why *transport.Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = why
	d.fail(why, every)
}

// every is true for all requests.
func every(*agentRequest) bool { return true }

// fail ends the requests for which is returns true. The caller holds the lock.
func (d *requestQueue) fail(why *transport.Error, is func(*agentRequest) bool) {
	for _, a := range d.all {
		if is(a) {
			a.answer(outcome{err: why})
		}
	}
}

// size returns the number of requests, queued or in flight.
func (d *requestQueue) size() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all)
}
