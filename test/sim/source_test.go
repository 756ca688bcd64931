package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const hubName = "hub"

// source is hub-source: the real core in a shell without goroutines.
type source struct {
	w        *world
	hub      *hub
	core     *core.Core
	link     *link
	selected map[string]bool

	clock        time.Duration
	process      int // counts restarts
	began        time.Time
	head         int // of the log when the process began, or listed last
	queue        [2]map[core.Key]time.Time
	busy         [2]map[core.Key]bool
	writes       []write // under way to the hub
	unresponsive bool    // the next answer of the hub is lost
	located      int     // the version of the hub when the core first read it in the present hub epoch
	blind        bool    // the informer sees nothing new
	stateRV      int     // the resource version of the state that hub-source read or wrote last
	sent         string  // the cursor of the broker's last checkpoint

	informer           // of the leader
	standby  *informer // of the standby replica, with the hub before a restore; nil otherwise
	former   *informer // of the previous hub epoch, stopped; nil if there is none
}

// write is a request to the hub, or a computation.
type write struct {
	queue  core.Queue
	key    core.Key
	effect core.Effect
	epoch  int   // of the core
	conn   *conn // with the broker, when it was made
	// answer is set once the request was carried out. Informers may be faster than the answer. rv is the version of
	// the hub at that time.
	answer *core.Result
	rv     int
}

func newSource(w *world, h *hub) *source {
	s := &source{w: w, hub: h, selected: map[string]bool{}}
	for _, c := range append(slices.Clone(clusters), agentlessCluster) {
		s.selected[c] = true
	}
	s.start(h.informer(0))
	return s
}

// start creates a new core, in a process whose informers have read this state of the hub. They may have started
// long before, while another replica led.
func (s *source) start(read *informer) {
	s.process++
	s.stateRV = s.hub.stateRV
	s.queue = [2]map[core.Key]time.Time{{}, {}}
	s.busy = [2]map[core.Key]bool{{}, {}}
	s.writes, s.former = nil, nil
	s.w.oracle.sourceForgets()
	s.core = core.New(core.Config{
		Now: s.now, Jitter: s.w.jitter("hub source"), Waker: s, Source: hubName, NewID: s.w.newID, State: s.hub.kept(),
	})
	s.inform(read)
	if s.link == nil {
		s.link = newLink(s.w, identity.Identity{Role: identity.Source, Name: hubName}, sourceHandler{s})
	}
}

// inform creates the informers of the present hub epoch, and shows their state to the core.
func (s *source) inform(read *informer) {
	s.began, s.head = time.Now(), len(s.hub.log)
	s.informer = informer{seen: read.seen, epoch: read.epoch, has: map[string]*workv1.ManifestWork{}, of: s.core.Epoch()}
	s.located = 0
	for _, c := range slices.Sorted(maps.Keys(s.selected)) {
		if s.selected[c] {
			s.core.ClusterSelected(s.of, c)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(read.has)) {
		s.take(read.has[key])
	}
}

// beginEpoch creates new informers from a list that no cache answered.
func (s *source) beginEpoch() {
	s.w.oracle.sourceForgets()
	s.link.dropIfAny("another hub epoch begins")
	s.former = s.informer.stop(s.hub)
	s.inform(s.hub.informer(0))
}

// late returns the time from which the informers must have a new list.
func (s *source) late() time.Time {
	if s.began.After(s.hub.since) {
		return s.began
	}
	return s.hub.since
}

// missing reports whether the informers have changes to read or to deliver.
func (s *source) missing() bool {
	return s.epoch != s.hub.epoch || len(s.news) > 0 || s.seen < s.head
}

// now is the clock of the hub source's machine.
func (s *source) now() time.Time { return time.Now().Add(s.clock) }

// restart ends the process and starts another. Or another replica, whose informers lag, becomes the leader.
func (s *source) restart(read *informer) {
	process := s.process
	s.process++ // requests in flight are no longer answered
	if s.link.conn != nil {
		s.link.drop(unavailable("the process ended"))
	}
	s.w.pass(startTime)
	s.process = process
	s.start(read)
}

// Wake implements core.Waker.
func (s *source) Wake(l core.Queue, k core.Key, after time.Duration) {
	at := time.Now().Add(after)
	if old, has := s.queue[l][k]; !has || at.Before(old) {
		s.queue[l][k] = at
	}
}

// Prioritize implements core.Waker. Which of the keys that wait is next is drawn.
func (*source) Prioritize(core.Queue, core.Key) {}

// sourceHandler is the handler of the source's session.
type sourceHandler struct{ *source }

func (p sourceHandler) Hello() transport.Hello { return p.core.Hello() }

func (p sourceHandler) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	p.w.note("  continues by %s", a.Resync)
	if a.Resync != codec.ResyncCursor {
		p.w.oracle.storeUnknown()
	}
	p.core.Connected(a)
	return nil, nil
}

func (p sourceHandler) Disconnected(error) { p.core.Disconnected() }

func (p sourceHandler) Handle(_ context.Context, e codec.Event) error {
	var err error
	switch e.Type() {
	case codec.TypeCheckpoint:
		var c codec.Checkpoint
		if c, err = codec.ParseCheckpoint(e); err == nil {
			p.sent = c.Cursor.String()
			p.core.Checkpoint(c)
		}
	case codec.TypeKeepalive, codec.TypeGoodbye:
		var a *core.Keepalive
		if a, err = core.KeepaliveOf(e); err == nil {
			p.core.Keepalive(a)
		}
	case codec.TypeDisconnectedClusters:
		var d codec.DisconnectedClusters
		if d, err = codec.ParseDisconnectedClusters(e); err == nil {
			p.core.DisconnectedClusters(d)
		}
	case codec.TypeInventory:
		var page codec.Inventory
		if page, err = codec.ParseInventory(e); err == nil {
			p.w.note("  %d clusters, %d records: %t", len(page.Clusters), len(page.Records), p.core.Inventory(page))
		}
	default:
		if t, terr := codec.ParseEventType(e.Type()); terr == nil && t.Subresource == codec.Spec {
			var l *core.AgentList
			if l, err = core.ParseAgentList(e); err == nil {
				p.w.note("  list of %d works: %t", len(l.Versions), p.core.AgentList(l))
			}
			break
		}
		var r *core.Report
		if r, err = core.ReportOf(e); err == nil {
			p.w.note("  report of %s v%d: %s", r.UID, r.Version, p.core.Report(r))
		}
	}
	if err != nil {
		p.w.fail("I4", "the hub source was sent an event that it cannot read: %v", err)
	}
	return nil
}

func (s *source) steps(list []step) []step {
	if !s.blind && s.behind(s.hub) {
		list = append(list, step{"hub", "watch", "", s.watch})
	}
	if !s.blind && s.former != nil && !s.former.sentAll(s.hub) {
		list = append(list, step{"hub", "watch of the previous epoch", "", s.watchFormer})
	}
	now := time.Now()
	for l := range s.queue {
		for _, k := range s.waiting(l, now) {
			list = append(list, step{"hub source", core.Queue(l).String(), string(k.UID) + k.Cluster, func() { s.begin(core.Queue(l), k) }})
		}
	}
	for i, e := range s.writes {
		if what := fmt.Sprintf("%T", e.effect); e.answer == nil {
			list = append(list, step{"hub", what, string(e.key.UID), func() { s.carryOut(i) }})
		} else {
			list = append(list, step{"hub", "answer to " + what, string(e.key.UID), func() { s.answer(i) }})
		}
	}
	return list
}

// waiting returns the due keys of a queue, sorted.
func (s *source) waiting(l int, now time.Time) []core.Key {
	var keys []core.Key
	for k, at := range s.queue[l] {
		if !at.After(now) && !s.busy[l][k] {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b core.Key) int {
	return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Cluster, b.Cluster))
}

// next returns when the next key is due.
func (s *source) next() (first time.Time) {
	for l := range s.queue {
		for k, at := range s.queue[l] {
			if !s.busy[l][k] && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	return first
}

// serve begins to serve a cluster, or serves it again. If the hub went back in time before that, an OCM agent
// learns it only when it reconnects. Then it lists its versions, which is all that is known of them.
func (s *source) serve(c string) {
	s.selected[c] = true
	s.w.oracle.servedAgain(c)
	s.core.ClusterSelected(s.of, c)
	if ocm := s.w.ocmAgent; s.hub.epoch > 0 && ocm.name == c {
		ocm.link.dropIfAny("the agent restarts")
	}
}

// begin lets a worker take a key.
func (s *source) begin(l core.Queue, k core.Key) {
	delete(s.queue[l], k)
	w := write{queue: l, key: k, effect: s.core.Next(l, k), epoch: s.of, conn: s.link.conn}
	switch e := w.effect.(type) {
	case nil:
		s.feed(l)
	case core.EndSubscription:
		if c := s.link.conn; c != nil && c.id == e.ID {
			s.link.drop(unavailable("hub-source ends its subscription"))
		}
		s.done(w, core.Result{})
	case core.Withhold:
		s.w.note("  withheld on %s: %v, %s", e.Cluster, e.Withheld, e.Reason)
		s.done(w, core.Result{})
	case core.BeginHubEpoch:
		s.w.note("  life %d: %s", e.Epoch, e.Reason)
		s.beginEpoch()
		s.done(w, core.Result{})
	case core.ForBroker:
		events, err := e.Events(s.w.newID, s.now(), hubName)
		s.publish(w, events, err)
	default:
		s.busy[l][k] = true
		s.writes = append(s.writes, w)
	}
}

// feed takes more of the initial sync, as a worker does that is done with a key.
func (s *source) feed(l core.Queue) {
	if l == core.BrokerQueue {
		for _, k := range s.core.NextInitialSync(1 << 20) { // unsorted; no order shows, because the limit includes all keys
			s.Wake(core.BrokerQueue, k, 0)
		}
	}
}

func (s *source) publish(e write, events []codec.Event, err error) {
	if err != nil {
		panic(err) // works of a simulation can be encoded
	}
	s.busy[e.queue][e.key] = true
	s.publishFrom(e, events, 0)
}

// publishFrom publishes the i-th event and the following ones.
func (s *source) publishFrom(e write, events []codec.Event, i int) {
	process := s.process
	s.w.send(s.link, events[i], fmt.Sprintf("%T %s%s", e.effect, e.key.UID, e.key.Cluster), func(r transport.Receipt, err error) {
		switch {
		case process != s.process:
		case err == nil && i+1 < len(events):
			s.publishFrom(e, events, i+1)
		default:
			s.w.note("  outcome %q, error %v", r.Outcome, err)
			s.done(e, core.Result{Receipt: r, Err: err, Sent: i + 1})
		}
	})
}

func (s *source) done(e write, r core.Result) {
	delete(s.busy[e.queue], e.key)
	s.core.Done(e.queue, e.key, r)
	s.Wake(e.queue, e.key, 0)
	s.feed(e.queue)
}

// carryOut carries out a request to the hub, or a computation. The answer arrives later, possibly after
// informers show the effect.
func (s *source) carryOut(i int) {
	e := &s.writes[i]
	var r core.Result
	switch f := e.effect.(type) {
	case core.AddFinalizer:
		r.Work, r.Err = s.hub.write(f.Work, func(o *workv1.ManifestWork) { o.Finalizers = []string{workv1.ManifestWorkFinalizer} })
		if r.Err == nil {
			s.w.oracle.begun(f.Work, e.epoch != s.of)
		}
	case core.RemoveFinalizer:
		r.Work, r.Err = s.hub.write(f.Work, func(o *workv1.ManifestWork) { o.Finalizers = nil })
		if r.Err == nil {
			s.w.oracle.endOnHub(f.Work)
		}
	case core.PatchStatus:
		if r.Err = s.hub.refused(f); r.Err == nil {
			r.Work, r.Err = s.hub.write(f.Work, func(o *workv1.ManifestWork) { o.Status = f.Status })
		}
		if r.Err == nil {
			s.w.oracle.statusOnHub(r.Work)
		}
	case core.Tag:
		r.Tags = f.Tags()
	default:
		s.request(f, &r)
	}
	s.w.note("  error %v", r.Err)
	e.answer, e.rv = &r, s.hub.rv
}

// answer delivers the answer to a request, or loses it.
func (s *source) answer(i int) {
	e := s.writes[i]
	s.writes = slices.Delete(s.writes, i, i+1)
	r := *e.answer
	if s.unresponsive && r.Err == nil {
		s.unresponsive = false
		r = core.Result{Err: unavailableHub()}
		s.w.note("  the answer is lost")
		switch f := e.effect.(type) {
		case core.Save:
			s.stateRV = stateUnknown
		case core.AddFinalizer:
			s.w.oracle.lostAnswer(f.Work, s.located)
		}
	}
	if _, locates := e.effect.(core.ReadHubPosition); locates && r.Err == nil && s.located == 0 && e.epoch == s.of && e.conn == s.link.conn {
		s.located = e.rv
	}
	s.done(e, r)
}

// request is a request to the hub that changes no work.
func (s *source) request(e core.Effect, r *core.Result) {
	switch e := e.(type) {
	case core.Get:
		r.Work, r.Err = s.hub.get(e.Namespace, e.Name)
	case core.List:
		r.Present, r.Err = s.hub.present(e.Namespace)
	case core.ReadHubPosition:
		if r.Position, r.Err = s.hub.position(); r.Err == nil {
			s.stateRV, r.Kept = s.hub.stateRV, s.hub.kept().Version
		}
	case core.Save:
		r.Err = s.hub.save(e.State.Data(), &s.stateRV)
		r.Kept = s.hub.kept().Version
	default:
		panic(fmt.Sprintf("no answer to %T", e))
	}
}
