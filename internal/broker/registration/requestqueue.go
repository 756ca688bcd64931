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

// How many asks there may be. The source works on some of them at a time; what waits, waits here,
// where it has its turn.
const (
	// inFlight is how many asks the source has at a time, inFlightPerClient those of one party and
	// inFlightOfMany those of a party that stands for many clusters.
	inFlight          = 128
	inFlightPerClient = 8
	inFlightOfMany    = 32
	// queuedOfCluster is how many asks of a party for one cluster wait, queuedPerClient for all.
	queuedOfCluster = 32
	queuedPerClient = 4096
)

// agentRequest is one request that waits for its answer.
type agentRequest struct {
	id string
	// from asks, for a cluster.
	from     identity.Identity
	cluster  string
	size     int
	request  *hawserv1.RegistrationRequest
	answered bool // it has its answer
	// done receives once: the answer, or why there is none.
	done chan outcome
}

type outcome struct {
	answer *hawserv1.RegistrationAnswer
	err    *transport.Error
}

// requestQueue is where asks wait, for their turn and then for their answers. Parties take turns, and in
// each of them the clusters for which it asks: a bootstrap account stands for many. Each ask
// belongs to a call that runs, which takes it away when it ends; so what waits is bounded by the
// calls, and none waits for whom nobody waits.
type requestQueue struct {
	budget *bytebudget.Budget
	// wake is told when there is something to send.
	wake func()

	mu        sync.Mutex
	open      bool // there is a source
	closed    *transport.Error
	scheduler fair.Scheduler[identity.Identity]
	clients   map[identity.Identity]*clientQueue
	inFlight  map[string]*agentRequest // at the source, by id
	queued    int
}

// clientQueue is what one party asks.
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

// most is how many asks of a party the source has at a time.
func most(of identity.Identity) int {
	if of.Role == identity.Agent {
		return inFlightPerClient
	}
	return inFlightOfMany
}

// put queues an ask, or says why not. Whoever put it calls drop in the end.
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
		return overloaded("too much that was asked waits for the hub")
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

// join has a party take turns, if it may have more at the source. The caller has the lock.
func (d *requestQueue) join(of identity.Identity, p *clientQueue) {
	if p.queued > 0 && p.inFlight < most(of) {
		d.scheduler.Join(of)
	} else {
		d.scheduler.Leave(of)
	}
}

// next returns the ask whose turn it is, nil if there is none at the moment. It is at the source
// from then on.
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

// take removes an ask from its line. The caller has the lock.
func (d *requestQueue) take(p *clientQueue, a *agentRequest) {
	line := slices.DeleteFunc(p.lines[a.cluster], func(o *agentRequest) bool { return o == a })
	if p.lines[a.cluster] = line; len(line) == 0 {
		delete(p.lines, a.cluster)
		p.scheduler.Leave(a.cluster)
	}
	p.queued--
	d.queued--
}

// drop forgets an ask, wherever it is.
func (d *requestQueue) drop(a *agentRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.clients[a.from]
	if d.inFlight[a.id] != nil {
		delete(d.inFlight, a.id)
		p.inFlight--
		d.wake() // there is room for another one
	} else {
		d.take(p, a)
	}
	d.join(a.from, p)
	if p.queued+p.inFlight == 0 {
		delete(d.clients, a.from)
	}
	d.budget.FreePart(a.from, a.cluster, a.size)
}

// answer hands an answer to the ask that it names; false: nobody waits for it.
func (d *requestQueue) answer(answer *hawserv1.RegistrationAnswer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.inFlight[answer.GetId()]
	return a != nil && a.answer(outcome{answer: answer})
}

// answer ends an ask; false: it has ended. The caller has the lock.
func (a *agentRequest) answer(o outcome) bool {
	if a.answered {
		return false
	}
	a.answered = true
	a.done <- o // has room for it
	return true
}

// begin says that there is a source. What an earlier subscription of it had is lost: whether it was
// done nobody knows.
func (d *requestQueue) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = true
	d.fail(unavailable(sourceGone))
}

// end says that there is no source: nobody waits for one.
func (d *requestQueue) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = false
	d.failAll(unavailable(sourceGone))
}

// close refuses all asks from now on.
func (d *requestQueue) close(why *transport.Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = why
	d.failAll(why)
}

// fail ends what is at the source. The caller has the lock.
func (d *requestQueue) fail(why *transport.Error) {
	for _, a := range d.inFlight {
		a.answer(outcome{err: why})
	}
}

// failAll ends that, and what waits for its turn. The caller has the lock.
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

// size returns how many asks wait, for their turn or for their answers.
func (d *requestQueue) size() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queued + len(d.inFlight)
}
