package registration

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// newService returns a service of which no task runs.
func newService() *Service {
	ids := 0
	newID := func() string {
		ids++
		return strconv.Itoa(ids)
	}
	cfg := &settings.Config{
		Store: mem.Open(mem.Options{NewID: newID}), Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Registration: "hub", QueueBytes: 64 << 20, MaxEventBytes: 4 << 20, Heartbeat: time.Hour, StreamsPerClient: 32,
		Now: func() time.Time { return time.Unix(1_700_000_000, 0) }, NewID: newID,
	}
	cfg.Beats, cfg.Replicas = settings.NewBeats(cfg), settings.NewReplicas(cfg)
	return New(cfg, func(string, *transport.Error) {}, nil) // there are no works, and no certificates
}

// thing is an object of the hub.
type thing struct {
	uid, requester string
	version        int
}

// world is a hub, its source, and agents. The source and the agents may have older states of the hub.
type world struct {
	*rapid.T
	service *Service
	session int
	hub     map[streamScope]map[string]thing
	changes int
	agents  []*agent
}

// agent keeps the objects that it is sent, like an agent of Open Cluster Management: by name, without comparing
// versions. It applies deletions by uid.
type agent struct {
	world  *world
	viewer visibility
	stream *stream
	cache  map[string]thing
	// busy is true if the world may change while an event is sent to the agent.
	busy bool
}

func (a *agent) Accept(transport.Accepted) error { return nil }

func (a *agent) Send(parts ...[]byte) error {
	env, err := codec.ParseEnvelope(slices.Concat(parts...))
	if err != nil {
		a.world.Fatalf("the agent cannot read an event: %v", err)
	}
	if env.Cluster != a.viewer.cluster || env.Type.DataType != a.viewer.dataType || env.Source != "hub" {
		a.world.Fatalf("%v is sent %+v", a.viewer, env)
	}
	if env.Deleting {
		if len(env.Data) > 0 {
			a.world.Fatalf("a deletion has data: OCM agents read it as an object")
		}
		for name, t := range a.world.hub[a.viewer.streamScope] {
			if t.uid == env.ResourceID {
				a.world.Fatalf("%s exists, and its deletion is sent", name)
			}
		}
		for name, t := range a.cache {
			if t.uid == env.ResourceID {
				delete(a.cache, name)
			}
		}
	} else {
		a.take(env)
	}
	if a.busy && rapid.Bool().Draw(a.world.T, "meanwhile") {
		a.world.change()
	}
	return nil
}

func (a *agent) take(env codec.Envelope) {
	if a.viewer.hidden(a.world.service.cache.isAccepted(a.viewer.cluster)) {
		a.world.Fatalf("%s is sent %s, and its acceptance was withdrawn before", a.viewer.cluster, env.ResourceID)
	}
	var o struct {
		Metadata  struct{ Name, UID, ResourceVersion string }
		Requester string
	}
	if err := json.Unmarshal(env.Data, &o); err != nil {
		a.world.Fatal(err)
	}
	version, err := strconv.Atoi(o.Metadata.ResourceVersion)
	if err != nil {
		a.world.Fatal(err)
	}
	if had, ok := a.cache[o.Metadata.Name]; ok && had.uid == env.ResourceID && had.version > version {
		a.world.Fatalf("%s is sent in version %d after %d", o.Metadata.Name, version, had.version)
	}
	if s, ok := a.stream.sent[o.Metadata.Name]; ok && s.uid != env.ResourceID {
		a.world.Fatalf("%s is another object now, and no deletion of the previous object was sent", o.Metadata.Name)
	}
	if a.viewer.user != "" && a.viewer.dataType != codec.ManagedClusters && o.Requester != a.viewer.user {
		a.world.Fatalf("%s is sent a request of %s", a.viewer.user, o.Requester)
	}
	a.cache[o.Metadata.Name] = thing{uid: o.Metadata.UID, requester: o.Requester, version: version}
}

// subscribe begins a subscription, and lists what the agent has.
func (a *agent) subscribe() {
	if a.stream != nil {
		a.stream.sub.leave()
	}
	s := &subscription{running: newRunning(a.world.service.cfg.NewID(), identity.Identity{Role: identity.Agent, Name: a.viewer.cluster}), visibility: a.viewer}
	a.stream = &stream{sender: sender{service: a.world.service, out: a, nextBeat: time.Unix(1<<40, 0)}, sub: s, sent: map[string]sent{}}
	a.list()
}

func (a *agent) list() {
	l := &list{free: func() {}}
	for _, t := range a.cache {
		l.versions = append(l.versions, codec.ResourceVersion{ResourceID: t.uid, ResourceVersion: int64(t.version)})
	}
	a.stream.sub.request(l)
}

// forget removes an object from the agent's memory, and lists the remaining objects.
func (a *agent) forget() {
	for name := range a.cache {
		delete(a.cache, name)
		break
	}
	a.list()
}

// step runs one step of the agent's stream.
func (a *agent) step() (idle bool) {
	idle, err := a.stream.step(context.Background())
	if err != nil {
		a.world.Fatal(err)
	}
	return idle
}

var (
	clusters = []string{"c1", "c2"}
	users    = []string{"boot", "other"}
	kinds    = []codec.DataType{codec.ManagedClusters, codec.SigningRequests, codec.Leases}
)

// object returns the report of the source about a name: the object, or that there is none.
func (w *world) object(p streamScope, name string) *hawserv1.RegistrationObject {
	o := &hawserv1.RegistrationObject{DataType: p.dataType.String(), Cluster: p.cluster, Name: name}
	if t, ok := w.hub[p][name]; ok {
		o.Uid, o.ResourceVersion, o.Requester = t.uid, strconv.Itoa(t.version), t.requester
		o.Json = fmt.Appendf(nil, `{"metadata":{"name":%q,"uid":%q,"resourceVersion":"%d"},"requester":%q}`, name, t.uid, t.version, t.requester)
		o.ManagedClusterStatus = &hawserv1.ManagedClusterStatus{Accepted: t.version%4 != 0}
	}
	return o
}

func (w *world) publish(listed bool, objects ...*hawserv1.RegistrationObject) {
	if w.session == 0 {
		return
	}
	if err := w.service.takeObjects(w.Context(), strconv.Itoa(w.session), &hawserv1.RegistrationObjects{Objects: objects, SnapshotComplete: listed}); err != nil {
		w.Fatalf("the present session does not count: %v", err)
	}
}

// change creates, changes or deletes an object on the hub. The source reports it if the source is connected.
func (w *world) change() {
	p := streamScope{rapid.SampledFrom(kinds).Draw(w.T, "kind"), rapid.SampledFrom(clusters).Draw(w.T, "cluster")}
	name := p.cluster
	if p.dataType != codec.ManagedClusters {
		name = rapid.SampledFrom([]string{"x", "y"}).Draw(w.T, "name")
	}
	w.changes++
	t, there := w.hub[p][name]
	switch {
	case !there:
		t = thing{uid: fmt.Sprintf("%s-%s-%d", p.cluster, name, w.changes), requester: rapid.SampledFrom(users).Draw(w.T, "user")}
		fallthrough
	case rapid.IntRange(0, 2).Draw(w.T, "what") > 0:
		t.version = w.changes
		if w.hub[p] == nil {
			w.hub[p] = map[string]thing{}
		}
		w.hub[p][name] = t
	default:
		delete(w.hub[p], name)
	}
	w.publish(false, w.object(p, name))
}

// connect begins a session of the source, which reports all objects.
func (w *world) connect() {
	w.leave()
	w.session = w.changes + 1
	w.changes++
	w.service.cache.begin(strconv.Itoa(w.session))
	for p, things := range w.hub {
		for name := range things {
			w.publish(false, w.object(p, name))
		}
	}
}

func (w *world) leave() {
	if w.session > 0 {
		w.service.cache.end(strconv.Itoa(w.session))
	}
	w.session = 0
}

// check reports all objects and runs all streams. Then each agent must have exactly the objects that it may
// see.
func (w *world) check() {
	w.connect()
	w.publish(true)
	for _, a := range w.agents {
		if a.stream == nil {
			continue
		}
		for !a.step() {
		}
		if _, accepted, _ := w.service.cache.show(a.viewer.streamScope); a.viewer.hidden(accepted) {
			continue // the agent keeps its objects, and gets no changes
		}
		want := maps.Clone(w.hub[a.viewer.streamScope])
		maps.DeleteFunc(want, func(_ string, t thing) bool {
			return a.viewer.user != "" && a.viewer.dataType != codec.ManagedClusters && t.requester != a.viewer.user
		})
		if len(want)+len(a.cache) > 0 && !maps.Equal(want, a.cache) {
			w.Fatalf("%v: %s", a.viewer, cmp.Diff(want, a.cache, cmp.AllowUnexported(thing{})))
		}
	}
}

// TestStream_ShowsObjectsOfHub checks that each agent finally has the objects that it may see, for any order of
// changes, source sessions, subscriptions and lists. Each object is sent in the order of its versions.
func TestStream_ShowsObjectsOfHub(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{T: t, service: newService(), hub: map[streamScope]map[string]thing{}}
		for _, d := range kinds {
			row, _ := codec.Registration(d)
			for _, c := range clusters {
				w.agents = append(w.agents, &agent{world: w, viewer: visibility{streamScope: streamScope{d, c}, early: row.Joining}, cache: map[string]thing{}})
				if row.Joining {
					w.agents = append(w.agents, &agent{world: w, viewer: visibility{streamScope: streamScope{d, c}, early: true, user: "boot"}, cache: map[string]thing{}})
				}
			}
		}
		one := func(f func(a *agent)) func(*rapid.T) {
			return func(t *rapid.T) {
				a := rapid.SampledFrom(w.agents).Draw(t, "agent")
				if a.busy = true; a.stream == nil {
					a.subscribe()
				}
				f(a)
				a.busy = false
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"change":    func(*rapid.T) { w.change() },
			"connect":   func(*rapid.T) { w.connect() },
			"listed":    func(*rapid.T) { w.publish(true) },
			"leave":     func(*rapid.T) { w.leave() },
			"subscribe": one(func(a *agent) { a.subscribe() }),
			"list":      one(func(a *agent) { a.list() }),
			"forget":    one(func(a *agent) { a.forget() }),
			"step":      one(func(a *agent) { a.step() }),
			"check":     func(*rapid.T) { w.check() },
		})
		w.check()
	})
}

// TestStream_WithdrawnWhileSending: an agent that reads slowly gets no object after its acceptance was withdrawn.
//
// Scenario:
//
//	t1: two Leases of c1 are due, and the first is sent.
//	t2: hub-source reports that the hub has withdrawn the acceptance.
//	t3: the agent has read the first Lease.
func TestStream_WithdrawnWhileSending(t *testing.T) {
	r := newService()
	r.cache.begin("1")
	report := func(d codec.DataType, name string, accepted bool) {
		t.Helper()
		o := &hawserv1.RegistrationObject{
			DataType: d.String(), Cluster: "c1", Name: name, Uid: name, ResourceVersion: "1", Json: []byte("{}"),
			ManagedClusterStatus: &hawserv1.ManagedClusterStatus{Accepted: accepted},
		}
		if err := r.takeObjects(t.Context(), "1", &hawserv1.RegistrationObjects{Objects: []*hawserv1.RegistrationObject{o}}); err != nil {
			t.Fatal(err)
		}
	}
	report(codec.ManagedClusters, "c1", true)
	report(codec.Leases, "x", true)
	report(codec.Leases, "y", true)
	sends := 0
	out := sendFunc(func() {
		sends++
		report(codec.ManagedClusters, "c1", false)
	})
	s := &subscription{running: newRunning("s", identity.Identity{Role: identity.Agent, Name: "c1"}), visibility: visibility{streamScope: streamScope{codec.Leases, "c1"}}}
	a := &stream{sender: sender{service: r, out: out, nextBeat: time.Unix(1<<40, 0)}, sub: s, sent: map[string]sent{}}
	for idle := false; !idle; {
		var err error
		if idle, err = a.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if sends != 1 {
		t.Errorf("%d Leases were sent, want the one before the withdrawal", sends)
	}
}

// sendFunc is a stream whose reader calls the function for each event.
type sendFunc func()

func (sendFunc) Accept(transport.Accepted) error { return nil }

func (f sendFunc) Send(...[]byte) error {
	f()
	return nil
}
