package registration

import (
	"slices"
	"sync"

	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
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

	mu        sync.Mutex
	open      bool // a source is connected
	closed    *transport.Error
	scheduler fair.Scheduler[identity.Identity]
	clients   map[identity.Identity]*clientQueue
	inFlight  map[string]*agentRequest // at the source, by id
	queued    int
}

// clientQueue holds the requests of one client.
type clientQueue struct {
	scheduler        fair.Scheduler[string]
	lines            map[string][]*agentRequest // by cluster
	queued, inFlight int
}

func newRequestQueue(bytes int, wake func()) *requestQueue {
	return &requestQueue{
		budget: bytebudget.NewBudget(bytes), wake: wake,
		clients: map[identity.Identity]*clientQueue{}, inFlight: map[string]*agentRequest{},
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
	p := d.clients[a.from]
	switch {
	case d.closed != nil:
		return d.closed
	case !d.open:
		return unavailable(noSource)
	case p != nil && (len(p.lines[a.cluster]) >= queuedOfCluster || p.queued >= queuedPerClient):
		return overloaded("too many requests of " + a.from.String() + " wait")
	}
	if ok, _ := d.budget.ReservePart(a.from, a.cluster, a.size); !ok {
		return overloaded("too many bytes of requests wait for the hub")
	}
	if p == nil {
		p = &clientQueue{lines: map[string][]*agentRequest{}}
		d.clients[a.from] = p
	}
	p.lines[a.cluster] = append(p.lines[a.cluster], a)
	p.scheduler.Join(a.cluster)
	p.queued++
	d.queued++
	d.join(a.from, p)
	d.wake()
	return nil
}

// join lets the scheduler serve a client if it has queued requests and its share at the source is not used up.
// The caller holds the lock.
func (d *requestQueue) join(of identity.Identity, p *clientQueue) {
	if p.queued > 0 && p.inFlight < most(of) {
		d.scheduler.Join(of)
	} else {
		d.scheduler.Leave(of)
	}
}

// next returns the next request for the source and marks it as in flight. It returns nil if there is none or
// inFlight requests are at the source.
func (d *requestQueue) next() *agentRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.inFlight) >= inFlight {
		return nil
	}
	from, ok := d.scheduler.Next(1)
	if !ok {
		return nil
	}
	p := d.clients[from]
	cluster, _ := p.scheduler.Next(1)
	a := p.lines[cluster][0]
	d.take(p, a)
	p.inFlight++
	d.inFlight[a.id] = a
	d.join(from, p)
	return a
}

// take removes a request from the queue of its cluster. The caller holds the lock.
func (d *requestQueue) take(p *clientQueue, a *agentRequest) {
	line := slices.DeleteFunc(p.lines[a.cluster], func(o *agentRequest) bool { return o == a })
	if p.lines[a.cluster] = line; len(line) == 0 {
		delete(p.lines, a.cluster)
		p.scheduler.Leave(a.cluster)
	}
	p.queued--
	d.queued--
}

// drop removes a request, queued or in flight, and releases its memory.
func (d *requestQueue) drop(a *agentRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.clients[a.from]
	if d.inFlight[a.id] != nil {
		delete(d.inFlight, a.id)
		p.inFlight--
		d.wake() // there is capacity for another request
	} else {
		d.take(p, a)
	}
	d.join(a.from, p)
	if p.queued+p.inFlight == 0 {
		delete(d.clients, a.from)
	}
	d.budget.FreePart(a.from, a.cluster, a.size)
}

// answer delivers an answer to its request. It returns false if the request was removed or already has an
// answer.
func (d *requestQueue) answer(answer *hawserv1.RegistrationAnswer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.inFlight[answer.GetId()]
	return a != nil && a.answer(outcome{answer: answer})
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
	d.fail(unavailable(sourceGone))
}

// end closes the queue while no source is connected. All requests fail at once.
func (d *requestQueue) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = false
	d.failAll(unavailable(sourceGone))
}

// close rejects all requests from now on.
func (d *requestQueue) close(why *transport.Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = why
	d.failAll(why)
}

// fail ends the requests in flight. The caller holds the lock.
func (d *requestQueue) fail(why *transport.Error) {
	for _, a := range d.inFlight {
		a.answer(outcome{err: why})
	}
}

// failAll ends the requests in flight and the queued ones. The caller holds the lock.
func (d *requestQueue) failAll(why *transport.Error) {
	d.fail(why)
	for _, p := range d.clients {
		for _, line := range p.lines {
			for _, a := range line {
				a.answer(outcome{err: why})
			}
		}
	}
}

// size returns the number of requests, queued or in flight.
func (d *requestQueue) size() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queued + len(d.inFlight)
}
