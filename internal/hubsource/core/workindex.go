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

// workIndex holds the works of a hub by cluster, and the subscription on which they are published.
type workIndex struct {
	agenda

	works    map[types.UID]*work
	clusters map[string]*cluster
	// ticks is a logical clock. It orders queries and answers.
	ticks int
	// behind counts the works of which the broker has a later state.
	behind      int
	undelivered map[string]int // number of works by reason of Delivered=False
	census      workmetrics.Counts
	pending     int       // number of reports that wait for their patch
	wroteAt     time.Time // when the hub accepted the last status

	// sub numbers the subscriptions from 1. id is the broker's id of the present one, or of the last one.
	sub       int
	id        string
	connected bool
	// connectedAt is when the subscription began.
	connectedAt time.Time
	begun       bool // there was a subscription in this hub epoch
	// order is the last fencing token, for events that must keep their order on the way to the broker.
	order uint64
	// ocmBroker: the broker does not support the Hawser protocol. lists: it does not know the cursor of this hub,
	// so statuses are requested by lists.
	ocmBroker, lists bool
	// stateless: the broker is stateless, and agents answer behind it. limit is the size of the largest event in
	// bytes, 0 if it is unknown. repaired is the budget of repeated publishes.
	stateless bool
	limit     int
	repaired  fair.Bucket
	sessions  *sessionfence.Tracker
	// ending: the subscription has to end, because an event in flight would do harm if it is late. ends backs off
	// such ends.
	ending bool
	ends   retry
	// initialSync are the keys that are still to be checked.
	initialSync []Key
}

// work is the state of one ManifestWork: one observation of the hub, one of the broker, and the cluster's
// report.
type work struct {
	uid      types.UID
	cl       *cluster
	hub      hubObservation
	broker   brokerObservation
	spec     specState
	report   reportState
	problems deliveryProblems

	// class is how the census counts the work.
	class      workmetrics.ConditionStates
	turnaround workmetrics.VersionLatency

	// nextTurn is when the agent problem in its Delivered may be written; zero if nothing is due.
	nextTurn time.Time

	// open: the broker has not accepted the work as it is, so its cluster is not synced. behind: the broker has a
	// later state.
	open, behind bool
}

// cluster is the state of one cluster.
type cluster struct {
	name      string
	selected  bool
	works     map[types.UID]*work
	release   release
	comparing comparing
	lists     statusLists
	listing   retry // back-off of lists of the hub that answer for many works
	budget    clusterWriteBudget
	agent     remoteAgent
	// open counts works that the broker does not hold as they are.
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

// tick returns a tick later than all queries and answers so far.
func (f *workIndex) tick() int {
	f.ticks++
	return f.ticks
}

// serve sets whether a cluster is served.
func (cl *cluster) serve(selected bool) { cl.selected = selected }

// subscribe begins a subscription. Answers of the broker on another one are no longer valid.
func (f *workIndex) subscribe(a transport.Accepted, lists bool) {
	f.sub++
	f.id, f.connected, f.ocmBroker, f.lists, f.ending = a.SubscriptionID, true, a.Protocol == 0, lists, false
	f.begun, f.connectedAt = true, f.Now()
	f.stateless, f.limit = a.Stateless, a.MaxEventBytes
	f.initialSync = make([]Key, 0, len(f.clusters)+len(f.works))
	f.pauses = map[string]time.Time{}
}

func (f *workIndex) disconnect() { f.connected, f.ending, f.initialSync = false, false, nil }

// endSubscription ends the subscription with a back-off. Events in flight on it are rejected after that.
func (f *workIndex) endSubscription() {
	if !f.ending && f.connected && !f.ocmBroker {
		f.ending = true
		f.failed(BrokerQueue, Key{}, &f.ends, 0)
	}
}

// nextOrder returns the next fencing token, by which the broker detects late and repeated events. It returns 0
// for an OCM broker.
func (f *workIndex) nextOrder() uint64 {
	if f.ocmBroker {
		return 0
	}
	f.order++
	return f.order
}

// stamp returns the session stamp of the next publish for a cluster.
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

// mayReport reports whether a cluster's works may be published now.
func (f *workIndex) mayReport(cl *cluster) bool {
	return cl.selected && !cl.release.pending() && f.connected
}

// ofWork returns an effect of a work. Its result is dropped if the work was forgotten.
func (f *workIndex) ofWork(w *work, e Effect, done func(Result)) *todo {
	return &todo{e, func(r Result) {
		if f.works[w.uid] == w {
			done(r)
		}
	}}
}

// ofCluster returns an effect of a cluster. Its result is dropped if the cluster was forgotten.
func (f *workIndex) ofCluster(cl *cluster, e Effect, done func(Result)) *todo {
	return &todo{e, func(r Result) {
		if f.clusters[cl.name] == cl {
			done(r)
		}
	}}
}

// look queues a key for the initial sync.
func (f *workIndex) look(k Key) { f.initialSync = append(f.initialSync, k) }

// nextInitialSync removes and returns up to n keys of the initial sync.
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

// recount updates the counts for a work.
func (f *workIndex) recount(w *work) {
	known := w.hub.object != nil && f.works[w.uid] == w
	var class workmetrics.ConditionStates
	if known && w.hub.ended == alive {
		class = workmetrics.Of(w.hub.object)
	}
	f.census.Move(&w.class, class)
	open := known && w.cl.comparing.stage != stageNotCompared && !w.isUpToDate(f.sub)
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

// wakeCompared wakes the clusters that wait for an event of all clusters.
func (f *workIndex) wakeCompared() {
	for _, cl := range f.clusters {
		if cl.comparing.stage == stageDifferencesKnown || len(cl.agent.orphans) > 0 {
			f.wakeCluster(BrokerQueue, cl)
		}
	}
}

// isUpToDate reports whether the broker holds the work as it is now.
func (w *work) isUpToDate(sub int) bool {
	switch w.broker.on(sub) {
	case recordMatches:
		return w.broker.fingerprint.equal(w.hub.fingerprint())
	case recordDeleted:
		return true
	case recordUnknown, recordDiffers, recordUnsure, recordAbsent, recordListed, recordRejected:
	}
	return false
}

// isBehind reports whether the broker has a later state of a work.
func (w *work) isBehind(sub int) bool {
	if w.broker.on(sub) != recordListed || w.hub.deleting() || w.hub.absent {
		return false
	}
	return w.broker.row.Tombstone || w.broker.row.Version > w.hub.object.Generation
}

// setProblems replaces the problems of a work and keeps the counts.
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
	known := w.problems.known || p == nil // an earlier process wrote no other problem
	f.setProblems(w, deliveryProblems{known: known, spec: w.problems.spec, status: w.problems.status, agent: p})
}

func (f *workIndex) setStatusProblem(w *work, p *problem) {
	known := w.problems.known || w.problems.status != nil // Delivered on the hub shows that problem
	f.setProblems(w, deliveryProblems{known: known, spec: w.problems.spec, status: p, agent: w.problems.agent})
}

// remove drops a work that all other parts have forgotten.
func (f *workIndex) remove(w *work) {
	delete(f.works, w.uid)
	delete(w.cl.works, w.uid)
	f.recount(w)
	f.setProblems(w, deliveryProblems{})
}

// addCluster creates a cluster.
func (f *workIndex) addCluster(name string) *cluster {
	cl := &cluster{name: name, selected: f.All, works: map[types.UID]*work{}}
	f.clusters[name] = cl
	return cl
}

// add creates a work of a cluster.
func (f *workIndex) add(uid types.UID, cl *cluster) *work {
	w := &work{uid: uid, cl: cl}
	f.works[uid], cl.works[uid] = w, w
	return w
}

// comparable returns the newest state of a work that can have a tag, otherwise nil.
func (w *work) comparable() *workv1.ManifestWork {
	if w.hub.object == nil || w.hub.ended != alive || w.hub.deleting() || isLarge(w.hub.object) {
		return nil
	}
	return w.hub.object
}

// wait counts one more pending report, or one less.
func (f *workIndex) wait(more bool) { f.pending += sign(more) }

func sign(up bool) int {
	if up {
		return 1
	}
	return -1
}

// agenda plans when a key is checked again.
type agenda struct {
	Config
	// pauses are the ends of the delays that an overloaded broker requested, by cluster. The key "" stands for
	// all clusters.
	pauses map[string]time.Time
}

// retry is the back-off of one action.
type retry struct {
	failures  int
	notBefore time.Time
	// onChange: the last attempt met a newer object. The next one may start as soon as the informer has it.
	onChange bool
	// planned: the next attempt has reserved its time in a budget.
	planned bool
}

// Back-off of the queues. That of the hub queue is short: operators see a work only through its status.
const (
	firstDelay   = 100 * time.Millisecond
	longestSpec  = 30 * time.Second
	longestHub   = 10 * time.Second
	refusedDelay = 5 * time.Minute
)

func (r *retry) reset() { *r = retry{} }

// changed ends a wait that is only for a change.
func (r *retry) changed() {
	if r.onChange {
		r.notBefore = time.Time{}
	}
}

// plan reserves the time of the next attempt, once.
func (r *retry) plan(wait func() time.Time) {
	if !r.planned {
		r.wait(wait(), false)
		r.planned = true
	}
}

// goes ends the reservation: the attempt starts.
func (r *retry) goes() { r.planned = false }

// wait delays the next attempt until a time; with onChange a change ends the wait earlier.
func (r *retry) wait(until time.Time, onChange bool) { r.notBefore, r.onChange = until, onChange }

func (a *agenda) wake(l Queue, k Key, after time.Duration) { a.Waker.Wake(l, k, max(0, after)) }

func (a *agenda) wakeAt(l Queue, k Key, at time.Time) { a.wake(l, k, at.Sub(a.Now())) }

func (a *agenda) wakeCluster(l Queue, cl *cluster) { a.wake(l, Key{Cluster: cl.name}, 0) }

// hurry moves a work before the others of its cluster.
func (a *agenda) hurry(l Queue, w *work) {
	a.Waker.Prioritize(l, w.key())
	a.wake(l, w.key(), 0)
}

func (a *agenda) wakeWork(w *work) {
	a.wake(BrokerQueue, w.key(), 0)
	a.wake(HubQueue, w.key(), 0)
}

// until reports whether a time is in the future. Then it wakes the key at that time.
func (a *agenda) until(l Queue, k Key, at time.Time) bool {
	ahead := at.After(a.Now())
	if ahead {
		a.wakeAt(l, k, at)
	}
	return ahead
}

// due reports whether an action may be tried. If not, its key is woken in time.
func (a *agenda) due(l Queue, k Key, r *retry) bool { return !a.until(l, k, r.notBefore) }

// ready is due for events to the broker, which may have requested a delay.
func (a *agenda) ready(k Key, r *retry) bool {
	return !a.until(BrokerQueue, k, a.pauses[""]) && !a.until(BrokerQueue, k, a.pauses[k.Cluster]) && a.due(BrokerQueue, k, r)
}

// pause delays all events for a cluster; "" stands for all clusters.
func (a *agenda) pause(cluster string, delay time.Duration) {
	now := a.Now()
	maps.DeleteFunc(a.pauses, func(_ string, until time.Time) bool { return !until.After(now) })
	a.pauses[cluster] = now.Add(delay)
	a.wake(BrokerQueue, Key{Cluster: cluster}, delay)
}

// failed plans the next attempt after the back-off, and not earlier than after least.
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

// hubFailed plans the next attempt of a request to the hub. After NotFound the informer is about to show the
// deletion, but it may lag for long.
func (a *agenda) hubFailed(l Queue, k Key, r *retry, err error) {
	var least time.Duration
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		least = time.Duration(s) * time.Second
	}
	a.failed(l, k, r, least)
	r.onChange = apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

// brokerFailed plans the next attempt of a request to the broker if another attempt may help. It returns false
// if not.
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

// needsPerson reports whether an operator has to make space on the broker's disk. The error has Full set, or
// names no delay.
func needsPerson(e transport.Error) bool {
	return e.Code == transport.CodeOverloaded && (e.Full || e.Delay == 0)
}

// transportErrorOf returns the broker's error, or the zero error if the broker did not answer.
func transportErrorOf(err error) (e transport.Error) {
	if reported, ok := errors.AsType[*transport.Error](err); ok {
		e = *reported
	}
	return e
}

// isOpen reports whether the outcome of a request to the broker is unknown: it may have been executed, or may
// still be.
func isOpen(err error) bool {
	code := transport.CodeOf(err)
	unanswered := code == transport.CodeUnavailable || code == transport.CodeDeadline || code == transport.CodeInternal
	return err != nil && unanswered && transport.Retryable(err)
}
