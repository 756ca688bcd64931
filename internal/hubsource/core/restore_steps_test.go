package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// The shell of the realm's core.

func (r *realm) begin(l Queue, k Key) {
	delete(r.queue[l], k)
	if e := r.core.Next(l, k); e != nil {
		r.t.Logf("begin %s %+v: %T", l, k, e)
		r.inFlight = append(r.inFlight, e)
		return
	}
	if l == BrokerQueue {
		for _, k := range r.core.NextInitialSync(1 << 20) {
			r.Wake(BrokerQueue, k, 0)
		}
	}
}

// finish executes the i-th effect. lost: the effect is executed, but the answer is lost.
func (r *realm) finish(i int, lost bool) {
	e := r.inFlight[i]
	r.inFlight = slices.Delete(r.inFlight, i, i+1)
	result, broker := r.perform(e)
	if lost && result.Err == nil {
		if result = (Result{Err: errHubDown(), Sent: result.Sent}); broker {
			result.Err = errGone
		}
	}
	r.t.Logf("finish %T: %q %v, lost %v", e, result.Receipt.Outcome, result.Err, lost)
	l, k := slotOf(r.core, e)
	r.core.Done(l, k, result)
	r.Wake(l, k, 0)
	for _, k := range r.core.NextInitialSync(1 << 20) {
		r.Wake(BrokerQueue, k, 0)
	}
}

// beginEpoch shows the works of the hub to the core in its present epoch.
func (r *realm) beginEpoch() {
	r.disconnect()
	r.events, r.epoch, r.shown = nil, r.core.Epoch(), 0
	for _, key := range slices.Sorted(maps.Keys(r.hub.works)) {
		r.show(r.hub.works[key])
	}
}

// perform executes an effect; broker: it is one for the broker.
func (r *realm) perform(e Effect) (result Result, broker bool) {
	switch e := e.(type) {
	case AddFinalizer:
		return r.write(e.Work, func(o *workv1.ManifestWork) { o.Finalizers = []string{workv1.ManifestWorkFinalizer} }), false
	case RemoveFinalizer:
		return r.write(e.Work, func(o *workv1.ManifestWork) { o.Finalizers = nil }), false
	case PatchStatus:
		r.checkStatus(e)
		return r.write(e.Work, func(o *workv1.ManifestWork) { o.Status = e.Status }), false
	case Get:
		return r.get(e.Namespace, e.Name), false
	case List:
		return r.present(e.Namespace), false
	case BeginHubEpoch:
		r.beginEpoch()
		return Result{}, false
	case EndSubscription:
		r.disconnect()
		return Result{}, true
	case Tag:
		return Result{Tags: e.Tags()}, false
	case ReadHubPosition, Save:
		if !r.hubUp {
			return Result{Err: errHubDown()}, false
		}
		if s, is := e.(Save); is {
			r.hub.state = s.State
		} else {
			r.suspicious = r.suspicious || r.unnoticed > 0 && r.hub.rv >= r.unnoticed
			r.unnoticed = 0
		}
		return Result{Position: &codec.HubPosition{UID: "hub", ResourceVersion: fmt.Sprint(r.hub.rv)}}, false
	}
	if r.stream == nil {
		return Result{Err: errGone}, true
	}
	return r.request(e), true
}

// request returns the broker's answer to an effect.
func (r *realm) request(e Effect) Result {
	accepted := Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted}}
	switch e := e.(type) {
	case Publish:
		return r.publish(eventOf(e, r.id, r.now))
	case Delete:
		return r.publish(eventOf(e, r.id, r.now))
	case RequestStatuses:
		events, err := e.Events(r.id, r.now, "hub")
		if err != nil {
			r.t.Fatal(err)
		}
		r.stream.lists = append(r.stream.lists, events...)
		accepted.Sent = len(events)
	case RequestInventory:
		event, err := eventOf(e, r.id, r.now)
		if err != nil {
			r.t.Fatal(err)
		}
		r.stream.pages = append(r.stream.pages, event)
	case SendSyncReport:
		r.syncReport(e.Report)
	case SendAck:
		if r.store.ValidCursor(e.Cursor) {
			r.confirmUpTo(e.Cursor.Revision)
		} else {
			r.t.Fatalf("acknowledged %s, which is no cursor of this store", e.Cursor)
		}
	}
	return accepted
}

// syncReport applies a sync report of the source.
func (r *realm) syncReport(c codec.SyncReport) {
	r.t.Logf("  compared %+v", c)
	if c.Position != nil {
		if err := store.WriteBookmarks(context.Background(), r.store, map[string][]byte{"hub": []byte(c.Position.ResourceVersion)}); err != nil {
			r.t.Fatal(err)
		}
	}
	if c.AllClusters {
		clear(r.withheld)
	}
	for _, o := range c.Clusters {
		if r.withheld[o.Cluster] = o.Withheld; len(o.Withheld) == 0 {
			delete(r.withheld, o.Cluster)
		}
	}
}

// checkStatus fails if an older status of a work replaces a newer one.
func (r *realm) checkStatus(e PatchStatus) {
	live := r.hub.works[e.Work.Namespace+"/"+e.Work.Name]
	if live == nil || live.ResourceVersion != e.Work.ResourceVersion || len(live.Status.Conditions) == 0 || len(e.Status.Conditions) == 0 {
		return
	}
	var before, after int64
	_, _ = fmt.Sscan(live.Status.Conditions[0].Message, &before)
	_, _ = fmt.Sscan(e.Status.Conditions[0].Message, &after)
	if after < before && !r.storeReplaced {
		r.t.Fatalf("%s shows %s and is given the older %s", live.UID, live.Status.Conditions[0].Message, e.Status.Conditions[0].Message)
	}
}

func (r *realm) watch() {
	e := r.events[0]
	r.events = r.events[1:]
	if e.gone {
		r.core.WorkDeleted(r.epoch, e.o.UID)
	} else {
		r.show(e.o)
	}
}

func (r *realm) due() []wakeup {
	var due []wakeup
	for l, keys := range r.queue {
		for k, at := range keys {
			if !at.After(r.now) && !r.underWay(l, k) {
				due = append(due, wakeup{queue: l, key: k})
			}
		}
	}
	slices.SortFunc(due, func(a, b wakeup) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return due
}

func (r *realm) underWay(l Queue, k Key) bool {
	return slices.ContainsFunc(r.inFlight, func(e Effect) bool { el, ek := slotOf(r.core, e); return el == l && ek == k })
}

// streamSteps are the possible next steps of the broker's stream.
func (r *realm) streamSteps() map[string]func() {
	steps := map[string]func(){}
	s := r.stream
	if s == nil {
		return steps
	}
	if s.routed < r.store.Head().Revision {
		steps["route"] = r.route
	}
	if len(s.lists) > 0 {
		steps["list"] = r.compareList
	}
	if !s.established && len(s.lists) == 0 && !r.now.Before(s.grace) {
		steps["silence"] = r.muteAgents
	}
	if len(s.pages) > 0 {
		steps["page"] = r.answerPage
	}
	if len(s.sent) > 0 {
		steps["send"] = r.send
	}
	if r.mayCheckpoint() {
		steps["checkpoint"] = r.checkpoint
	}
	if len(s.inbox) > 0 {
		steps["deliver"] = r.deliver
	}
	return steps
}

// settle executes steps until none is left.
func (r *realm) settle() {
	r.hubUp = true
	for step := 0; ; step++ {
		if step > 20000 {
			r.t.Fatalf("does not settle: in flight %v, queue %v", r.inFlight, r.queue)
		}
		due, steps := r.due(), r.streamSteps()
		switch {
		case r.stream == nil:
			r.connect()
		case len(r.inFlight) > 0:
			r.finish(0, false)
		case len(r.events) > 0:
			r.watch()
		case len(steps) > 0:
			steps[slices.Min(slices.Collect(maps.Keys(steps)))]()
		case len(due) > 0:
			r.begin(due[0].queue, due[0].key)
		case len(r.agentsBehind()) > 0:
			r.agent(r.agentsBehind()[0])
		case !r.skip():
			return
		}
	}
}

// skip moves the clock to the next wake-up.
func (r *realm) skip() bool {
	var first time.Time
	for _, keys := range r.queue {
		for _, at := range keys {
			if first.IsZero() || at.Before(first) {
				first = at
			}
		}
	}
	if first.IsZero() && !r.stream.established {
		first = r.stream.grace
	}
	if first.IsZero() {
		return false
	}
	r.now = first
	return true
}

// check compares the settled states.
func (r *realm) check() {
	t := r.t
	for key, o := range r.hub.works {
		rec, err := r.store.Get(context.Background(), store.Key{DataType: manifestBundles, Cluster: o.Namespace, ResourceID: string(o.UID)})
		tag, tagErr := manifestwork.SpecTag(o)
		switch {
		case o.DeletionTimestamp != nil && slices.ContainsFunc(r.withheld[o.Namespace], func(w codec.WithheldDeletion) bool { return w.Name == o.Name }):
			// The work waits until an operator has decided about the work that has its name.
		case err != nil || tagErr != nil:
			t.Fatalf("%s %s: %v, %v", key, o.UID, err, tagErr)
		case o.DeletionTimestamp != nil:
			t.Fatalf("%s is still being deleted, record %+v", key, rec.Meta)
		case rec.State != store.Live || rec.Tag != tag:
			t.Fatalf("%s: the broker has %+v, the hub %+v", key, rec.Meta, o.ObjectMeta)
		case hashOf(o.Status) != rec.StatusHash || fault(o.Status) != nil:
			t.Fatalf("%s: the hub shows %+v, the broker has v%d %s", key, o.Status.Conditions, rec.StatusVersion, rec.Sequence)
		}
	}
	r.scan("", func(m store.Meta) {
		o := r.hub.works[m.Cluster+"/"+m.Name]
		listed := slices.ContainsFunc(r.withheld[m.Cluster], func(w codec.WithheldDeletion) bool {
			return w.ResourceID == m.ResourceID && w.Revision == m.SpecRevision
		})
		switch {
		case o != nil && string(o.UID) == m.ResourceID:
		case m.State == store.Live && !listed:
			t.Fatalf("record of %s/%s %s, which is not on the hub, nor withheld", m.Cluster, m.Name, m.ResourceID)
		case m.State == store.Live && !r.restored:
			t.Fatalf("the deletion of %s is withheld, without a reason", m.ResourceID)
		case m.State == store.Tombstone:
			t.Fatalf("tombstone of %s", m.ResourceID)
		}
	})
	s := r.core.Stats()
	if s.Pending != 0 || s.Works != len(r.hub.works) || len(s.Undelivered) != 0 || (s.Comparing != 0) != (len(r.withheld) > 0) {
		t.Fatalf("core keeps %+v for %d works", s, len(r.hub.works))
	}
	if s.Census != countsOf(r.core) {
		t.Fatalf("counted %v, there are %v", s.Census, countsOf(r.core))
	}
	state, unsaved := r.core.State()
	if unsaved || (len(state.Withheld) > 0) != (len(r.withheld) > 0) {
		t.Fatalf("state %+v is saved: %v, withheld are %v", state, !unsaved, r.withheld)
	}
	// A process that detects a rollback loses the cursor until a status comes.
	if cursor := r.core.cursor.reached; r.stream.established && cursor.Revision != r.stream.reported && !(r.restored && cursor == (codec.Cursor{})) {
		t.Fatalf("cursor is %s, the last checkpoint was at %d", cursor, r.stream.reported)
	}
}

// step executes one random step.
func (r *realm) step() {
	t := r.t
	keys := slices.Sorted(maps.Keys(r.hub.works))
	due, behind := r.due(), r.agentsBehind()
	pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "which") }
	type action struct {
		name string
		can  bool
		do   func()
	}
	actions := []action{
		{"create", len(keys) < 4, func() {
			r.create(rapid.SampledFrom(clusterNames).Draw(t, "cluster"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"))
		}},
		{"update", len(keys) > 0, func() { r.change(keys[pick(len(keys))], func(o *workv1.ManifestWork) { o.Generation++ }) }},
		{"label", len(keys) > 0, func() {
			r.change(keys[pick(len(keys))], func(o *workv1.ManifestWork) { o.Labels = map[string]string{"l": fmt.Sprint(r.hub.rv)} })
		}},
		{"delete", len(keys) > 0, func() {
			if k := keys[pick(len(keys))]; r.hub.works[k].DeletionTimestamp == nil {
				r.change(k, func(o *workv1.ManifestWork) { o.Generation++; deleting(o) })
			}
		}},
		{"tear", len(keys) > 0, func() {
			r.change(keys[pick(len(keys))], func(o *workv1.ManifestWork) { o.Finalizers = nil; deleting(o) })
		}},
		{"back up", len(r.backups) < 3, func() { r.backups = append(r.backups, r.hub.clone()) }},
		{"restore", len(r.backups) > 0, func() {
			b := r.backups[pick(len(r.backups))]
			r.restored = true
			r.restore(b, rapid.IntRange(0, 3).Draw(t, "bump") == 0, rapid.Bool().Draw(t, "running"))
		}},
		{"copy", len(r.copies) < 2, func() { r.copies = append(r.copies, r.store.Backup()) }},
		{"lose store", rapid.IntRange(0, 9).Draw(t, "rarely") == 0, func() {
			var b *mem.Backup
			if len(r.copies) > 0 && rapid.Bool().Draw(t, "copy") {
				b = r.copies[pick(len(r.copies))]
			}
			r.replaceStore(b)
		}},
		{"agent", len(behind) > 0, func() { r.agent(behind[pick(len(behind))]) }},
		{"connect", r.stream == nil, r.connect},
		{"disconnect", r.stream != nil, r.disconnect},
		{"hub", true, func() { r.hubUp = !r.hubUp }},
		{"wait", true, func() { r.now = r.now.Add(time.Second) }},
		{"wait long", true, func() { r.now = r.now.Add(time.Minute) }},
		{"restart", true, r.start},
		{"approve", len(r.withheld) > 0, func() { r.approve() }},
		{"lose", len(r.inFlight) > 0, func() { r.finish(pick(len(r.inFlight)), true) }},
		{"settle", rapid.IntRange(0, 19).Draw(t, "settles") == 0, r.settle},
	}
	for range 3 { // steps that make progress are more likely
		actions = append(actions,
			action{"watch", len(r.events) > 0, r.watch},
			action{"begin", len(due) > 0, func() { d := due[pick(len(due))]; r.begin(d.queue, d.key) }},
			action{"finish", len(r.inFlight) > 0, func() { r.finish(pick(len(r.inFlight)), false) }},
		)
	}
	steps := r.streamSteps()
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		actions = append(actions, action{name, true, steps[name]})
	}
	actions = slices.DeleteFunc(actions, func(a action) bool { return !a.can })
	a := actions[rapid.IntRange(0, len(actions)-1).Draw(t, "action")]
	t.Log(a.name)
	a.do()
}

func TestCore_ConvergesAfterAnyRestore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRealm(t)
		r.create("c1", "a")
		r.create("c2", "b")
		if rapid.Bool().Draw(t, "settled") {
			r.settle()
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			r.step()
		}
		r.settle()
		r.check()
		before := r.written
		r.start() // a new process has nothing to repair
		r.settle()
		r.check()
		if r.written != before {
			t.Fatalf("a new process changed %d records", r.written-before)
		}
		for r.approve() {
			r.settle()
		}
		r.check()
		if len(r.withheld) > 0 {
			t.Fatalf("still withheld: %v", r.withheld)
		}
	})
}
func hashOf(s workv1.ManifestWorkStatus) string {
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), isDelivered)
	h, err := manifestwork.StatusHash(s)
	if err != nil {
		panic(err)
	}
	return h
}

// Prioritize does nothing: the test draws the next key.
func (*realm) Prioritize(Queue, Key) {}
