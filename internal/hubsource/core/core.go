package core

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/census"
	"github.com/hawser-io/hawser/internal/plain"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Config is what a [Core] needs from outside; all of it is required
// but what says otherwise.
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
	// All serves every namespace that has works; otherwise the clusters named
	// by ClusterSelected.
	All bool
	// CleanUp deletes completed works when their time to live is over.
	CleanUp bool
	// State is what an earlier process saved.
	State SavedState
	// Answered is told how long it took from when the broker accepted a version of a work to
	// when the first status about it came. It must not block, and may be nil.
	Answered func(took time.Duration)
}

// Core decides what to do for each work. It is not safe for concurrent use: the
// owner guards it, and guards nothing else with the same lock.
type Core struct {
	// life counts the lives of the hub in this process from 1. With a life all that
	// was known ends but the State that is saved.
	life int
	// inFlight are the effects whose results have not come yet.
	inFlight map[slot]underWay

	fleet     *fleet
	cursor    *cursor
	lives     *hubEpochs
	questions *questions
	compare   *comparisons
	specs     *specs
	statuses  *statuses
	releases  *releases
	plains    *agentResponder
}

// slot is where one effect at a time is carried out.
type slot struct {
	lane Queue
	key  Key
}

// slotFor is that of a key: a work is known by its uid.
func slotFor(l Queue, k Key) slot {
	if k.UID != "" {
		k.Cluster = ""
	}
	return slot{l, k}
}

// underWay is an effect, and the life of the hub and the subscription in which it was
// decided.
type underWay struct {
	*todo
	life, sub int
}

// New returns a core that knows no work and no broker.
func New(cfg Config) *Core {
	c := &Core{inFlight: map[slot]underWay{}}
	line := plain.NewLine(uint64(max(cfg.Now().UnixMilli(), 1)), cfg.NewID())
	c.begin(newFleet(cfg, 0, line), cfg.State, reasonKept)
	return c
}

// begin begins a life of the hub, of which nothing is known but what is saved.
func (c *Core) begin(f *fleet, s SavedState, reason string) {
	c.life++
	cur := newCursor(f, s.Cursor)
	l := newLives(f, cur, s, reason)
	q := &questions{f: f, lives: l}
	v := &comparisons{f: f, lives: l, cursor: cur}
	c.fleet, c.cursor, c.lives, c.questions, c.compare = f, cur, l, q, v
	c.plains = &agentResponder{f: f, lives: l, questions: q, cursor: cur}
	c.specs = &specs{f: f, lives: l, questions: q, compare: v, plains: c.plains}
	c.statuses = &statuses{f: f, questions: q, compare: v, cursor: cur, plains: c.plains}
	c.releases = &releases{f: f, cursor: cur, lives: l, compare: v}
}

// Epoch is the present life of the hub: what an informer of another one shows is
// dropped.
func (c *Core) Epoch() int { return c.life }

// Next returns what to do now for key, nil when there is nothing, or not yet;
// in the latter case the core wakes the key when it is time. The result of the
// effect must be given to Done before Next is called again for the same lane
// and key.
func (c *Core) Next(lane Queue, key Key) Effect {
	at := slotFor(lane, key)
	if was, busy := c.inFlight[at]; busy && was.life == c.life && was.sub == c.fleet.sub {
		return nil
	}
	t := c.next(lane, key)
	if t == nil {
		return nil
	}
	c.inFlight[at] = underWay{t, c.life, c.fleet.sub}
	return t.Effect
}

func (c *Core) next(lane Queue, key Key) *todo {
	switch w, cl := c.fleet.works[key.UID], c.fleet.clusters[key.Cluster]; {
	case key == Key{}:
		return c.nextOfAll(lane)
	case c.lives.over:
		return nil
	case w != nil && lane == SpecLane:
		return c.specs.next(w)
	case w != nil:
		return first(w, c.ask, c.statuses.next)
	case cl == nil || key.UID != "":
		return nil
	case lane == HubLane:
		return c.questions.nextList(cl)
	default:
		return first(cl, c.releases.next, c.compare.next, c.plains.next, c.statuses.nextAsk)
	}
}

// first returns the first thing that there is to do.
func first[T any](about T, all ...func(T) *todo) *todo {
	for _, next := range all {
		if t := next(about); t != nil {
			return t
		}
	}
	return nil
}

// ask asks the hub for a work. What it has may be later than what informers show.
func (c *Core) ask(w *work) *todo {
	t := c.questions.next(w)
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

// locate asks the hub where it is; what waited for that goes on.
func (c *Core) locate() *todo {
	t := c.lives.nextLocate()
	if t == nil {
		return nil
	}
	return &todo{t.Effect, func(r Result) {
		if t.done(r); !c.lives.over && c.lives.located() {
			c.compare.located()
			c.plains.located()
		}
	}}
}

// nextOfAll decides the next step of the source as a whole.
func (c *Core) nextOfAll(lane Queue) *todo {
	l := c.lives
	switch {
	case lane == HubLane && l.ended():
		s, _ := l.state()
		c.fleet.sessions.Renew() // what agents said to the life before may be about what is no more
		c.begin(newFleet(c.fleet.Config, c.fleet.sub, c.fleet.sessions), s, l.reason)
		return &todo{Effect: BeginHubEpoch{Epoch: c.life, Reason: l.reason}}
	case lane == HubLane && l.over:
		return l.nextSave()
	case l.over:
		return nil
	}
	all := []func() *todo{c.locate, l.nextSave}
	if lane == SpecLane {
		all = []func() *todo{c.fleet.nextEnd, c.compare.nextInventory, c.compare.nextCompared, c.cursor.nextAck}
	}
	for _, next := range all {
		if t := next(); t != nil {
			return t
		}
	}
	return nil
}

// Done takes the result of the effect that Next returned for a lane and key. What was
// decided in another life of the hub, or was for another subscription, says nothing any
// more.
func (c *Core) Done(lane Queue, key Key, r Result) {
	at := slotFor(lane, key)
	u, busy := c.inFlight[at]
	delete(c.inFlight, at)
	if !busy || u.life != c.life || u.done == nil {
		return
	}
	_, saves := u.Effect.(Save)
	_, forBroker := u.Effect.(ForBroker)
	if saves || !c.lives.over && (u.sub == c.fleet.sub || !forBroker) {
		u.done(r)
	}
}

// Suspected is told that the hub may have gone back in time, as after a watch that broke; older says
// that an object which nobody else writes is as it was before this process wrote it last.
func (c *Core) Suspected(older bool) {
	if older {
		c.lives.endEpoch("the Lease is older than it was")
	}
	c.lives.locateNow()
}

// Stats are the numbers a program exports; they are kept, not counted.
type Stats struct {
	// Works is the number of works known, those not served included.
	Works int
	// Clusters is the number of clusters served.
	Clusters int
	// Pending is the number of reports that wait for their patch.
	Pending int
	// Sweep is the number of works still to look at since the connection began.
	Sweep int
	// Comparing is the number of clusters that are not compared yet.
	Comparing int
	// WithheldClusters and WithheldWorks count the clusters on which deletions
	// are withheld, and those deletions.
	WithheldClusters, WithheldWorks int
	// Silent is the number of clusters whose agent, one of ours behind a broker that keeps
	// nothing, is away. Agents are all clusters behind such a broker.
	Silent int
	Agents map[plain.Agent]int
	// Census counts works by what their conditions say.
	Census census.Counts
	// Undelivered is the number of works with Delivered=False by reason.
	Undelivered map[string]int
	Connected   bool
}

// Stats returns the current numbers.
func (c *Core) Stats() Stats {
	f := c.fleet
	s := Stats{Works: len(f.works), Pending: f.pending, Sweep: len(f.sweep), Connected: f.connected, Census: f.census,
		Undelivered: maps.Clone(f.undelivered), Agents: map[plain.Agent]int{}}
	for _, cl := range f.clusters {
		if !cl.selected {
			continue
		}
		s.Clusters++
		if f.plain {
			s.Agents[plain.AgentOf(f.Now(), cl.far.heardAt, f.sessions.Knows(cl.name))]++
		}
		if f.isSilent(cl) {
			s.Silent++
		}
		if c.compare.on && !cl.comparing.compared(cl) {
			s.Comparing++
		}
		if n := len(cl.comparing.missing.withheld) + cl.far.withheld(); n > 0 {
			s.WithheldClusters++
			s.WithheldWorks += n
		}
	}
	return s
}

// State returns what is to be saved, and whether that is something new. A shell
// that ends saves it.
func (c *Core) State() (s SavedState, unsaved bool) { return c.lives.state() }

// WorkSeen takes the newest object that the informer of a life has of a work. The
// core keeps o and never changes it.
func (c *Core) WorkSeen(life int, o *workv1.ManifestWork) {
	if life != c.life {
		return
	}
	w := c.work(o.UID, o.Namespace)
	before := w.hub.object
	switch w.hub.show(o, c.fleet.tick(), c.fleet.Now()) {
	case nothing:
		c.fleet.recount(w) // a list may have lacked it meanwhile
		return
	case contradicts:
		c.questions.ask(w)
		return
	case impossible:
		c.lives.endEpoch("the hub shows an older state of its works than before")
		return
	case lags:
		c.fleet.wake(HubLane, w.key(), informerLag)
		return
	case later:
	}
	c.lives.moved(o)
	c.moved(w, before)
}

// moved takes it that a work has another state on the hub than was known, or is new.
func (c *Core) moved(w *work, before *workv1.ManifestWork) {
	if before == nil {
		c.compare.there(w)
		w.cl.forgetOrphan(w.uid)
	}
	c.statuses.adopt(w)
	w.report.changed(before == nil)
	c.specs.changed(w, before)
	c.fleet.recount(w)
	if w.hub.deleting() && (before == nil || before.DeletionTimestamp == nil) {
		c.fleet.hurry(SpecLane, w)
	}
	c.fleet.wakeWork(w)
}

// WorkDeleted takes an informer's word that a work was deleted: the hub said so.
func (c *Core) WorkDeleted(life int, uid types.UID) { c.ended(life, uid, deleted) }

// WorkMissing takes an informer's word that a work is not in a new list of the
// hub, or that another one has its name there. Nobody saw its deletion: the hub
// may have gone back in time.
func (c *Core) WorkMissing(life int, uid types.UID) { c.ended(life, uid, unseen) }

func (c *Core) ended(life int, uid types.UID, how ending) {
	w := c.fleet.works[uid]
	if life != c.life || w == nil || w.hub.object == nil || w.hub.ended != alive {
		return
	}
	w.hub.end(how, c.fleet.tick(), c.fleet.Now())
	c.lives.moved(w.hub.object)
	c.statuses.lose(w)
	c.fleet.setBlame(w, blame{})
	w.spec.retry.reset()
	c.fleet.recount(w)
	if how == unseen && c.fleet.connected && c.compare.on {
		c.compare.miss(w)
		return
	}
	c.fleet.wakeWork(w)
}

// work returns the state of a work and makes it when it is new.
func (c *Core) work(uid types.UID, clusterName string) *work {
	if w := c.fleet.works[uid]; w != nil {
		return w
	}
	return c.fleet.add(uid, c.cluster(clusterName))
}

// cluster returns the state of a cluster and makes it when it is new. What is
// not selected has to be released: an earlier process may have served it.
func (c *Core) cluster(name string) *cluster {
	cl := c.fleet.clusters[name]
	if cl == nil {
		cl = c.fleet.addCluster(name)
		c.releases.set(cl, !cl.selected)
		c.compare.enter(cl)
		c.fleet.wakeCluster(SpecLane, cl)
	}
	return cl
}

// ClusterSelected takes a cluster that matches the selector, as the informer of a
// life shows it.
func (c *Core) ClusterSelected(life int, name string) {
	if life != c.life {
		return
	}
	cl := c.cluster(name)
	if cl.selected {
		return
	}
	c.releases.set(cl, false)
	cl.serve(true)
	// Also where the broker continues from a cursor: reports of a cluster that
	// was not served have been ignored.
	cl.lists.repeat(c.cursor, c.fleet.lists || c.fleet.connected && !c.fleet.stock)
	c.compare.enter(cl)
	c.fleet.wakeCluster(SpecLane, cl)
	for _, w := range cl.works {
		c.fleet.recount(w)
		c.fleet.wakeWork(w)
	}
}

// ClusterUnselected takes a cluster that left the selection: it is released. What
// is known of it is let go, but for what the hub showed.
func (c *Core) ClusterUnselected(life int, name string) {
	cl := c.fleet.clusters[name]
	if life != c.life || cl == nil || !cl.selected || c.fleet.All {
		return
	}
	c.releases.set(cl, true)
	cl.serve(false)
	cl.lists.repeat(c.cursor, false)
	c.compare.leave(cl)
	cl.leaveFar()
	c.cursor.holdBack()
	for _, w := range cl.works {
		c.statuses.lose(w)
		w.broker.forget()
		c.fleet.setBlame(w, blame{known: true})
		c.fleet.recount(w)
		c.fleet.wakeWork(w)
	}
	c.fleet.wakeCluster(SpecLane, cl)
}

// Hello is what to say when the session subscribes.
func (c *Core) Hello() transport.Hello {
	return transport.Hello{Protocol: 1, Cursor: c.cursor.at()}
}

// Connected begins a subscription: works are compared with what the broker has,
// or, where that is not possible, all published again (the broker answers without
// a write where nothing changed), and clusters that are not served any more are
// released. The works to look at are handed out by Sweep.
func (c *Core) Connected(a transport.Accepted) {
	f := c.fleet
	f.subscribe(a, a.Resync != codec.ResyncCursor)
	c.cursor.subscribe()
	c.compare.subscribe()
	c.plains.absences.subscribe()
	for name, cl := range f.clusters {
		c.releases.subscribe(cl)
		cl.lists.subscribe(c.cursor, cl.selected && f.lists)
		c.compare.leave(cl)
		c.compare.enter(cl)
		c.plains.subscribe(cl)
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
	f.wake(SpecLane, Key{}, 0)
	f.wake(HubLane, Key{}, 0)
}

// Subscription is the id of the subscription that the effects are about which Next
// returns now: they must not go out on another one.
func (c *Core) Subscription() string { return c.fleet.id }

// Disconnected ends the subscription.
func (c *Core) Disconnected() {
	c.fleet.disconnect()
	c.cursor.disconnect()
}

// Sweep hands out up to n keys of the spec lane to look at since the subscription
// began. Taken a few at a time, they leave the way free for fresh changes.
func (c *Core) Sweep(n int) []Key { return c.fleet.sweepUp(n) }

// Checkpoint takes the word that everything up to a cursor has been sent.
func (c *Core) Checkpoint(cp codec.Checkpoint) { c.cursor.checkpoint(cp) }

// Compares reports whether the works are compared with what the broker of this
// subscription has, or simply all published.
func (c *Core) Compares() bool { return c.compare.on }

// Inventory takes a page of the broker's inventory. It returns false for one
// that nobody waits for (any more); such a page is dropped.
func (c *Core) Inventory(page codec.Inventory) bool {
	if page.TellsAbsent {
		c.plains.absent(page)
		return true
	}
	if !c.compare.expects(page) {
		return false
	}
	for _, d := range page.Clusters {
		if d.Cluster != "" {
			// One that nobody here knew is compared too where all are served, and
			// else released: an earlier process served it.
			c.cluster(d.Cluster)
		}
	}
	c.compare.page(page)
	return true
}

// Report takes a report. The core keeps r and never changes it. When it returns
// Taken the report is not lost as long as the process lives; after that, the
// next resync brings it again.
func (c *Core) Report(r *Report) ReportResult {
	if c.fleet.All {
		c.cluster(r.Cluster)
	}
	if !c.plains.believes(r.Cluster, r.Stamp) {
		return Void
	}
	return c.statuses.receive(r)
}

// Alive takes an agent's word that it is there, or its farewell.
func (c *Core) Alive(a *Alive) {
	switch {
	case a.Farewell:
		c.plains.parts(a)
	case c.plains.believes(a.Cluster, a.Stamp):
		c.plains.alive(a)
	}
}

// Listed takes what an agent says that it holds, where nobody else answers it. The core
// keeps l. It returns false for a list that does not count.
func (c *Core) Listed(l *Listed) bool {
	if c.fleet.All && l.Cluster != "" {
		c.cluster(l.Cluster)
	}
	if !c.plains.believes(l.Cluster, l.Stamp) {
		return false
	}
	c.plains.listed(l)
	return c.fleet.plain
}
