package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// world is a simple hub and broker, with one agent per cluster, around the real core. rapid chooses the steps:
// watch events and reports lag, answers get lost, processes restart.
type world struct {
	t    *rapid.T
	core *Core
	now  time.Time
	run  int // restarts of the hub source

	hub    map[string]*workv1.ManifestWork // by namespace/name
	rv     int
	uids   int
	events []hubEvent // not seen by the informer yet
	hubUp  bool

	records   map[types.UID]*record
	connected bool
	reports   []*Report // not delivered yet
	sequence  int

	selected map[string]bool
	queue    map[Queue]map[Key]time.Time
	inFlight []Effect
	deleted  map[types.UID]bool             // the agent has deleted the work at least once
	complete map[types.UID]metav1.Condition // the condition Complete that the agent reports, if any
	torn     map[types.UID]int              // works removed from the hub without their finalizer, by the run in which the informer sees it
}

// record is the state of a work at the broker and the agent.
type record struct {
	work     *workv1.ManifestWork
	version  int64
	deleting bool
	status   *Report // last accepted
	reported bool    // the agent has reported its present state
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: time.Unix(1e9, 0), hub: map[string]*workv1.ManifestWork{}, rv: 100, hubUp: true,
		records: map[types.UID]*record{}, selected: map[string]bool{"c1": true}, torn: map[types.UID]int{}, deleted: map[types.UID]bool{}, complete: map[types.UID]metav1.Condition{}}
	w.start()
	return w
}

// Prioritize does nothing: the test draws the next key.
func (*world) Prioritize(Queue, Key) {}

func (w *world) Wake(l Queue, k Key, after time.Duration) {
	at := w.now.Add(after)
	if old, has := w.queue[l][k]; !has || at.Before(old) {
		w.queue[l][k] = at
	}
}

// start starts a process: a new core that reads the hub.
func (w *world) start() {
	w.run++
	w.connected, w.events, w.inFlight, w.reports = false, nil, nil, nil
	w.queue = map[Queue]map[Key]time.Time{BrokerQueue: {}, HubQueue: {}}
	w.core = New(Config{Now: func() time.Time { return w.now }, Jitter: func() float64 { return 0.5 }, Waker: w, CleanUp: true, NewID: func() string { return "id" }})
	for _, name := range clusterNames {
		if w.selected[name] {
			w.core.ClusterSelected(w.core.Epoch(), name)
		}
	}
	for _, o := range w.hub {
		w.core.WorkSeen(w.core.Epoch(), o)
	}
}

// The hub.

func (w *world) put(o *workv1.ManifestWork) *workv1.ManifestWork {
	w.rv++
	o.ResourceVersion = fmt.Sprint(w.rv)
	key := o.Namespace + "/" + o.Name
	if o.DeletionTimestamp != nil && len(o.Finalizers) == 0 {
		delete(w.hub, key)
		w.events = append(w.events, hubEvent{o, true})
		return o
	}
	w.hub[key] = o
	w.events = append(w.events, hubEvent{o, false})
	return o
}

func (w *world) create(namespace, name string) {
	if w.hub[namespace+"/"+name] == nil {
		w.uids++
		w.put(&workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprint("u", w.uids)), Generation: 1}})
	}
}

func (w *world) change(key string, f func(*workv1.ManifestWork)) *workv1.ManifestWork {
	o := w.hub[key].DeepCopy()
	f(o)
	w.t.Logf("change %s %s", o.UID, key)
	return w.put(o)
}

// write is a patch of the hub source with its preconditions.
func (w *world) write(e Effect, old *workv1.ManifestWork, f func(*workv1.ManifestWork)) Result {
	key := old.Namespace + "/" + old.Name
	live := w.hub[key]
	switch {
	case !w.hubUp:
		return Result{Err: errHubDown()}
	case live == nil:
		return Result{Err: errNotFound()}
	case live.UID != old.UID || live.ResourceVersion != old.ResourceVersion:
		return Result{Err: errConflict()}
	}
	if _, is := e.(RemoveFinalizer); is {
		if r := w.records[live.UID]; live.DeletionTimestamp == nil || r != nil && !w.deleted[live.UID] {
			w.t.Fatalf("finalizer removed from %s, record %+v", key, r)
		}
	}
	return Result{Work: w.change(key, f)}
}

func (w *world) get(namespace, name string) Result {
	o := w.hub[namespace+"/"+name]
	switch {
	case !w.hubUp:
		return Result{Err: errHubDown()}
	case o == nil:
		return Result{Err: errNotFound()}
	}
	return Result{Work: o}
}

// The broker.

func (w *world) publish(e Publish) Result {
	o := e.Work
	if !hasFinalizer(o) && !e.fingerprint().deleting {
		w.t.Fatalf("published %s without the finalizer", o.Name)
	}
	if live := w.hub[o.Namespace+"/"+o.Name]; e.fingerprint().deleting && live != nil && live.UID == o.UID && live.DeletionTimestamp == nil {
		w.t.Fatalf("published the deletion of %s, which lives", o.Name)
	}
	r := w.records[o.UID]
	switch {
	case r == nil && e.fingerprint().deleting && !w.onCluster(o):
		return Result{Receipt: transport.Receipt{Outcome: codec.OutcomeConfirmed}}
	case r == nil:
		r = &record{}
		w.records[o.UID] = r
	case o.Generation < r.version || r.deleting && !e.fingerprint().deleting:
		return Result{Receipt: transport.Receipt{Outcome: codec.OutcomeStale}}
	}
	if r.work == nil || !fingerprintOf(r.work).equal(e.fingerprint()) || r.deleting != e.fingerprint().deleting {
		r.reported = false
	}
	r.work, r.version, r.deleting = o, o.Generation, e.fingerprint().deleting
	return Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted}}
}

// onCluster reports whether the agent has a work: in this model, each published one.
func (w *world) onCluster(o *workv1.ManifestWork) bool { return len(o.Status.Conditions) > 0 }

func (w *world) release(e Release) Result {
	for uid, r := range w.records {
		if r.work.Namespace == e.Cluster {
			delete(w.records, uid)
		}
	}
	return Result{}
}

// The agents.

func (w *world) agent(uid types.UID) {
	r := w.records[uid]
	if r.reported {
		return
	}
	r.reported = true
	w.sequence++
	p := &Report{UID: uid, Cluster: r.work.Namespace, Name: r.work.Name, Version: r.version, Sequence: sequence(w.sequence), Deleted: r.deleting}
	p.Status = applied(r.version)
	p.Status.Conditions[0].Message = fmt.Sprint(r.work.Labels)
	if c, reports := w.complete[uid]; reports {
		p.Status.Conditions = append(p.Status.Conditions, c)
	}
	p.Hash = hashOf(p.Status)
	if r.status = p; r.deleting {
		// The confirmed tombstone is left out: a deletion that is published again becomes a record again.
		delete(w.records, uid)
		w.deleted[uid] = true
	}
	if w.connected {
		w.reports = append(w.reports, p)
	}
}

func (w *world) connect() {
	w.connected = true
	w.core.Connected(transport.Accepted{Protocol: transport.Protocol})
	for _, k := range w.core.NextInitialSync(1 << 20) {
		w.Wake(BrokerQueue, k, 0)
	}
}

func (w *world) answer(e RequestStatuses) Result {
	if len(e.Statuses) == 0 {
		w.t.Fatalf("a request lists no works")
	}
	for _, h := range e.Statuses {
		if h.Work != nil {
			h.Hash = hashOf(h.Work.Status)
		}
		if r := w.records[h.UID]; r != nil && r.status != nil && r.status.Hash != h.Hash {
			w.reports = append(w.reports, r.status)
		}
	}
	return Result{}
}

func (w *world) disconnect() {
	w.connected, w.reports = false, nil
	w.core.Disconnected()
}

// The hub source's shell.

func (w *world) begin(l Queue, k Key) {
	delete(w.queue[l], k)
	if e := w.core.Next(l, k); e != nil {
		w.t.Logf("begin %T %+v", e, k)
		w.inFlight = append(w.inFlight, e)
	}
}

// finish executes the i-th effect. lost: the effect is executed, but the answer is lost.
func (w *world) finish(i int, lost bool) {
	e := w.inFlight[i]
	w.inFlight = slices.Delete(w.inFlight, i, i+1)
	var r Result
	gone := &transport.Error{Code: transport.CodeUnavailable}
	switch e := e.(type) {
	case Publish:
		if r.Err = gone; w.connected {
			r = w.publish(e)
		}
	case Release:
		if r.Err = gone; w.connected {
			r = w.release(e)
		}
	case RequestStatuses:
		if r.Err = gone; w.connected {
			r = w.answer(e)
		}
	case AddFinalizer:
		r = w.write(e, e.Work, func(o *workv1.ManifestWork) { o.Finalizers = append(o.Finalizers, workv1.ManifestWorkFinalizer) })
	case RemoveFinalizer:
		r = w.write(e, e.Work, func(o *workv1.ManifestWork) { o.Finalizers = nil })
	case PatchStatus:
		r = w.write(e, e.Work, func(o *workv1.ManifestWork) { o.Status = e.Status })
	case DeleteCompleted:
		r = w.write(e, e.Work, w.expire)
	case Get:
		r = w.get(e.Namespace, e.Name)
	case List:
		r = w.present(e.Namespace)
	case ReadHubPosition:
		r.Position = &codec.HubPosition{UID: "hub", ResourceVersion: fmt.Sprint(w.rv)}
	case RequestInventory: // this broker has no inventory
		if r.Err = gone; w.connected {
			r.Err = &transport.Error{Code: transport.CodeInvalid, Next: transport.NextStop}
		}
	case EndSubscription:
		w.restarted()
	case BeginHubEpoch:
		w.t.Fatalf("a hub that was never restored went back: %s", e.Reason)
	}
	if lost && r.Err == nil {
		r = Result{Err: gone}
		switch e.(type) {
		case Publish, Release, RequestStatuses:
		default:
			r.Err = errHubDown()
		}
	}
	w.t.Logf("finish %T: %q %v, lost %v", e, r.Receipt.Outcome, r.Err, lost)
	l, k := slotOf(w.core, e)
	w.core.Done(l, k, r)
	w.Wake(l, k, 0)
	for _, k := range w.core.NextInitialSync(1 << 20) {
		w.Wake(BrokerQueue, k, 0)
	}
}

// toBroker reports whether an effect is for the broker.
func toBroker(e Effect) bool {
	_, is := e.(ForBroker)
	_, ends := e.(EndSubscription)
	return is || ends
}

// restarted ends the subscription and begins another. The broker accepts no publish of the previous one any
// more.
func (w *world) restarted() {
	w.disconnect()
	for _, e := range slices.Clone(w.inFlight) {
		if l, k := slotOf(w.core, e); toBroker(e) {
			w.inFlight = slices.DeleteFunc(w.inFlight, func(o Effect) bool { ol, ok := slotOf(w.core, o); return ol == l && ok == k })
			w.core.Done(l, k, Result{Err: &transport.Error{Code: transport.CodeUnavailable}})
			w.Wake(l, k, 0)
		}
	}
	w.connect()
}

func (w *world) present(namespace string) Result {
	if !w.hubUp {
		return Result{Err: errHubDown()}
	}
	present := Present{}
	for _, o := range w.hub {
		if o.Namespace == namespace {
			present[o.UID] = o.ResourceVersion
		}
	}
	return Result{Present: present}
}

func (w *world) watch() {
	e := w.events[0]
	w.events = w.events[1:]
	w.t.Logf("watch %s %s gone %v", e.o.UID, e.o.Name, e.gone)
	if !e.gone {
		w.core.WorkSeen(w.core.Epoch(), e.o)
		return
	}
	w.core.WorkDeleted(w.core.Epoch(), e.o.UID)
}

func (w *world) deliver() {
	p := w.reports[0]
	w.reports = w.reports[1:]
	w.core.Report(p)
}

// dueKeys are the keys that a worker could take now, in a stable order.
func (w *world) dueKeys() []wakeup {
	var due []wakeup
	for l, keys := range w.queue {
		for k, at := range keys {
			if !at.After(w.now) {
				due = append(due, wakeup{queue: l, key: k})
			}
		}
	}
	slices.SortFunc(due, func(a, b wakeup) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return due
}

// settle executes steps until none is left.
func (w *world) settle() {
	w.hubUp = true
	if !w.connected {
		w.connect()
	}
	for step := 0; ; step++ {
		if step > 20000 {
			w.t.Fatalf("does not settle: %d effects in flight, queue %v", len(w.inFlight), w.queue)
		}
		due := w.dueKeys()
		switch {
		case len(w.inFlight) > 0:
			w.finish(0, false)
		case len(w.events) > 0:
			w.watch()
		case len(w.reports) > 0:
			w.deliver()
		case len(due) > 0:
			w.begin(due[0].queue, due[0].key)
		case w.agentsBusy():
		case !w.skip():
			return
		}
	}
}

func (w *world) agentsBusy() bool {
	for uid, r := range w.records {
		if !r.reported {
			w.agent(uid)
			return true
		}
	}
	return false
}

// skip moves the clock to the next wake-up.
func (w *world) skip() bool {
	var first time.Time
	for _, keys := range w.queue {
		for _, at := range keys {
			if first.IsZero() || at.Before(first) {
				first = at
			}
		}
	}
	if first.IsZero() {
		return false
	}
	w.now = first
	return true
}

// check compares the settled states.
func (w *world) check() {
	for key, o := range w.hub {
		r := w.records[o.UID]
		switch {
		case !w.selected[o.Namespace]:
			if r != nil {
				w.t.Fatalf("%s of a released cluster still has a record", key)
			}
		case outlived(o):
			w.t.Fatalf("%s has had its time: %+v %+v", key, o.Spec.DeleteOption, o.Status.Conditions)
		case o.DeletionTimestamp != nil:
			w.t.Fatalf("%s is still being deleted: %+v, record %+v", key, o.ObjectMeta, r)
		case r == nil || !fingerprintOf(r.work).equal(fingerprintOf(o)):
			w.t.Fatalf("%s: the broker has %+v, the hub %+v", key, r, o.ObjectMeta)
		case hashOf(o.Status) != r.status.Hash || fault(o.Status) != nil:
			w.t.Fatalf("%s: the hub has %+v, the agent reported %+v", key, o.Status, r.status.Status)
		}
	}
	for uid, r := range w.records {
		if o := w.hub[r.work.Namespace+"/"+r.work.Name]; o == nil || o.UID != uid {
			if run, torn := w.torn[uid]; torn && run != w.run {
				continue // only a comparison of inventories shows this
			}
			w.t.Fatalf("record of %s, which is not on the hub: %+v", r.work.Name, r)
		}
	}
	if n := w.core.Stats().Census; n != countsOf(w.core) {
		w.t.Fatalf("counted %v, there are %v", n, countsOf(w.core))
	}
	if s := w.core.Stats(); s.Pending != 0 || s.Works != len(w.hub) || len(s.Undelivered) != 0 {
		w.t.Fatalf("core keeps %+v for %d works", s, len(w.hub))
	}
}

// step executes one random step.
func (w *world) step() {
	t := w.t
	keys := make([]string, 0, len(w.hub))
	for k := range w.hub {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	uids := make([]types.UID, 0, len(w.records))
	for uid := range w.records {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	due := w.dueKeys()
	pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "which") }
	type action struct {
		name string
		can  bool
		do   func()
	}
	actions := []action{
		{"create", len(w.hub) < 4, func() {
			w.create(rapid.SampledFrom(clusterNames).Draw(t, "cluster"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"))
		}},
		{"update", len(keys) > 0, func() { w.change(keys[pick(len(keys))], func(o *workv1.ManifestWork) { o.Generation++ }) }},
		{"label", len(keys) > 0, func() {
			w.change(keys[pick(len(keys))], func(o *workv1.ManifestWork) { o.Labels = map[string]string{"l": fmt.Sprint(w.rv)} })
		}},
		{"time to live", len(keys) > 0, func() { w.setTTL(keys[pick(len(keys))]) }},
		{"complete", len(uids) > 0, func() { w.toggleComplete(uids[pick(len(uids))]) }},
		{"delete", len(keys) > 0, func() {
			if k := keys[pick(len(keys))]; w.hub[k].DeletionTimestamp == nil {
				w.change(k, func(o *workv1.ManifestWork) { o.Generation++; deleting(o) })
			}
		}},
		{"tear", len(keys) > 0, func() {
			k := keys[pick(len(keys))]
			w.torn[w.hub[k].UID] = w.run
			w.change(k, func(o *workv1.ManifestWork) { o.Finalizers = nil; deleting(o) })
		}},
		{"watch", len(w.events) > 0, w.watch},
		{"watch", len(w.events) > 0, w.watch},
		{"begin", len(due) > 0, func() { d := due[pick(len(due))]; w.begin(d.queue, d.key) }},
		{"begin", len(due) > 0, func() { d := due[pick(len(due))]; w.begin(d.queue, d.key) }},
		{"finish", len(w.inFlight) > 0, func() { w.finish(pick(len(w.inFlight)), false) }},
		{"finish", len(w.inFlight) > 0, func() { w.finish(pick(len(w.inFlight)), false) }},
		{"lose", len(w.inFlight) > 0, func() { w.finish(pick(len(w.inFlight)), true) }},
		{"agent", len(uids) > 0, func() { w.agent(uids[pick(len(uids))]) }},
		{"deliver", len(w.reports) > 0, w.deliver},
		{"connect", !w.connected, w.connect},
		{"disconnect", w.connected, w.disconnect},
		{"hub", true, func() { w.hubUp = !w.hubUp }},
		{"wait", true, func() { w.now = w.now.Add(time.Second) }},
		{"restart", true, w.start},
		{"select", true, func() {
			name := rapid.SampledFrom(clusterNames).Draw(t, "cluster")
			t.Logf("select %s: %v", name, !w.selected[name])
			if w.selected[name] = !w.selected[name]; w.selected[name] {
				w.core.ClusterSelected(w.core.Epoch(), name)
			} else {
				w.core.ClusterUnselected(w.core.Epoch(), name)
			}
		}},
	}
	actions = slices.DeleteFunc(actions, func(a action) bool { return !a.can })
	a := actions[rapid.IntRange(0, len(actions)-1).Draw(t, "action")]
	t.Log(a.name)
	a.do()
}

func TestCore_ConvergesAfterAnyEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.create("c1", "a")
		w.create("c2", "b")
		if rapid.Bool().Draw(t, "settled") {
			w.settle()
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			w.step()
		}
		w.settle()
		w.check()
		w.start() // a new process has nothing to repair
		w.settle()
		w.check()
	})
}
