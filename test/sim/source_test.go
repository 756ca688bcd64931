package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const hubName = "hub"

// source is the hub source: the real core in a shell without goroutines.
type source struct {
	w        *world
	hub      *hub
	core     *hubsource.Core
	link     *link
	selected map[string]bool

	process int // counts restarts
	queue   [2]map[hubsource.Key]time.Time
	busy    [2]map[hubsource.Key]bool
	writes  []write // under way to the hub
	deaf    bool    // the next answer of the hub is lost
}

type write struct {
	lane   hubsource.Lane
	key    hubsource.Key
	effect hubsource.Effect
}

func newSource(w *world, h *hub) *source {
	s := &source{w: w, hub: h, selected: map[string]bool{}}
	for _, c := range clusters {
		s.selected[c] = true
	}
	s.start()
	return s
}

// start is a new process; its informers have read the hub.
func (s *source) start() {
	s.process++
	s.queue = [2]map[hubsource.Key]time.Time{{}, {}}
	s.busy = [2]map[hubsource.Key]bool{{}, {}}
	s.writes, s.hub.events = nil, nil
	s.core = hubsource.NewCore(hubsource.CoreConfig{Now: time.Now, Jitter: s.w.rng.Float64, Waker: s})
	for _, c := range clusters {
		if s.selected[c] {
			s.core.ClusterSelected(c)
		}
	}
	for _, key := range s.hub.keys() {
		s.core.WorkSeen(s.hub.works[key])
	}
	if s.link == nil {
		s.link = newLink(s.w, identity.Identity{Role: identity.Source, Name: hubName}, sourceParty{s})
	}
}

func (s *source) restart() {
	process := s.process
	s.process++ // what is under way is no longer answered
	if s.link.conn != nil {
		s.link.lose(unavailable("the process ended"))
	}
	s.w.pass(startTime)
	s.process = process
	s.start()
}

// Wake implements hubsource.Waker.
func (s *source) Wake(l hubsource.Lane, k hubsource.Key, after time.Duration) {
	at := time.Now().Add(after)
	if old, has := s.queue[l][k]; !has || at.Before(old) {
		s.queue[l][k] = at
	}
}

// sourceParty is the session's side.
type sourceParty struct{ *source }

func (p sourceParty) Hello() transport.Hello { return transport.Hello{Protocol: 1} }

func (p sourceParty) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	p.core.Connected(a)
	return nil, nil
}

func (p sourceParty) Disconnected(error) { p.core.Disconnected() }

func (p sourceParty) Handle(_ context.Context, e codec.Event) error {
	r, err := hubsource.ReportOf(e)
	if err != nil {
		p.w.fail("I4", "the hub source was sent a status that it cannot read: %v", err)
		return nil
	}
	p.w.note("  report of %s v%d: %s", r.UID, r.Version, p.core.Report(r))
	return nil
}

func (s *source) steps(list []step) []step {
	if len(s.hub.events) > 0 {
		list = append(list, step{"hub", "watch", "", s.watch})
	}
	now := time.Now()
	for l := range s.queue {
		for _, k := range s.waiting(l, now) {
			list = append(list, step{"hub source", hubsource.Lane(l).String(), string(k.UID) + k.Cluster, func() { s.begin(hubsource.Lane(l), k) }})
		}
	}
	for i, e := range s.writes {
		list = append(list, step{"hub", fmt.Sprintf("%T", e.effect), string(e.key.UID), func() { s.finish(i) }})
	}
	return list
}

// waiting returns the keys of a lane whose time has come, sorted.
func (s *source) waiting(l int, now time.Time) []hubsource.Key {
	var keys []hubsource.Key
	for k, at := range s.queue[l] {
		if !at.After(now) && !s.busy[l][k] {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b hubsource.Key) int {
	return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Cluster, b.Cluster))
}

// next is when something is due, if nothing is now.
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

func (s *source) watch() {
	e := s.hub.events[0]
	s.hub.events = s.hub.events[1:]
	if e.gone {
		s.core.WorkGone(e.o.UID)
	} else {
		s.core.WorkSeen(e.o)
	}
}

// begin is a worker that takes a key.
func (s *source) begin(l hubsource.Lane, k hubsource.Key) {
	delete(s.queue[l], k)
	switch e := s.core.Next(l, k).(type) {
	case nil:
		s.feed(l)
	case hubsource.Publish:
		event, err := e.Event(s.w.newID(), time.Now(), hubName)
		s.publish(write{l, k, e}, []codec.Event{event}, err)
	case hubsource.Release:
		event, err := e.Event(s.w.newID(), time.Now(), hubName)
		s.publish(write{l, k, e}, []codec.Event{event}, err)
	case hubsource.Ask:
		events, err := e.Events(s.w.newID, time.Now(), hubName)
		s.publish(write{l, k, e}, events, err)
	default:
		s.busy[l][k] = true
		s.writes = append(s.writes, write{l, k, e})
	}
}

// feed takes more of the sweep, as a worker does that is done with a key.
func (s *source) feed(l hubsource.Lane) {
	if l == hubsource.SpecLane {
		for _, k := range s.core.Sweep(1 << 20) { // in no order; all of it, so that none matters
			s.Wake(hubsource.SpecLane, k, 0)
		}
	}
}

func (s *source) publish(e write, events []codec.Event, err error) {
	if err != nil {
		panic(err) // works of a simulation can be encoded
	}
	s.busy[e.lane][e.key] = true
	process := s.process
	s.w.send(s.link, events[0], fmt.Sprintf("%T %s%s", e.effect, e.key.UID, e.key.Cluster), func(r transport.Receipt, err error) {
		switch {
		case process != s.process:
		case err == nil && len(events) > 1:
			s.publish(e, events[1:], nil)
		default:
			s.w.note("  outcome %q, error %v", r.Outcome, err)
			s.done(e, hubsource.Result{Receipt: r, Err: err})
		}
	})
}

func (s *source) done(e write, r hubsource.Result) {
	delete(s.busy[e.lane], e.key)
	s.core.Done(e.effect, r)
	s.Wake(e.lane, e.key, 0)
	s.feed(e.lane)
}

// finish carries out a request to the hub.
func (s *source) finish(i int) {
	e := s.writes[i]
	s.writes = slices.Delete(s.writes, i, i+1)
	var r hubsource.Result
	switch f := e.effect.(type) {
	case hubsource.AddFinalizer:
		r.Work, r.Err = s.hub.write(f.Work, func(o *workv1.ManifestWork) { o.Finalizers = []string{workv1.ManifestWorkFinalizer} })
	case hubsource.RemoveFinalizer:
		r.Work, r.Err = s.hub.write(f.Work, func(o *workv1.ManifestWork) { o.Finalizers = nil })
		if r.Err == nil {
			s.w.oracle.endOnHub(f.Work)
		}
	case hubsource.PatchStatus:
		r.Work, r.Err = s.hub.write(f.Work, func(o *workv1.ManifestWork) { o.Status = f.Status })
		if r.Err == nil {
			s.w.oracle.statusOnHub(r.Work)
		}
	case hubsource.CheckGone:
		r.Work, r.Err = s.hub.get(f.Work.Namespace, f.Work.Name)
	case hubsource.Lookup:
		r.Work, r.Err = s.hub.get(f.Namespace, f.Name)
	}
	s.w.note("  error %v", r.Err)
	if s.deaf && r.Err == nil {
		s.deaf = false
		r = hubsource.Result{Err: unavailableHub()}
	}
	s.done(e, r)
}
