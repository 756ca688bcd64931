package core

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/internal/workmetrics"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Config holds the dependencies and options of a [Core]. A field is required unless its comment states
// otherwise.
type Config struct {
	// Now is the clock.
	Now func() time.Time
	// Jitter returns a number in [0, 1); it spreads retries.
	Jitter func() float64
	Waker  Waker
	// Source is the id of this source, as agents name it.
	Source string
	// NewID returns a new id for a request.
	NewID func() string
	// All serves every namespace that has works. If false, the source serves only the clusters named by
	// ClusterSelected.
	All bool
	// CleanUp deletes completed works after their time to live.
	CleanUp bool
	// State is the state that an earlier process saved.
	State SavedState
	// Answered receives the time from the broker's acceptance of a version to the first status about it. It must
	// not block, and may be nil.
	Answered func(took time.Duration)
}

// Core decides what to do for each work. It is not safe for concurrent use: its owner guards it with a lock of
// its own.
type Core struct {
	// epoch counts the hub epochs in this process from 1. At the end of an epoch everything is dropped except the
	// saved State.
	epoch int
	// inFlight are the effects without a result yet.
	inFlight map[slot]underWay

	index     *workIndex
	cursor    *cursor
	epochs    *hubEpochs
	queries   *hubQueries
	compare   *clusterSync
	specs     *specs
	statuses  *statuses
	releases  *releases
	responder *agentResponder
}

// slot runs one effect at a time.
type slot struct {
	queue Queue
	key   Key
}

// slotFor returns the slot of a key; the uid alone identifies a work.
func slotFor(l Queue, k Key) slot {
	if k.UID != "" {
		k.Cluster = ""
	}
	return slot{l, k}
}

// underWay is an effect, with the hub epoch and the subscription of its decision.
type underWay struct {
	*todo
	epoch, sub int
}

// New returns a core without works and without a broker connection.
func New(cfg Config) *Core {
	c := &Core{inFlight: map[slot]underWay{}}
	line := sessionfence.NewTracker(uint64(max(cfg.Now().UnixMilli(), 1)), cfg.NewID())
	c.begin(newFleet(cfg, 0, line), cfg.State, reasonKept)
	return c
}

// begin begins a hub epoch from the saved state.
func (c *Core) begin(f *workIndex, s SavedState, reason string) {
	c.epoch++
	cur := newCursor(f, s.Cursor)
	l := newHubEpochs(f, cur, s, reason)
	q := &hubQueries{f: f, epochs: l}
	v := &clusterSync{f: f, epochs: l, cursor: cur}
	c.index, c.cursor, c.epochs, c.queries, c.compare = f, cur, l, q, v
	c.responder = &agentResponder{f: f, epochs: l, questions: q, cursor: cur}
	c.specs = &specs{f: f, epochs: l, questions: q, compare: v, responder: c.responder}
	c.statuses = &statuses{f: f, questions: q, compare: v, cursor: cur, responder: c.responder}
	c.releases = &releases{f: f, cursor: cur, epochs: l, compare: v}
}

// Epoch returns the present hub epoch. Objects from an informer of another epoch are dropped.
func (c *Core) Epoch() int { return c.epoch }

// Next returns the next effect for key. It returns nil if there is nothing to do now; if something is due
// later, the core wakes the key then. Pass the result of the effect to Done before the next call of Next for
// the same queue and key.
func (c *Core) Next(queue Queue, key Key) Effect {
	at := slotFor(queue, key)
	if was, busy := c.inFlight[at]; busy && was.epoch == c.epoch && was.sub == c.index.sub {
		return nil
	}
	t := c.next(queue, key)
	if t == nil {
		return nil
	}
	c.inFlight[at] = underWay{t, c.epoch, c.index.sub}
	return t.Effect
}

func (c *Core) next(queue Queue, key Key) *todo {
	switch w, cl := c.index.works[key.UID], c.index.clusters[key.Cluster]; {
	case key == Key{}:
		return c.nextOfAll(queue)
	case c.epochs.over:
		return nil
	case w != nil && queue == BrokerQueue:
		return c.specs.next(w)
	case w != nil:
		return first(w, c.nextQuery, c.statuses.next)
	case cl == nil || key.UID != "":
		return nil
	case queue == HubQueue:
		return c.queries.nextList(cl)
	default:
		return first(cl, c.releases.next, c.compare.next, c.responder.next, c.statuses.nextStatusRequest)
	}
}

// first returns the first todo that is not nil.
func first[T any](about T, all ...func(T) *todo) *todo {
	for _, next := range all {
		if t := next(about); t != nil {
			return t
		}
	}
	return nil
}

// nextQuery queries the hub for a work. The answer may be later than the state that the informers show.
func (c *Core) nextQuery(w *work) *todo {
	t := c.queries.next(w)
	if t == nil {
		return nil
	}
	return &todo{t.Effect, func(r Result) {
		before := w.hub.object
		if t.done(r); w.hub.object != before {
			c.moved(w, before)
		}
	}}
}

// locate reads the position of the hub, and wakes what waited for it.
func (c *Core) locate() *todo {
	t := c.epochs.nextReadPosition()
	if t == nil {
		return nil
	}
	return &todo{t.Effect, func(r Result) {
		if t.done(r); !c.epochs.over && c.epochs.positionRead() {
			c.compare.located()
			c.responder.located()
		}
	}}
}

// nextOfAll decides the next step of the source as a whole.
func (c *Core) nextOfAll(queue Queue) *todo {
	l := c.epochs
	switch {
	case queue == HubQueue && l.ended():
		s, _ := l.state()
		c.index.sessions.NewSession() // reports of agents in the previous epoch may be about works that no longer exist
		c.begin(newFleet(c.index.Config, c.index.sub, c.index.sessions), s, l.reason)
		return &todo{Effect: BeginHubEpoch{Epoch: c.epoch, Reason: l.reason}}
	case queue == HubQueue && l.over:
		return l.nextSave()
	case l.over:
		return nil
	}
	all := []func() *todo{c.locate, l.nextSave}
	if queue == BrokerQueue {
		all = []func() *todo{c.index.nextEnd, c.compare.nextInventory, c.compare.nextSyncReport, c.cursor.nextAck}
	}
	for _, next := range all {
		if t := next(); t != nil {
			return t
		}
	}
	return nil
}

// Done handles the result of the effect that Next returned for a queue and key. A result is dropped if its
// effect was decided in another hub epoch, or for another subscription.
func (c *Core) Done(queue Queue, key Key, r Result) {
	at := slotFor(queue, key)
	u, busy := c.inFlight[at]
	delete(c.inFlight, at)
	if !busy || u.epoch != c.epoch || u.done == nil {
		return
	}
	_, saves := u.Effect.(Save)
	_, forBroker := u.Effect.(ForBroker)
	if saves || !c.epochs.over && (u.sub == c.index.sub || !forBroker) {
		u.done(r)
	}
}

// Suspected starts a check whether the hub went back in time, for example after a broken watch. older: an
// object that only this source writes is older than its last write by this process.
func (c *Core) Suspected(older bool) {
	if older {
		c.epochs.endEpoch("the Lease is older than it was")
	}
	c.epochs.readPositionNow()
}

// Stats are the numbers that a program exports. They are updated with each change, and not computed on demand.
type Stats struct {
	// Works is the number of known works, including those that are not served.
	Works int
	// Clusters is the number of clusters served.
	Clusters int
	// Pending is the number of reports that wait for their patch.
	Pending int
	// InitialSync is the number of works that were not checked yet since the connection began.
	InitialSync int
	// Comparing is the number of clusters that are not compared yet.
	Comparing int
	// WithheldClusters and WithheldWorks count the clusters on which deletions
	// are withheld, and those deletions.
	WithheldClusters, WithheldWorks int
	// Disconnected is the number of clusters behind a stateless broker whose Hawser agent is disconnected. Agents
	// is the number of all clusters behind such a broker.
	Disconnected int
	Agents       map[sessionfence.Agent]int
	// Census counts works by their conditions.
	Census workmetrics.Counts
	// Undelivered is the number of works with Delivered=False by reason.
	Undelivered map[string]int
	Connected   bool
}

// Stats returns the current numbers.
func (c *Core) Stats() Stats {
	f := c.index
	s := Stats{Works: len(f.works), Pending: f.pending, InitialSync: len(f.initialSync), Connected: f.connected, Census: f.census,
		Undelivered: maps.Clone(f.undelivered), Agents: map[sessionfence.Agent]int{}}
	for _, cl := range f.clusters {
		if !cl.selected {
			continue
		}
		s.Clusters++
		if f.stateless {
			s.Agents[sessionfence.AgentOf(f.Now(), cl.agent.lastSeen, f.sessions.IsHawser(cl.name))]++
		}
		if f.isDisconnected(cl) {
			s.Disconnected++
		}
		if c.compare.on && !cl.comparing.isSynced(cl) {
			s.Comparing++
		}
		if n := len(cl.comparing.missing.withheld) + cl.agent.withheld(); n > 0 {
			s.WithheldClusters++
			s.WithheldWorks += n
		}
	}
	return s
}

// State returns the state to save, and whether it differs from the saved one. A program saves it before it
// ends.
func (c *Core) State() (s SavedState, unsaved bool) { return c.epochs.state() }

// WorkSeen handles the newest object of a work from the informer of a hub epoch. The core keeps o and never
// changes it.
func (c *Core) WorkSeen(epoch int, o *workv1.ManifestWork) {
	if epoch != c.epoch {
		return
	}
	w := c.work(o.UID, o.Namespace)
	before := w.hub.object
	switch w.hub.show(o, c.index.tick(), c.index.Now()) {
	case nothing:
		c.index.recount(w) // an earlier list may have lacked it
		return
	case contradicts:
		c.queries.query(w)
		return
	case impossible:
		c.epochs.endEpoch("the hub shows an older state of its works than before")
		return
	case lags:
		c.index.wake(HubQueue, w.key(), informerLag)
		return
	case later:
	}
	c.epochs.moved(o)
	c.moved(w, before)
}

// moved handles a new work, or a new state of a work on the hub.
func (c *Core) moved(w *work, before *workv1.ManifestWork) {
	if before == nil {
		c.compare.there(w)
		w.cl.forgetOrphan(w.uid)
	}
	c.statuses.adopt(w)
	w.report.changed(before == nil)
	c.specs.changed(w, before)
	c.index.recount(w)
	if w.hub.deleting() && (before == nil || before.DeletionTimestamp == nil) {
		c.index.hurry(BrokerQueue, w)
	}
	c.index.wakeWork(w)
}

// WorkDeleted handles a delete event of an informer.
func (c *Core) WorkDeleted(epoch int, uid types.UID) { c.ended(epoch, uid, deleted) }

// WorkMissing handles a work that is not in a new list of an informer, or whose name another work has there. No
// deletion was observed: the hub may have gone back in time.
func (c *Core) WorkMissing(epoch int, uid types.UID) { c.ended(epoch, uid, unseen) }

func (c *Core) ended(epoch int, uid types.UID, how ending) {
	w := c.index.works[uid]
	if epoch != c.epoch || w == nil || w.hub.object == nil || w.hub.ended != alive {
		return
	}
	w.hub.end(how, c.index.tick(), c.index.Now())
	c.epochs.moved(w.hub.object)
	c.statuses.dropReports(w)
	c.index.setProblems(w, deliveryProblems{})
	w.spec.retry.reset()
	c.index.recount(w)
	if how == unseen && c.index.connected && c.compare.on {
		c.compare.miss(w)
		return
	}
	c.index.wakeWork(w)
}

// work returns the state of a work, and creates it if needed.
func (c *Core) work(uid types.UID, clusterName string) *work {
	if w := c.index.works[uid]; w != nil {
		return w
	}
	return c.index.add(uid, c.cluster(clusterName))
}

// cluster returns the state of a cluster, and creates it if needed. A cluster that is not selected has to be
// released: an earlier process may have served it.
func (c *Core) cluster(name string) *cluster {
	cl := c.index.clusters[name]
	if cl == nil {
		cl = c.index.addCluster(name)
		c.releases.set(cl, !cl.selected)
		c.compare.enter(cl)
		c.index.wakeCluster(BrokerQueue, cl)
	}
	return cl
}

// ClusterSelected serves a cluster that matches the selector, as the informer of a hub epoch shows it.
func (c *Core) ClusterSelected(epoch int, name string) {
	if epoch != c.epoch {
		return
	}
	cl := c.cluster(name)
	if cl.selected {
		return
	}
	c.releases.set(cl, false)
	cl.serve(true)
	// A cursor does not help: reports of a cluster that was not served were ignored.
	cl.lists.repeat(c.cursor, c.index.lists || c.index.connected && !c.index.ocmBroker)
	c.compare.enter(cl)
	c.index.wakeCluster(BrokerQueue, cl)
	for _, w := range cl.works {
		c.index.recount(w)
		c.index.wakeWork(w)
	}
}

// ClusterUnselected releases a cluster that left the selection. All its state is dropped, except for the
// objects that the hub has shown.
func (c *Core) ClusterUnselected(epoch int, name string) {
	cl := c.index.clusters[name]
	if epoch != c.epoch || cl == nil || !cl.selected || c.index.All {
		return
	}
	c.releases.set(cl, true)
	cl.serve(false)
	cl.lists.repeat(c.cursor, false)
	c.compare.leave(cl)
	cl.forgetAgent()
	c.cursor.holdBack()
	for _, w := range cl.works {
		c.statuses.dropReports(w)
		w.broker.forget()
		c.index.setProblems(w, deliveryProblems{known: true})
		c.index.recount(w)
		c.index.wakeWork(w)
	}
	c.index.wakeCluster(BrokerQueue, cl)
}

// Hello returns the hello message of the next subscription.
func (c *Core) Hello() transport.Hello {
	return transport.Hello{Protocol: transport.Protocol, Cursor: c.cursor.at()}
}

// Connected begins a subscription. Works are compared with the broker's records. If that is not possible, all
// works are published again; the broker writes only those that changed. Clusters that are no longer served are
// released. NextInitialSync returns the works to check.
func (c *Core) Connected(a transport.Accepted) {
	f := c.index
	f.subscribe(a, a.Resync != codec.ResyncCursor)
	c.cursor.subscribe()
	c.compare.subscribe()
	c.responder.disconnected.subscribe()
	for name, cl := range f.clusters {
		c.releases.subscribe(cl)
		cl.lists.subscribe(c.cursor, cl.selected && f.lists)
		c.compare.leave(cl)
		c.compare.enter(cl)
		c.responder.subscribe(cl)
		f.look(Key{Cluster: name})
	}
	for _, w := range f.works {
		if f.lists && w.hub.object != nil && (hasFinalizer(w.hub.object) || w.spec.attempted) {
			w.spec.markElsewhere()
		}
		c.statuses.subscribe(w)
		if !w.cl.selected {
			continue
		}
		w.spec.retry.reset()
		if !c.compare.on || w.comparable() == nil { // the others wait for the comparison
			f.look(w.key())
		}
	}
	f.wake(BrokerQueue, Key{}, 0)
	f.wake(HubQueue, Key{}, 0)
}

// Subscription returns the id of the subscription of the effects that Next returns now. They must not be sent
// on another one.
func (c *Core) Subscription() string { return c.index.id }

// Disconnected ends the subscription.
func (c *Core) Disconnected() {
	c.index.disconnect()
	c.cursor.disconnect()
}

// NextInitialSync returns up to n keys of the broker queue that were not checked yet since the subscription
// began. A small n leaves time for new changes.
func (c *Core) NextInitialSync(n int) []Key { return c.index.nextInitialSync(n) }

// Checkpoint handles a checkpoint: all reports up to its cursor have been sent.
func (c *Core) Checkpoint(cp codec.Checkpoint) { c.cursor.checkpoint(cp) }

// Compares reports whether the works are compared with the records of the broker of this subscription. If
// false, all works are published.
func (c *Core) Compares() bool { return c.compare.on }

// Inventory handles a page of the broker's inventory. It returns false for a page that was not requested, or no
// longer; that page is dropped.
func (c *Core) Inventory(page codec.Inventory) bool {
	if !c.compare.expects(page) {
		return false
	}
	for _, d := range page.Clusters {
		if d.Cluster != "" {
			// An unknown cluster is compared too if all clusters are served. Otherwise it is released: an earlier process
			// served it.
			c.cluster(d.Cluster)
		}
	}
	c.compare.page(page)
	return true
}

// Report handles a report. The core keeps r and never changes it. If the result is Taken, the core holds the
// report until the process ends. Then the next resync sends it again.
func (c *Core) Report(r *Report) ReportResult {
	if c.index.All {
		c.cluster(r.Cluster)
	}
	if !c.responder.acceptsStamp(r.Cluster, r.Stamp) {
		return PreviousSession
	}
	return c.statuses.receive(r)
}

// Keepalive handles a keepalive of an agent, or its last will.
func (c *Core) Keepalive(a *Keepalive) {
	switch {
	case a.Goodbye:
		c.responder.handleGoodbye(a)
	case c.responder.acceptsStamp(a.Cluster, a.Stamp):
		c.responder.keepalive(a)
	}
}

// AgentList handles the list of an agent behind a stateless broker. The core keeps l. It returns false for a list
// of a stale session.
func (c *Core) AgentList(l *AgentList) bool {
	if c.index.All && l.Cluster != "" {
		c.cluster(l.Cluster)
	}
	if !c.responder.acceptsStamp(l.Cluster, l.Stamp) {
		return false
	}
	c.responder.listed(l)
	return c.index.stateless
}
