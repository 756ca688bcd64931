package hubsource

import (
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// maxAsked is the number of works in one [Ask].
const maxAsked = resync.MaxHashes

// Hello is what to say when the session subscribes.
func (c *Core) Hello() transport.Hello {
	h := transport.Hello{Protocol: 1}
	if c.cfg.NewID != nil {
		h.Cursor = c.stream.cursor.String()
	}
	return h
}

// Connected begins a connection to the broker: works are compared with what the
// broker has, or, where that is not possible, all published again (the broker
// answers without a write where nothing changed), and clusters that are not
// served any more are released. The works to look at are handed out by Sweep.
func (c *Core) Connected(a transport.Accepted) {
	c.conn++
	c.subscription = a.SubscriptionID
	c.connected, c.stock, c.asks, c.pausedUntil = true, a.Protocol == 0, a.Resync != codec.ResyncCursor, time.Time{}
	if c.asks {
		for _, w := range c.works {
			w.spec.elsewhere = w.spec.elsewhere || w.seen != nil && hasFinalizer(c.current(w))
		}
	}
	c.beginStream()
	c.beginComparison()
	c.sweep = make([]Key, 0, len(c.clusters)+len(c.works))
	for name, cl := range c.clusters {
		cl.retry, cl.alive.retry = retry{}, retry{}
		c.setRelease(cl, !cl.selected)
		c.askAgain(cl, cl.selected && c.asks)
		c.leave(cl)
		c.enter(cl)
		c.sweep = append(c.sweep, Key{Cluster: name})
	}
	for _, cl := range c.clusters {
		if !cl.selected {
			continue
		}
		for uid, w := range cl.works {
			w.spec.retry = retry{}
			if !c.comparison.on || c.comparable(w) == nil { // the others wait for the comparison
				c.sweep = append(c.sweep, Key{UID: uid})
			}
		}
	}
	c.cfg.Waker.Wake(SpecLane, Key{}, 0)
	c.cfg.Waker.Wake(HubLane, Key{}, 0)
}

// Subscription is the id of the subscription that the effects are about which Next
// returns now: they must not go out on another one.
func (c *Core) Subscription() string { return c.subscription }

// nextOrder numbers an event for a broker that can tell by it what came late.
func (c *Core) nextOrder() uint64 {
	if c.stock {
		return 0
	}
	c.order++
	return c.order
}

// Disconnected ends the connection.
func (c *Core) Disconnected() {
	c.connected = false
	c.sweep = nil
	c.stream.deferred = nil
}

// Sweep hands out up to n keys of the spec lane to look at since the connection
// began. Taken a few at a time, they leave the way free for fresh changes.
func (c *Core) Sweep(n int) []Key {
	if c.pausedUntil.After(c.cfg.Now()) {
		return nil
	}
	n = min(n, len(c.sweep))
	part := c.sweep[:n:n]
	if c.sweep = c.sweep[n:]; len(c.sweep) == 0 {
		c.sweep = nil
	}
	return part
}

// nextCluster decides the next step of a cluster.
func (c *Core) nextCluster(cl *cluster) Effect {
	if !cl.selected || cl.mustRelease {
		return c.nextRelease(cl)
	}
	if e := c.nextComparing(cl); e != nil {
		return e
	}
	if e := c.nextAlive(cl); e != nil {
		return e
	}
	return c.nextAsk(cl)
}

// nextAsk decides about the statuses of a cluster that may have been missed.
func (c *Core) nextAsk(cl *cluster) Effect {
	defer c.countAsk(cl)
	if cl.asking || cl.leaving() || !c.connected {
		return nil
	}
	if cl.mustAsk {
		cl.mustAsk, cl.ask = false, slices.Sorted(maps.Keys(cl.works))
	}
	for len(cl.ask) > 0 {
		n := min(maxAsked, len(cl.ask))
		held := c.held(cl, cl.ask[:n])
		if len(held) == 0 { // they left since
			cl.asked(n)
			continue
		}
		if !c.due(SpecLane, Key{Cluster: cl.name}, &cl.retry) {
			return nil
		}
		cl.asking = true
		return Ask{Cluster: cl.name, Held: held, listed: n, round: cl.askRound, conn: c.conn}
	}
	return nil
}

func (c *Core) held(cl *cluster, uids []types.UID) []Held {
	var held []Held
	for _, uid := range uids {
		w := cl.works[uid]
		if w == nil || w.gone || w.seen == nil {
			continue
		}
		h := Held{UID: uid}
		if p := w.report.pending; p != nil && p.Hash != "" {
			h.Hash = p.Hash
		} else {
			h.Work = c.current(w)
		}
		held = append(held, h)
	}
	return held
}

func (c *Core) doneAsk(e Ask, r Result) {
	cl := c.clusters[e.Cluster]
	cl.asking = false
	if e.conn == c.conn {
		c.stream.lists += uint64(max(r.Lists, 0))
	}
	switch {
	case e.round != cl.askRound:
	case r.Err == nil:
		cl.retry = retry{}
		cl.asked(e.listed)
	case transport.Retryable(r.Err):
		c.failed(SpecLane, Key{Cluster: cl.name}, &cl.retry, brokerDelay(r.Err))
	default: // refused, until the next connection
		cl.ask = nil
		c.stream.unheard = c.conn
	}
	c.countAsk(cl)
	c.resumeCheckpoint()
	c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
	c.tidy(cl)
}

// askAgain begins anew with listing all works of the cluster, or with nothing.
func (c *Core) askAgain(cl *cluster, must bool) {
	cl.mustAsk, cl.ask = must, nil
	cl.askRound++
	c.countAsk(cl)
}

// askFor lists one work, if somebody is there to be asked.
func (c *Core) askFor(w *work) {
	cl := c.clusters[w.cluster]
	if !c.connected || !cl.selected || cl.mustAsk {
		return
	}
	cl.ask = append(cl.ask, w.uid)
	c.countAsk(cl)
	c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
}

// countAsk keeps the number of clusters whose statuses are still to be asked for.
func (c *Core) countAsk(cl *cluster) {
	if open := cl.mustAsk || cl.asking || len(cl.ask) > 0; open != cl.askOpen {
		cl.askOpen = open
		c.stream.asks += sign(open)
	}
}

func sign(up bool) int {
	if up {
		return 1
	}
	return -1
}

// asked lets go of the first n that were to be listed.
func (cl *cluster) asked(n int) {
	if cl.ask = cl.ask[n:]; len(cl.ask) == 0 {
		cl.ask = nil
	}
}

// nextRelease decides about a cluster that is not served any more, or of which
// nobody knows whether it is released.
func (c *Core) nextRelease(cl *cluster) Effect {
	switch {
	case !cl.mustRelease || cl.releasing || cl.inFlight > 0 || c.comparison.tell.busy || !c.connected:
		return nil
	case c.stock: // it keeps nothing
		c.released(cl)
		return nil
	case !c.due(SpecLane, Key{Cluster: cl.name}, &cl.retry):
		return nil
	}
	cl.releasing = true
	return Release{Cluster: cl.name, Order: c.nextOrder(), conn: c.conn}
}

// wakeReleases has another look at the clusters that have to be released.
func (c *Core) wakeReleases() {
	if c.stream.releases == 0 {
		return
	}
	for name, cl := range c.clusters {
		if cl.mustRelease {
			c.cfg.Waker.Wake(SpecLane, Key{Cluster: name}, 0)
		}
	}
}

func (c *Core) doneRelease(e Release, r Result) {
	cl := c.clusters[e.Cluster]
	cl.releasing = false
	for _, w := range cl.works {
		w.spec.sentOn = 0 // whatever became of the release, the records may be gone
		c.wake(SpecLane, w, 0)
	}
	switch {
	case e.conn != c.conn: // the new connection starts afresh
		c.enter(cl)
		c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
	case r.Err != nil && transport.Retryable(r.Err):
		// It may be carried out yet, and would drop what is published from now on where
		// the cluster is served again. A later release makes it void.
		cl.unsure = c.conn
		c.setRelease(cl, true)
		c.failed(SpecLane, Key{Cluster: cl.name}, &cl.retry, brokerDelay(r.Err))
	case cl.selected: // served again
		cl.unsure = 0
		c.setRelease(cl, false)
		c.resumeCheckpoint()
		c.enter(cl)
	default: // done, or refused until the next connection
		c.released(cl)
	}
}

// leaving reports whether the broker is still to forget what it has of a cluster.
func (cl *cluster) leaving() bool { return cl.mustRelease || cl.releasing }

// released ends the release of a cluster.
func (c *Core) released(cl *cluster) {
	cl.unsure = 0
	c.setRelease(cl, false)
	delete(c.keep.withheld, cl.name)
	c.resumeCheckpoint()
	for _, w := range cl.works {
		c.wake(SpecLane, w, 0)
	}
	c.tidy(cl)
}

// setRelease keeps the number of clusters that have to be released.
func (c *Core) setRelease(cl *cluster, must bool) {
	if cl.mustRelease != must {
		cl.mustRelease = must
		c.stream.releases += sign(must)
	}
}

// brokerDelay is how long the broker asked to wait, 0 when it did not.
func brokerDelay(err error) time.Duration {
	var e *transport.Error
	if errors.As(err, &e) {
		return e.Delay
	}
	return 0
}

// hubDelay is how long the hub asked to wait, 0 when it did not.
func hubDelay(err error) time.Duration {
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(s) * time.Second
	}
	return 0
}
