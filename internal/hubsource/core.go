package hubsource

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	workv1 "open-cluster-management.io/api/work/v1"
)

// echoTimeout bounds how long the answer of an own write is preferred over what
// the informer says. It matters only when resource versions went backwards, as
// they do when a hub is restored from a backup.
const echoTimeout = 10 * time.Second

// CoreConfig is what a [Core] needs from outside.
type CoreConfig struct {
	// Now is the clock.
	Now func() time.Time
	// Jitter returns a number in [0, 1); it spreads retries.
	Jitter func() float64
	Waker  Waker
	// All serves every namespace that has works; otherwise the clusters named
	// by ClusterSelected.
	All bool
	// CleanUp deletes completed works when their time to live is over.
	CleanUp bool
	// NewID returns a new id for a request. Without it works are not compared
	// with what the broker has but all published on each connection, and the
	// place in the broker's stream is not kept.
	NewID func() string
	// State is what an earlier process saved.
	State State
}

// Core decides what to do for each work. It is not safe for concurrent use: the
// owner guards it, and guards nothing else with the same lock.
type Core struct {
	cfg      CoreConfig
	works    map[types.UID]*work
	clusters map[string]*cluster

	// conn numbers the connections to the broker from 1; what was accepted on
	// an earlier one is published again.
	conn      int
	connected bool
	// subscription is the id of the present connection's, or the last one's.
	subscription string
	// order numbers what must not change places on the way to the broker.
	order uint64
	// stock: the broker speaks no Hawser protocol.
	stock bool
	// asks: the broker does not know what statuses this source has seen.
	asks bool
	// pausedUntil: an overloaded broker asked to wait.
	pausedUntil time.Time
	// sweep is what is left to look at since the connection began.
	sweep []Key

	comparison comparison
	stream     stream
	keep       keep

	// backs counts how often a work was seen to be older than before. What was begun
	// before that says nothing of the generations that are counted again since.
	backs int
	// requests counts the requests for records, on all connections.
	requests int

	pending     int            // reports waiting for their patch
	undelivered map[string]int // works by reason of Delivered=False
}

// NewCore returns a core that knows no work and no broker.
func NewCore(cfg CoreConfig) *Core {
	c := &Core{
		cfg:         cfg,
		works:       map[types.UID]*work{},
		clusters:    map[string]*cluster{},
		undelivered: map[string]int{},
	}
	c.restore(cfg.State)
	return c
}

// work is what the core knows of one ManifestWork.
type work struct {
	uid     types.UID
	cluster string

	// seen is the informer's object, nil as long as it has none. own is the
	// answer of our last write while the informer lags behind it.
	// fetched: seen is not from the informer but the answer to a question.
	seen, own *workv1.ManifestWork
	ownAt     time.Time
	fetched   bool
	lags      bool // the informer has shown something older than own since

	// gone: the informer reported the object deleted. goneChecked: the hub
	// confirmed it. missing: nobody saw the deletion, it is just not there.
	gone, goneChecked, missing bool
	goneAt                     time.Time

	// confirmed: nothing of the work is left on the cluster, the finalizer may go.
	confirmed bool
	// open: its cluster does not count as compared as long as the broker has not
	// accepted the work on this connection.
	open bool

	spec   specState
	report reportState
	blame  blame
}

// retry is the back-off of one lane of one work.
type retry struct {
	failures  int
	notBefore time.Time
	// onChange: the last attempt met a newer object; the next one need not wait
	// once the informer has it.
	onChange bool
}

// cluster is what the core knows of one cluster.
type cluster struct {
	name     string
	selected bool
	works    map[types.UID]*work
	inFlight int // publishes of works of this cluster

	// mustRelease: it is not served any more and the broker was not told; or it is
	// served again, and nobody knows what became of a release on this connection.
	mustRelease bool
	releasing   bool
	// unsure is the last connection on which a release got no answer, 0 for none.
	unsure int
	// mustAsk: its statuses have to be asked for; ask is what is left to be
	// listed. askRound tells an answer to an earlier attempt.
	mustAsk, asking bool
	ask             []types.UID
	askRound        int
	askOpen         bool // one of them is to be done
	retry           retry

	comparing comparing
	alive     asking
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
	// Undelivered is the number of works with Delivered=False by reason.
	Undelivered map[string]int
	Connected   bool
}

// Stats returns the current numbers.
func (c *Core) Stats() Stats {
	s := Stats{Works: len(c.works), Pending: c.pending, Sweep: len(c.sweep), Connected: c.connected, Undelivered: make(map[string]int, len(c.undelivered))}
	for _, cl := range c.clusters {
		if !cl.selected {
			continue
		}
		s.Clusters++
		if c.comparison.on && !cl.comparing.compared(cl) {
			s.Comparing++
		}
		if n := len(cl.comparing.withheld); n > 0 {
			s.WithheldClusters++
			s.WithheldWorks += n
		}
	}
	for reason, n := range c.undelivered {
		s.Undelivered[reason] = n
	}
	return s
}

// WorkSeen takes the informer's newest object of a work. The core keeps o and
// never changes it.
func (c *Core) WorkSeen(o *workv1.ManifestWork) {
	w := c.work(o.UID, o.Namespace)
	if c.asks && hasFinalizer(o) && (w.seen == nil || !hasFinalizer(c.current(w))) {
		// The informer lags behind an earlier leader's, who put it on. It may show the work
		// without it first.
		c.askFor(w)
		w.spec.elsewhere = true
	} else if w.seen == nil && c.keep.back {
		c.askFor(w) // it lagged when the hub was found to have gone back, which took the status away
	}
	if w.seen == nil || w.report.retry.onChange {
		w.report.retry.notBefore = time.Time{}
	}
	if w.spec.retry.onChange {
		w.spec.retry.notBefore = time.Time{}
	}
	if o.DeletionTimestamp == nil && w.confirmed { // a hub that went back in time has it again
		w.confirmed = false
		c.letGo(w)
		c.notAccepted(w)
	}
	c.compareSeen(w, o)
	c.setMissing(w, false)
	w.seen, w.fetched, w.gone, w.goneChecked = o, false, false, false
	if w.own != nil {
		if w.lags = olderThan(o, w.own); w.lags { // the echo of the own write follows
			c.wake(SpecLane, w, echoTimeout)
			c.wake(HubLane, w, echoTimeout)
			return
		}
		w.own, w.lags = nil, false
	}
	// A hub that went back in time counts its generations again.
	w.report.version = min(w.report.version, o.Generation)
	c.wake(SpecLane, w, 0)
	c.wake(HubLane, w, 0)
}

// fetched takes an object that the hub gave for a work which the informer does
// not have any more.
func (c *Core) fetched(o *workv1.ManifestWork) {
	c.WorkSeen(o)
	c.works[o.UID].fetched, c.works[o.UID].spec.alive = true, o.DeletionTimestamp == nil
}

// WorkGone takes the informer's word that a work was deleted: the hub said so.
func (c *Core) WorkGone(uid types.UID) { c.workGone(uid, false) }

// WorkMissing takes the informer's word that a work is not in a new list of the
// hub, or that another one has its name there. Nobody saw its deletion: the hub
// may have gone back in time.
func (c *Core) WorkMissing(uid types.UID) { c.workGone(uid, true) }

func (c *Core) workGone(uid types.UID, missing bool) {
	w := c.works[uid]
	if w == nil || w.seen == nil || w.gone {
		return
	}
	c.setMissing(w, missing)
	w.gone, w.goneChecked, w.goneAt = true, false, c.cfg.Now()
	c.moved(w.seen)
	c.loseReport(w)
	c.setBlame(w, blame{})
	c.withdraw(w)
	w.spec.retry = retry{}
	c.wake(SpecLane, w, 0)
}

// ClusterSelected takes a cluster that matches the selector.
func (c *Core) ClusterSelected(name string) {
	cl := c.cluster(name)
	if cl.selected {
		return
	}
	if cl.unsure != c.conn {
		c.setRelease(cl, false)
	}
	cl.selected, cl.retry = true, retry{}
	// Also where the broker continues from a cursor: reports of a cluster that
	// was not served have been ignored.
	c.askAgain(cl, c.asks || c.connected && !c.stock)
	c.enter(cl)
	c.cfg.Waker.Wake(SpecLane, Key{Cluster: name}, 0)
	for _, w := range cl.works {
		c.wake(SpecLane, w, 0)
		c.wake(HubLane, w, 0)
	}
}

// ClusterUnselected takes a cluster that left the selection: it is released.
func (c *Core) ClusterUnselected(name string) {
	cl := c.clusters[name]
	if cl == nil || !cl.selected || c.cfg.All {
		return
	}
	c.setRelease(cl, true)
	cl.selected, cl.retry = false, retry{}
	c.askAgain(cl, false)
	c.leave(cl)
	c.unsureAgain(cl)
	c.holdBack()
	for _, w := range cl.works {
		c.loseReport(w)
		c.setBlame(w, blame{known: true})
		c.wake(SpecLane, w, 0)
		c.wake(HubLane, w, 0)
	}
	c.cfg.Waker.Wake(SpecLane, Key{Cluster: name}, 0)
}

// Next returns what to do now for key, nil when there is nothing, or not yet;
// in the latter case the core wakes the key when it is time. The result of the
// effect must be given to Done before Next is called again for the same lane
// and key.
func (c *Core) Next(lane Lane, key Key) Effect {
	if key == (Key{}) {
		return c.nextOfAll(lane)
	}
	if key.UID == "" {
		if cl := c.clusters[key.Cluster]; cl != nil && lane == SpecLane {
			return c.nextCluster(cl)
		}
		return nil
	}
	w := c.works[key.UID]
	if w == nil {
		return nil
	}
	if d := w.ownAt.Add(echoTimeout).Sub(c.cfg.Now()); d > 0 && (w.lags || w.own != nil && lane == HubLane) {
		c.wake(lane, w, d)
	} else if w.lags {
		c.loseEcho(w)
	} else if w.own != nil && d <= 0 {
		// It has shown nothing since: it is very slow, or the hub went back to exactly
		// what it has, and what was written is there no more.
		w.own, w.report.sequence = nil, ""
		c.askFor(w)
	}
	switch {
	case lane == SpecLane:
		return c.nextSpec(w)
	default:
		return c.nextHub(w)
	}
}

// Done takes the result of an effect that Next returned.
func (c *Core) Done(e Effect, r Result) {
	switch e := e.(type) {
	case AddFinalizer:
		c.doneAddFinalizer(e, r)
	case Publish:
		c.donePublish(e, r)
	case CheckGone:
		c.doneCheckGone(e, r)
	case Release:
		c.doneRelease(e, r)
	case Ask:
		c.doneAsk(e, r)
	case PatchStatus:
		c.donePatchStatus(e, r)
	case RemoveFinalizer:
		c.doneRemoveFinalizer(e, r)
	case Lookup:
		c.doneLookup(e, r)
	case DeleteCompleted:
		c.doneDeleteCompleted(e, r)
	default:
		c.doneCompare(e, r)
	}
}

// doneCompare takes the result of an effect of effect_compare.go.
func (c *Core) doneCompare(e Effect, r Result) {
	switch e := e.(type) {
	case Tag:
		c.doneTag(e, r)
	case AskInventory:
		c.doneAskInventory(e, r)
	case CheckBehind:
		c.doneCheckBehind(e, r)
	case CheckMissing:
		c.doneCheckMissing(e, r)
	case ListAlive:
		c.doneListAlive(e, r)
	case Delete:
		c.doneDelete(e, r)
	case SendCompared:
		c.doneSendCompared(e, r)
	case SendAck:
		c.doneSendAck(e, r)
	case Locate:
		c.doneLocate(e, r)
	case Save:
		c.doneSave(e, r)
	}
}

// nextOfAll decides the next step of the source as a whole.
func (c *Core) nextOfAll(lane Lane) Effect {
	if c.cfg.NewID == nil {
		return nil
	}
	if lane == HubLane {
		if e := c.nextLocate(); e != nil {
			return e
		}
		return c.nextSave()
	}
	for _, next := range []func() Effect{c.nextInventory, c.nextCompared, c.nextAck} {
		if e := next(); e != nil {
			return e
		}
	}
	return nil
}

// work returns the state of a work and makes it when it is new.
func (c *Core) work(uid types.UID, clusterName string) *work {
	w := c.works[uid]
	if w == nil {
		w = &work{uid: uid, cluster: clusterName}
		c.works[uid] = w
		c.cluster(clusterName).works[uid] = w
	}
	return w
}

// cluster returns the state of a cluster and makes it when it is new. What is
// not selected has to be released: an earlier process may have served it.
func (c *Core) cluster(name string) *cluster {
	cl := c.clusters[name]
	if cl == nil {
		cl = &cluster{name: name, selected: c.cfg.All, works: map[types.UID]*work{}}
		c.clusters[name] = cl
		c.setRelease(cl, !c.cfg.All)
		c.enter(cl)
		c.cfg.Waker.Wake(SpecLane, Key{Cluster: name}, 0)
	}
	return cl
}

// forget drops everything about a work.
func (c *Core) forget(w *work) {
	c.dropReport(w)
	c.letGo(w)
	c.setBlame(w, blame{})
	c.withdraw(w)
	c.setOpen(w, false)
	c.setMissing(w, false)
	delete(c.works, w.uid)
	cl := c.clusters[w.cluster]
	delete(cl.works, w.uid)
	c.tidy(cl)
}

// tidy drops a cluster that nothing is known about any more.
func (c *Core) tidy(cl *cluster) {
	kept := cl.selected && !c.cfg.All || cl.mustRelease || cl.releasing || cl.asking || cl.inFlight > 0 || len(cl.works) > 0
	if !kept && !c.stillCompared(cl) {
		c.askAgain(cl, false)
		delete(c.clusters, cl.name)
	}
}

// current returns the newest object known, nil when there is none.
func (c *Core) current(w *work) *workv1.ManifestWork {
	if w.own != nil && c.cfg.Now().Sub(w.ownAt) >= echoTimeout {
		w.own = nil
	}
	if w.own != nil {
		return w.own
	}
	return w.seen
}

// wrote takes the hub's answer to an own write.
func (c *Core) wrote(w *work, o *workv1.ManifestWork) {
	if o != nil {
		c.shown(o)
	}
	if o == nil || w.seen == nil || w.gone || !olderThan(w.seen, o) {
		return
	}
	w.own, w.ownAt, w.lags = o, c.cfg.Now(), false
}

// loseEcho lets go of the answer of an own write that the informer never came to
// show: the hub went back behind what was written, or the informer is very slow.
// What was published and compared since then may have been of that answer, and
// the state that counts now may have the same generation and another spec.
func (c *Core) loseEcho(w *work) {
	w.own, w.lags, w.report.sequence = nil, false, ""
	c.backs++
	c.askFor(w)
	if !w.gone && !w.confirmed {
		c.judgeAgain(w)
	}
}

func (c *Core) wake(l Lane, w *work, after time.Duration) {
	c.cfg.Waker.Wake(l, Key{UID: w.uid}, after)
}

// due reports whether a lane of a work may act; if not, it is woken in time.
func (c *Core) due(l Lane, key Key, r *retry) bool {
	if d := r.notBefore.Sub(c.cfg.Now()); d > 0 {
		c.cfg.Waker.Wake(l, key, d)
		return false
	}
	return true
}

// Back-off of the lanes. The hub's is short: a status that could not be written
// is all that a person sees of a work.
const (
	firstDelay   = 100 * time.Millisecond
	longestSpec  = 30 * time.Second
	longestHub   = 10 * time.Second
	refusedDelay = 5 * time.Minute
)

// failed plans the next attempt of a lane, at least least from now.
func (c *Core) failed(l Lane, key Key, r *retry, least time.Duration) {
	longest := longestSpec
	if l == HubLane {
		longest = longestHub
	}
	d := longest
	if r.failures < 20 {
		d = min(longest, firstDelay<<r.failures)
	}
	d = max(least, d/2+time.Duration(c.cfg.Jitter()*float64(d/2)))
	r.failures++
	r.notBefore, r.onChange = c.cfg.Now().Add(d), false
	c.cfg.Waker.Wake(l, key, d)
}

// hubFailed plans the next attempt of a write or read on the hub. Of what is gone
// the informer is about to say so; until then it lags, perhaps for long.
func (c *Core) hubFailed(l Lane, key Key, r *retry, err error) {
	c.failed(l, key, r, hubDelay(err))
	r.onChange = apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

// olderThan compares resource versions. Ones that are no numbers are never
// older: what came last wins.
func olderThan(a, b *workv1.ManifestWork) bool {
	n, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && n < 0
}
