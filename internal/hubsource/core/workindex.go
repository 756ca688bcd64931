package core

import (
	"errors"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/internal/workmetrics"
	"github.com/hawser-io/hawser/pkg/transport"
)

// workIndex is what there is: the works of a hub by cluster, and the subscription
// on which the broker is told of them.
type workIndex struct {
	agenda

	works    map[types.UID]*work
	clusters map[string]*cluster
	// ticks is a clock: it orders what was asked and what was heard.
	ticks int
	// behind counts the works of which the broker has something later.
	behind      int
	undelivered map[string]int // works by reason of Delivered=False
	census      workmetrics.Counts
	pending     int       // reports waiting for their patch
	wroteAt     time.Time // when the hub took a status last

	// sub numbers the subscriptions from 1; id is what the broker calls the
	// present one, or the last one.
	sub       int
	id        string
	connected bool
	// connectedAt is since when.
	connectedAt time.Time
	begun       bool // there was one in this life of the hub
	// order numbers what must not change places on the way to the broker.
	order uint64
	// ocmBroker: the broker speaks no Hawser protocol. lists: it does not know up to
	// where statuses are on this hub, and is asked for them.
	ocmBroker, lists bool
	// stateless: there is no broker that keeps anything, only agents behind it. limit is the
	// largest event that fits, 0 if nobody knows; repaired is what they were told again.
	stateless bool
	limit     int
	repaired  fair.Bucket
	sessions  *sessionfence.Tracker
	// ending: the subscription has to end, because something is under way on it
	// that would do harm when it is late. ends bounds how often.
	ending bool
	ends   retry
	// initialSync is what is left to look at.
	initialSync []Key
}

// work is what is known of one ManifestWork: one reading of the hub, one of the
// broker, and what the cluster reported.
type work struct {
	uid      types.UID
	cl       *cluster
	hub      hubObservation
	broker   brokerObservation
	spec     specState
	report   reportState
	problems deliveryProblems

	// class is as what the census has it.
	class      workmetrics.ConditionStates
	turnaround workmetrics.VersionLatency

	// nextTurn is when its Delivered may say something else of its agent; zero if it need not.
	nextTurn time.Time

	// open: its cluster does not count as compared as long as the broker has not
	// accepted the work as it is. behind: the broker has something later.
	open, behind bool
}

// cluster is what is known of one cluster.
type cluster struct {
	name      string
	selected  bool
	works     map[types.UID]*work
	release   release
	comparing comparing
	lists     statusLists
	listing   retry // of a list of the hub that answers for many works
	budget    clusterWriteBudget
	agent     remoteAgent
	// open counts works that the broker does not have as they are.
	open int
}

func newFleet(cfg Config, sub int, line *sessionfence.Tracker) *workIndex {
	return &workIndex{
		agenda: agenda{Config: cfg, pauses: map[string]time.Time{}}, sub: sub, sessions: line,
		works: map[types.UID]*work{}, clusters: map[string]*cluster{}, undelivered: map[string]int{},
	}
}

func (w *work) key() Key { return Key{UID: w.uid, Cluster: w.cl.name} }

func (cl *cluster) key() Key { return Key{Cluster: cl.name} }

// tick is later than all that was asked or heard so far.
func (f *workIndex) tick() int {
	f.ticks++
	return f.ticks
}

// serve serves a cluster from now on, or no longer.
func (cl *cluster) serve(selected bool) { cl.selected = selected }

// subscribe begins a subscription: what the broker said on another one counts
// no longer.
func (f *workIndex) subscribe(a transport.Accepted, lists bool) {
	f.sub++
	f.id, f.connected, f.ocmBroker, f.lists, f.ending = a.SubscriptionID, true, a.Protocol == 0, lists, false
	f.begun, f.connectedAt = true, f.Now()
	f.stateless, f.limit = a.Stateless, a.MaxEventBytes
	f.initialSync = make([]Key, 0, len(f.clusters)+len(f.works))
	f.pauses = map[string]time.Time{}
}

func (f *workIndex) disconnect() { f.connected, f.ending, f.initialSync = false, false, nil }

// endSubscription has the subscription end: what is under way on it counts no
// longer then. It is backed off.
func (f *workIndex) endSubscription() {
	if !f.ending && f.connected && !f.ocmBroker {
		f.ending = true
		f.failed(BrokerQueue, Key{}, &f.ends, 0)
	}
}

// nextOrder numbers an event for a broker that can tell by it what came late, or
// once more.
func (f *workIndex) nextOrder() uint64 {
	if f.ocmBroker {
		return 0
	}
	f.order++
	return f.order
}

// stamp are those of what is published next for a cluster.
func (f *workIndex) stamp(cl *cluster) sessionfence.Stamp {
	if !f.stateless {
		return sessionfence.Stamp{}
	}
	return f.sessions.Stamp(cl.name)
}

func (f *workIndex) nextEnd() *todo {
	if !f.ending || !f.due(BrokerQueue, Key{}, &f.ends) {
		return nil
	}
	return &todo{Effect: EndSubscription{ID: f.id}}
}

// mayReport reports whether the broker may be told of a cluster's works now.
func (f *workIndex) mayReport(cl *cluster) bool {
	return cl.selected && !cl.release.pending() && f.connected
}

// ofWork is an effect whose result says nothing of a work that was forgotten meanwhile.
func (f *workIndex) ofWork(w *work, e Effect, done func(Result)) *todo {
	return &todo{e, func(r Result) {
		if f.works[w.uid] == w {
			done(r)
		}
	}}
}

// ofCluster is the same for a cluster.
func (f *workIndex) ofCluster(cl *cluster, e Effect, done func(Result)) *todo {
	return &todo{e, func(r Result) {
		if f.clusters[cl.name] == cl {
			done(r)
		}
	}}
}

// look has a work looked at when the workers come to it.
func (f *workIndex) look(k Key) { f.initialSync = append(f.initialSync, k) }

// nextInitialSync hands out up to n keys to look at.
func (f *workIndex) nextInitialSync(n int) []Key {
	if f.pauses[""].After(f.Now()) {
		return nil
	}
	n = min(n, len(f.initialSync))
	part := f.initialSync[:n:n]
	if f.initialSync = f.initialSync[n:]; len(f.initialSync) == 0 {
		f.initialSync = nil
	}
	return part
}

// recount brings up to date what is counted of a work.
func (f *workIndex) recount(w *work) {
	known := w.hub.object != nil && f.works[w.uid] == w
	var class workmetrics.ConditionStates
	if known && w.hub.ended == alive {
		class = workmetrics.Of(w.hub.object)
	}
	f.census.Move(&w.class, class)
	open := known && w.cl.comparing.stage != notCompared && !w.isUpToDate(f.sub)
	if open != w.open {
		w.open = open
		if w.cl.open += sign(open); w.cl.open == 0 {
			f.wakeCluster(BrokerQueue, w.cl)
		}
	}
	if behind := known && w.cl.selected && w.isBehind(f.sub); behind != w.behind {
		w.behind = behind
		if f.behind += sign(behind); f.behind == 0 {
			f.wakeCompared()
		}
	}
}

// wakeCompared has another look at the clusters that wait for something which
// concerns all.
func (f *workIndex) wakeCompared() {
	for _, cl := range f.clusters {
		if cl.comparing.stage == differencesKnown || len(cl.agent.orphans) > 0 {
			f.wakeCluster(BrokerQueue, cl)
		}
	}
}

// isUpToDate reports whether the broker has the work as it is now.
func (w *work) isUpToDate(sub int) bool {
	switch w.broker.on(sub) {
	case holds:
		return w.broker.fingerprint.equal(w.hub.fingerprint())
	case confirmedDeleted:
		return true
	case unknown, differs, unsure, isAbsent, listed, refused:
	}
	return false
}

// isBehind reports whether the broker has something later of a work.
func (w *work) isBehind(sub int) bool {
	if w.broker.on(sub) != listed || w.hub.deleting() || w.hub.absent {
		return false
	}
	return w.broker.row.Tombstone || w.broker.row.Version > w.hub.object.Generation
}

// setProblems replaces what is wrong with a work and keeps the counts.
func (f *workIndex) setProblems(w *work, b deliveryProblems) {
	if p := w.problems.problem(); p != nil {
		if f.undelivered[p.reason]--; f.undelivered[p.reason] == 0 {
			delete(f.undelivered, p.reason)
		}
	}
	w.problems = b
	if p := b.problem(); p != nil {
		f.undelivered[p.reason]++
	}
}

func (f *workIndex) setSpecProblem(w *work, p *problem) {
	f.setProblems(w, deliveryProblems{known: true, spec: p, status: w.problems.status, agent: w.problems.agent})
}

func (f *workIndex) setAgentProblem(w *work, p *problem) {
	known := w.problems.known || p == nil // it was said for want of anything else
	f.setProblems(w, deliveryProblems{known: known, spec: w.problems.spec, status: w.problems.status, agent: p})
}

func (f *workIndex) setStatusProblem(w *work, p *problem) {
	known := w.problems.known || w.problems.status != nil // then Delivered on the hub is of that
	f.setProblems(w, deliveryProblems{known: known, spec: w.problems.spec, status: p, agent: w.problems.agent})
}

// remove drops a work; the rest of the core has let go of it.
func (f *workIndex) remove(w *work) {
	delete(f.works, w.uid)
	delete(w.cl.works, w.uid)
	f.recount(w)
	f.setProblems(w, deliveryProblems{})
}

// addCluster makes a new cluster.
func (f *workIndex) addCluster(name string) *cluster {
	cl := &cluster{name: name, selected: f.All, works: map[types.UID]*work{}}
	f.clusters[name] = cl
	return cl
}

// add makes a new work of a cluster.
func (f *workIndex) add(uid types.UID, cl *cluster) *work {
	w := &work{uid: uid, cl: cl}
	f.works[uid], cl.works[uid] = w, w
	return w
}

// object returns the newest state of a work that has a tag, else nil.
func (w *work) comparable() *workv1.ManifestWork {
	if w.hub.object == nil || w.hub.ended != alive || w.hub.deleting() || isLarge(w.hub.object) {
		return nil
	}
	return w.hub.object
}

// wait counts a report that waits, or no longer.
func (f *workIndex) wait(more bool) { f.pending += sign(more) }

func sign(up bool) int {
	if up {
		return 1
	}
	return -1
}

// agenda is when what is looked at again.
type agenda struct {
	Config
	// pauses are until when an overloaded broker asked to wait with what is for a cluster;
	// under "" with everything.
	pauses map[string]time.Time
}

// retry is the back-off of one thing that is tried.
type retry struct {
	failures  int
	notBefore time.Time
	// onChange: the last attempt met a newer object; the next one need not wait
	// once the informer has it.
	onChange bool
	// planned: the next attempt is within a budget, at its time.
	planned bool
}

// Back-off of the lanes. The hub's is short: a status that could not be written
// is all that a person sees of a work.
const (
	firstDelay   = 100 * time.Millisecond
	longestSpec  = 30 * time.Second
	longestHub   = 10 * time.Second
	refusedDelay = 5 * time.Minute
)

func (r *retry) reset() { *r = retry{} }

// changed takes it that what was tried is another thing now.
func (r *retry) changed() {
	if r.onChange {
		r.notBefore = time.Time{}
	}
}

// plan gives the next attempt its turn.
func (r *retry) plan(wait func() time.Time) {
	if !r.planned {
		r.wait(wait(), false)
		r.planned = true
	}
}

// goes takes it that what was planned is done.
func (r *retry) goes() { r.planned = false }

// wait has the next attempt wait until then, or until something changes.
func (r *retry) wait(until time.Time, onChange bool) { r.notBefore, r.onChange = until, onChange }

func (a *agenda) wake(l Queue, k Key, after time.Duration) { a.Waker.Wake(l, k, max(0, after)) }

func (a *agenda) wakeAt(l Queue, k Key, at time.Time) { a.wake(l, k, at.Sub(a.Now())) }

func (a *agenda) wakeCluster(l Queue, cl *cluster) { a.wake(l, Key{Cluster: cl.name}, 0) }

// hurry has something done for a work before what is done for others of its cluster.
func (a *agenda) hurry(l Queue, w *work) {
	a.Waker.Hurry(l, w.key())
	a.wake(l, w.key(), 0)
}

func (a *agenda) wakeWork(w *work) {
	a.wake(BrokerQueue, w.key(), 0)
	a.wake(HubQueue, w.key(), 0)
}

// until reports whether a time lies ahead; then the key is woken at it.
func (a *agenda) until(l Queue, k Key, at time.Time) bool {
	ahead := at.After(a.Now())
	if ahead {
		a.wakeAt(l, k, at)
	}
	return ahead
}

// due reports whether something may be tried; if not, its key is woken in time.
func (a *agenda) due(l Queue, k Key, r *retry) bool { return !a.until(l, k, r.notBefore) }

// ready is due for what is for the broker, which may have asked to wait.
func (a *agenda) ready(k Key, r *retry) bool {
	return !a.until(BrokerQueue, k, a.pauses[""]) && !a.until(BrokerQueue, k, a.pauses[k.Cluster]) && a.due(BrokerQueue, k, r)
}

// pause has what is for a cluster wait; for "" everything.
func (a *agenda) pause(cluster string, delay time.Duration) {
	now := a.Now()
	maps.DeleteFunc(a.pauses, func(_ string, until time.Time) bool { return !until.After(now) })
	a.pauses[cluster] = now.Add(delay)
	a.wake(BrokerQueue, Key{Cluster: cluster}, delay)
}

// failed plans the next attempt, at least least from now.
func (a *agenda) failed(l Queue, k Key, r *retry, least time.Duration) {
	longest := longestSpec
	if l == HubQueue {
		longest = longestHub
	}
	d := longest
	if r.failures < 20 {
		d = min(longest, firstDelay<<r.failures)
	}
	d = max(least, d/2+a.jittered(d/2))
	r.failures++
	r.notBefore, r.onChange = a.Now().Add(d), false
	a.wake(l, k, d)
}

func (a *agenda) jittered(d time.Duration) time.Duration {
	return time.Duration(a.Jitter() * float64(d))
}

// hubFailed plans the next attempt of a request to the hub. Of what is gone the
// informer is about to say so; until then it lags, perhaps for long.
func (a *agenda) hubFailed(l Queue, k Key, r *retry, err error) {
	var least time.Duration
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		least = time.Duration(s) * time.Second
	}
	a.failed(l, k, r, least)
	r.onChange = apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

// brokerFailed plans the next attempt of a request to the broker, where one may help;
// it reports whether it may.
func (a *agenda) brokerFailed(k Key, r *retry, err error) bool {
	if err == nil || !transport.Retryable(err) {
		return false
	}
	e := transportErrorOf(err)
	switch {
	case e.Code != transport.CodeOverloaded || e.Delay == 0 || e.Attribute != "":
	case e.ClusterOnly:
		a.pause(k.Cluster, e.Delay)
	default:
		a.pause("", e.Delay)
	}
	a.failed(BrokerQueue, k, r, e.Delay)
	return true
}

// needsPerson reports whether the broker has no room until a person makes some: it says so, or names no time.
func needsPerson(e transport.Error) bool {
	return e.Code == transport.CodeOverloaded && (e.Full || e.Delay == 0)
}

// transportErrorOf is what the broker said of a request that failed, the zero error where it said nothing.
func transportErrorOf(err error) (e transport.Error) {
	if reported, ok := errors.AsType[*transport.Error](err); ok {
		e = *reported
	}
	return e
}

// isOpen reports whether nobody knows what became of a request to the broker: it
// may be carried out yet, or have been.
func isOpen(err error) bool {
	code := transport.CodeOf(err)
	unanswered := code == transport.CodeUnavailable || code == transport.CodeDeadline || code == transport.CodeInternal
	return err != nil && unanswered && transport.Retryable(err)
}
