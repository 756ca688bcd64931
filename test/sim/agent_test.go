package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/agent/outbox"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

var hubHash = appliedwork.HubHash("hub.example.com:8090")

// agentNode is a Hawser agent: the real core in a shell without goroutines, on
// a cluster in memory.
type agentNode struct {
	w       *world
	name    string // of the cluster
	title   string // the cluster and its number, for messages
	uid     string
	cluster *clustertest.Fake
	core    *agent.Core
	watch   *watches
	link    *link
	will    []byte // a broker has it, perhaps from a previous session

	// dir is its state directory, nil if it is switched off; old is a copy of it.
	dir, old *stateDir

	process  int // counts restarts
	saveAt   time.Time
	aliveAt  time.Time // when it sends its next keepalive; zero: never
	due      map[string]time.Time
	failures map[string]int
	sends    map[string]time.Time

	clock  time.Duration
	latest time.Duration // the latest value of the clock
	down   bool          // the cluster's API does not answer
	budget int           // requests until it no longer answers, -1 is without end
}

// newAgent returns the agent of the n-th cluster of a name.
func newAgent(w *world, name string, n int) *agentNode {
	a := &agentNode{w: w, name: name, title: name, uid: "uid-of-" + name, cluster: w.newCluster(name), budget: -1}
	if n > 0 {
		a.title, a.uid = fmt.Sprintf("%s (%d)", name, n), fmt.Sprintf("%s-%d", a.uid, n)
	}
	a.link = newLink(w, identity.Identity{Role: identity.Agent, Name: name}, agentHandler{a})
	a.link.name += a.title[len(name):]
	a.link.uid, a.link.truth = a.uid, w.oracle.clusters[name]
	a.cluster.Refuse = func(clustertest.Call) error {
		if a.budget > 0 {
			a.budget--
		}
		if a.down || a.budget == 0 {
			return apierrors.NewServiceUnavailable("the cluster is down")
		}
		return nil
	}
	note := a.cluster.Changed
	a.cluster.Changed = func(ref kubeclient.Ref, o *unstructured.Unstructured) {
		note(ref, o)
		a.watch.changed(ref, o)
	}
	return a
}

// start starts a new process that loads its state directory.
func (a *agentNode) start() {
	a.process++
	a.link.spoke, a.link.latest, a.link.positions = "", "", nil
	process := a.process
	a.due, a.failures, a.sends = map[string]time.Time{}, map[string]int{}, map[string]time.Time{}
	a.watch = &watches{objects: map[kubeclient.Ref]*watched{}, owners: map[string]map[kubeclient.Ref]drift.Signature{}, wake: func(key string) {
		a.wake(key, a.core.Drifted(key))
	}, core: func() *agent.Core { return a.core }}
	a.saveAt = time.Time{}
	if a.w.stateless != nil {
		a.aliveAt = time.Now().Add(time.Minute)
	}
	config := agent.CoreConfig{
		Cluster: a.name, ClientID: a.name + "-agent", HubHash: hubHash, AgentID: hubHash, StatusSyncInterval: 10 * time.Second, EvictionGracePeriod: evictionGrace,
		Client: a.cluster, Tracker: a.watch,
		Wait: func(context.Context, time.Duration) error { return nil }, Now: a.now, Random: a.w.jitter(a.title), NewID: a.w.newID,
		Wake: func(key string, fresh bool) {
			if process == a.process {
				if fresh {
					delete(a.failures, key)
				}
				a.wake(key, 0)
			}
		},
		Later: func(key string, after time.Duration) {
			if process == a.process {
				a.wake(key, after)
			}
		},
		Send: func(id string) {
			if process == a.process {
				a.sends[id] = time.Now()
			}
		},
		Sync: func(after time.Duration) {
			if process != a.process {
				return
			}
			item := syncItem
			if after > 0 {
				item = syncLater
			}
			if at, has := a.sends[item]; !has || time.Now().Add(after).Before(at) {
				a.sends[item] = time.Now().Add(after)
			}
		},
		Save: func(after time.Duration) {
			if at := time.Now().Add(after); process == a.process && (a.saveAt.IsZero() || at.Before(a.saveAt)) {
				a.saveAt = at
			}
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if a.dir != nil {
		config.Journal = a.dir
	}
	a.core = agent.NewCore(config)
	if err := a.core.Start(a.uid); err != nil {
		a.w.fail("I1", "the agent does not start: %v", err)
	}
	// The state directory may be of no use to this cluster.
	a.keepTime()
	for _, ref := range a.cluster.Refs() { // the standing watch of AppliedManifestWorks lists them
		if ref.Resource == appliedwork.Resource.Resource && a.core.Discovered(a.cluster.Look(ref)) {
			a.wake(ref.Name, 0)
		}
	}
}

// now is the clock of the agent's machine. It is set only between processes: within a process, Go's timers
// ignore clock changes.
func (a *agentNode) now() time.Time { return time.Now().Add(a.clock) }

func (a *agentNode) restart() {
	a.process++
	if a.link.conn != nil {
		a.link.drop(unavailable("the process ended"))
	}
	a.w.oracle.processEnded(a)
	a.w.pass(startTime)
	a.start()
}

func (a *agentNode) wake(key string, after time.Duration) {
	at := time.Now().Add(after)
	if old, has := a.due[key]; !has || at.Before(old) {
		a.due[key] = at
	}
}

// agentHandler is the handler of the agent's session.
type agentHandler struct{ *agentNode }

func (p agentHandler) Hello() transport.Hello { return p.core.Hello() }

func (p agentHandler) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	return p.core.Subscribed(a)
}

func (p agentHandler) Handle(ctx context.Context, e codec.Event) error {
	p.core.Handle(ctx, e)
	return nil
}

func (p agentHandler) Disconnected(err error) { p.core.Disconnected(err) }

func (a *agentNode) steps(list []step) []step {
	if len(a.watch.queue) > 0 {
		list = append(list, step{a.title, "watch", "", a.watch.take})
	}
	now := time.Now()
	if !a.saveAt.IsZero() && !a.saveAt.After(now) {
		list = append(list, step{a.title, "saves", "", a.save})
	}
	if !a.aliveAt.IsZero() && !a.aliveAt.After(now) {
		list = append(list, step{a.title, "is alive", "", func() { a.aliveAt = now.Add(a.core.KeepAlive()) }})
	}
	for _, key := range due(a.due, now) {
		list = append(list, step{a.title, "reconcile", short(key), func() { a.reconcile(key) }})
	}
	for _, id := range due(a.sends, now) {
		list = append(list, step{a.title, "report", id, func() { a.report(id) }})
	}
	return list
}

func short(key string) string { return key[len(hubHash)+1:] }

// next returns when the next action is due.
func (a *agentNode) next() (first time.Time) {
	if first = a.saveAt; first.IsZero() || !a.aliveAt.IsZero() && a.aliveAt.Before(first) {
		first = a.aliveAt
	}
	for _, m := range []map[string]time.Time{a.due, a.sends} {
		for _, at := range m {
			if first.IsZero() || at.Before(first) {
				first = at
			}
		}
	}
	return first
}

func (a *agentNode) reconcile(key string) {
	delete(a.due, key)
	next, err := a.core.Reconcile(context.Background(), key)
	switch {
	case err != nil:
		a.w.note("  %v", err)
		a.failures[key]++
		a.wake(key, 5*time.Millisecond<<min(a.failures[key], 16))
	case next > 0:
		delete(a.failures, key)
		a.wake(key, next)
	}
	if a.budget == 0 { // it crashed in the middle
		a.budget = -1
		a.restart()
	}
}

func (a *agentNode) save() {
	a.saveAt = time.Time{}
	if next := a.core.Save(context.Background()); next > 0 {
		a.saveAt = time.Now().Add(next)
	}
}

// keepTime corrects a clock that was set back, or that is behind the sequence ids that an earlier process
// reserved. It does so when the broker has lost its store: without the store and the state directory, no
// component knows the last sequence id.
func (a *agentNode) keepTime() {
	a.latest = max(a.latest, a.clock)
	if !a.w.oracle.forgot {
		return
	}
	for a.clock = a.latest; a.behind(); a.clock += time.Minute {
	}
	a.latest = a.clock
}

// behind reports whether both the clock and the state directory are behind the used sequence ids.
func (a *agentNode) behind() bool {
	highest := a.w.oracle.sequences[a.name]
	if above(highest, (&codec.Sequencer{}).Next(a.now().UnixMilli())) {
		return false
	}
	return a.dir == nil || above(a.dir.stable.reserved, highest)
}

// restartAs ends the process in one of several ways, and starts another.
func (a *agentNode) restartAs(b uint32) string {
	before := a.clock
	a.clock = otherClock(a.clock, b/8)
	a.keepTime()
	if a.clock < before {
		// No receiver could order the events from before and after the clock change. So none of the earlier ones may
		// still be in flight.
		a.w.forgetAll(a.link)
	}
	how := "the process ends"
	switch {
	case a.dir == nil || b%8 < 3:
	case b%8 == 3:
		how = "the process is stopped"
		a.core.Stop(context.Background())
	case b%8 == 4:
		how = "the state directory is lost"
		a.dir = newStateDir()
	case b%8 == 5 && a.old != nil:
		how = "the state directory is restored"
		a.dir = a.old.backup()
	default:
		how = "the power fails"
		a.dir.powerLoss(a.w.rng)
	}
	a.restart()
	return how
}

// syncItem is the key for events about the subscription, beside the ids of works. syncLater is the key for
// delayed ones.
const (
	syncItem  = ""
	syncLater = "later"
)

func (a *agentNode) report(id string) {
	delete(a.sends, id)
	if id == syncItem || id == syncLater {
		a.sync()
		return
	}
	letter, ok := a.core.NextReport(id)
	if !ok {
		return
	}
	process := a.process
	a.w.send(a.link, letter.Event, "status "+id, func(r transport.Receipt, err error) {
		if process == a.process {
			a.reported(letter, r, err)
		}
	})
}

// sync publishes an ack or a list.
func (a *agentNode) sync() {
	letter, ok := a.core.NextSync()
	if !ok {
		return
	}
	process := a.process
	a.w.send(a.link, letter.Event, "sync", func(_ transport.Receipt, err error) {
		if process == a.process && a.core.SyncDone(letter, err) {
			a.sends[syncItem] = time.Now().Add(time.Second)
		}
	})
}

func (a *agentNode) reported(letter outbox.OutgoingStatus, receipt transport.Receipt, err error) {
	if err != nil {
		a.w.note("  %v", err)
	}
	again := a.core.ReportDone(letter, receipt, err)
	var refused *transport.Error
	if errors.As(err, &refused) && !transport.Retryable(err) {
		a.w.fail("I4", "a status of %s was refused: %v", letter.Work.ResourceID, err)
	}
	if again {
		wait := time.Duration(0)
		if err != nil {
			wait = time.Second
		}
		a.sends[letter.Work.ResourceID] = time.Now().Add(wait)
	}
}

// watches is the agent's Tracker. It reports changes on the cluster later, in order. As in the real one, an
// untracked object is unknown, and a tracked object is unknown until its next change.
type watches struct {
	objects map[kubeclient.Ref]*watched
	owners  map[string]map[kubeclient.Ref]drift.Signature
	own     drift.OwnWrites
	queue   []sighting
	wake    func(key string)
	core    func() *agent.Core
}

type watched struct {
	seen  drift.ObservedObject
	known bool
}

type sighting struct {
	ref    kubeclient.Ref
	state  drift.ObservedObject
	object *unstructured.Unstructured // nil if it is gone
}

func (w *watches) changed(ref kubeclient.Ref, o *unstructured.Unstructured) {
	s := sighting{ref: ref}
	if o != nil {
		s.state, s.object = drift.StateOf(ref.GroupVersionResource, o), o
	}
	w.queue = append(w.queue, s)
}

func (w *watches) take() {
	s := w.queue[0]
	w.queue = w.queue[1:]
	o := w.objects[s.ref]
	if o != nil && (!o.known || o.seen != s.state) {
		o.seen, o.known = s.state, true
		for _, key := range slices.Sorted(maps.Keys(w.owners)) {
			switch expected, tracks := w.owners[key][s.ref]; {
			case !tracks:
			case s.state.Is(expected):
				w.own.AsExpected(key, s.ref)
			case w.own.Observe(key, s.ref, s.state):
				w.wake(key)
			}
		}
	}
	switch { // the standing watch of AppliedManifestWorks
	case s.ref.Resource != appliedwork.Resource.Resource:
	case s.object == nil:
		w.core().Vanished(s.ref.Name)
	case o == nil && w.core().Discovered(s.object):
		w.wake(s.ref.Name)
	}
}

// Begin implements agent.Tracker, and so do RecordWrite and End.
func (w *watches) Begin(key string) { w.own.Begin(key) }

func (w *watches) RecordWrite(key string, ref kubeclient.Ref, s drift.Signature) {
	w.own.RecordWrite(key, ref, s)
}

func (w *watches) End(key string) {
	if w.own.End(key, func(ref kubeclient.Ref) (s drift.TrackingState) {
		s.Expected, s.Tracked = w.owners[key][ref]
		if o := w.objects[ref]; o != nil {
			s.Seen, s.Known = o.seen, o.known
		}
		return s
	}) {
		w.wake(key)
	}
}

// Track implements agent.Tracker.
func (w *watches) Track(key string, expected map[kubeclient.Ref]drift.Signature) {
	delete(w.owners, key)
	if len(expected) > 0 {
		w.owners[key] = maps.Clone(expected)
	}
	for ref := range expected {
		if w.objects[ref] == nil {
			w.objects[ref] = &watched{}
		}
	}
	maps.DeleteFunc(w.objects, func(ref kubeclient.Ref, _ *watched) bool {
		for _, refs := range w.owners {
			if _, tracks := refs[ref]; tracks {
				return false
			}
		}
		return true
	})
}

// LastSeen implements agent.Tracker.
func (w *watches) LastSeen(ref kubeclient.Ref) (drift.ObservedObject, bool) {
	o := w.objects[ref]
	if o == nil || !o.known {
		return drift.ObservedObject{}, false
	}
	return o.seen, true
}

// Unwatched implements agent.Tracker.
func (w *watches) Unwatched(string) int { return 0 }
