package broker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a broker with a store in memory, in a bubble of virtual time.
type world struct {
	*testing.T
	*testkit.Broker
	conns uint64
	seq   int64
}

// inWorld runs test with a broker made from cfg.
func inWorld(t *testing.T, cfg broker.Config, test func(w *world)) {
	t.Helper()
	inWrapped(t, cfg, nil, test)
}

// inWrapped is inWorld with a store that wrap returns.
func inWrapped(t *testing.T, cfg broker.Config, wrap func(store.Store) store.Store, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.NewID = testkit.NewIDs("id")
		if wrap != nil {
			cfg.Store = wrap(mem.Open(mem.Options{NewID: testkit.NewIDs("store")}))
		}
		w := &world{T: t}
		w.Broker = testkit.StartBroker(t, testkit.Options{Broker: cfg})
		test(w)
	})
}

func (w *world) peer(role, name string) transport.Peer {
	w.conns++
	return transport.Peer{Role: role, Name: name, Addr: "test", Transport: transport.GRPC, Conn: w.conns}
}

func (w *world) agent(cluster string) transport.Peer { return w.peer("agent", cluster) }
func (w *world) source(id string) transport.Peer     { return w.peer("source", id) }

// work describes a spec event; zero fields get valid defaults.
type work struct {
	source, cluster, id, name string
	version                   int32
	action                    codec.Action
	deleting                  bool
	data                      string
	metadata                  string
	extensions                map[string]any
}

func (k work) event() []byte {
	k.source = or(k.source, "src")
	k.cluster = or(k.cluster, "c1")
	k.id = or(k.id, "w1")
	k.name = or(k.name, "name-of-"+k.id)
	k.metadata = or(k.metadata, fmt.Sprintf(`{"name":%q,"namespace":%q}`, k.name, k.cluster))
	if k.action == "" {
		k.action = codec.CreateRequest
		if k.deleting {
			k.action = codec.DeleteRequest
		}
	}
	x := map[string]any{codec.ExtResourceID: k.id, codec.ExtResourceVersion: k.version, codec.ExtMetadata: k.metadata}
	if k.deleting {
		x[codec.ExtDeletionTimestamp] = time.Unix(1_700_000_000, 5)
	} else {
		k.data = or(k.data, fmt.Sprintf(`{"manifests":[],"v":%d}`, k.version))
	}
	return build(k.source, k.cluster, specType(k.action), x, k.extensions, k.data)
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func specType(a codec.Action) codec.EventType {
	return codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: a}
}

func statusType(a codec.Action) codec.EventType {
	return codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: a}
}

// build returns an event's bytes. A nil value in more removes an extension.
func build(source, cluster string, kind codec.EventType, extensions, more map[string]any, data string) []byte {
	for name, v := range more {
		extensions[name] = v
		if v == nil {
			delete(extensions, name)
		}
	}
	e, err := codec.Builder{
		ID: "e", Time: time.Unix(1_700_000_000, 0), Source: source, Type: kind.String(), Cluster: cluster,
		Extensions: extensions, ContentType: codec.ContentTypeJSON, Data: []byte(data),
	}.Event()
	if err != nil {
		panic(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		panic(err)
	}
	return b
}

// report describes a status event.
type report struct {
	cluster, id string
	version     int32
	sequence    string
	deleted     bool
	failing     bool
	hash        string
	extensions  map[string]any
}

// event returns the status with a sequence id above all earlier ones.
func (w *world) event(r report) []byte {
	if r.sequence == "" {
		w.seq++
		r.sequence = fmt.Sprint(w.seq<<22 | 1<<12)
	}
	data := `{"conditions":[{"type":"Applied","status":"True"}]}`
	if r.failing {
		data = `{"conditions":[{"type":"Applied","status":"False","message":"forbidden"}]}`
	}
	if r.deleted {
		data = `{"conditions":[{"type":"Deleted","status":"True"}]}`
	}
	r.cluster = or(r.cluster, "c1")
	return build("agent-id", r.cluster, statusType(codec.UpdateRequest), map[string]any{
		codec.ExtResourceID: or(r.id, "w1"), codec.ExtResourceVersion: r.version,
		codec.ExtSequenceID: r.sequence, codec.ExtStatusHash: r.hash,
	}, r.extensions, data)
}

// put publishes and returns the outcome; it fails the test on an error.
func (w *world) put(p transport.Peer, event []byte) string {
	w.Helper()
	r, err := w.Publish(w.Context(), p, event, "")
	if err != nil {
		w.Fatalf("publish: %v", err)
	}
	return r.Outcome
}

// versions is an agent's resync request.
func versions(cluster string, held ...codec.ResourceVersion) []byte {
	data, err := codec.EncodeVersions(held)
	if err != nil {
		panic(err)
	}
	return build("agent-id", cluster, specType(codec.ResyncRequest), map[string]any{}, nil, string(data))
}

// hashes is a source's resync request.
func hashes(source, cluster string, held ...codec.StatusHash) []byte {
	data, err := codec.EncodeHashes(held)
	if err != nil {
		panic(err)
	}
	return build(source, cluster, statusType(codec.ResyncRequest), map[string]any{}, nil, string(data))
}

// tap is the client side of a subscription.
type tap struct {
	w        *world
	peer     transport.Peer
	cancel   context.CancelFunc
	accepted transport.Accepted
	onAccept func()
	ended    chan error

	mu     sync.Mutex
	syncs  []codec.Event // checkpoints and pages
	events []codec.Envelope
	times  []time.Time
	beats  []time.Time
	hold   func() // called by every Send; nil does nothing
}

func (s *tap) Accept(a transport.Accepted) error {
	s.accepted = a
	if s.onAccept != nil {
		s.onAccept()
	}
	return nil
}

func (s *tap) Send(parts ...[]byte) error {
	if s.hold != nil {
		s.hold()
	}
	whole := slices.Concat(parts...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if codec.IsHeartbeat(whole) {
		s.beats = append(s.beats, time.Now())
		return nil
	}
	env, err := codec.ParseEnvelope(whole)
	if err != nil {
		s.w.Errorf("event of the broker: %v", err)
	}
	if strings.HasPrefix(env.RawType, "dev.hawser.") {
		e, err := codec.Unmarshal(whole)
		if err != nil {
			s.w.Errorf("event of the broker: %v", err)
		}
		s.syncs = append(s.syncs, e)
		return nil
	}
	s.events = append(s.events, env)
	s.times = append(s.times, time.Now())
	return nil
}

// take waits until all goroutines are idle, and returns the events that arrived since the last take.
func (s *tap) take() []codec.Envelope {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.events
	s.events = nil
	return e
}

// shown returns the events as tests compare them: part, action, id, version.
func shown(events []codec.Envelope) []string {
	var out []string
	for _, e := range events {
		line := fmt.Sprintf("%s %s %s v%d", e.Type.Subresource, e.Type.Action, e.ResourceID, e.Version)
		if e.Deleting {
			line += " deleting"
		}
		out = append(out, line)
	}
	return out
}

func (s *tap) expect(want ...string) []codec.Envelope {
	s.w.Helper()
	events := s.take()
	if got := shown(events); !slices.Equal(got, want) {
		s.w.Errorf("%s/%s got %q, want %q", s.peer.Role, s.peer.Name, got, want)
	}
	return events
}

// expectAny is expect for events in any order.
func (s *tap) expectAny(want ...string) []codec.Envelope {
	s.w.Helper()
	events := s.take()
	got := shown(events)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.w.Errorf("%s/%s got %q, want %q", s.peer.Role, s.peer.Name, got, want)
	}
	return events
}

// open begins a subscription. edit may change the request and the tap.
func (w *world) open(p transport.Peer, edit func(*transport.RawSubscription, *tap)) *tap {
	w.Helper()
	synctest.Wait() // all earlier publishes are routed now
	raw := transport.RawSubscription{DataType: codec.ManifestBundles.String()}
	if p.Role == "source" {
		raw.Source = p.Name
	} else {
		raw.Cluster = p.Name
	}
	s := &tap{w: w, peer: p, ended: make(chan error, 1)}
	if edit != nil {
		edit(&raw, s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	w.Cleanup(cancel)
	go func() { s.ended <- w.Subscribe(ctx, p, raw, s) }() // ends with ctx, the broker or the test
	synctest.Wait()
	return s
}

// subscribe opens a subscription and sends an empty list.
func (w *world) subscribe(p transport.Peer) *tap {
	w.Helper()
	s := w.open(p, nil)
	w.request(s)
	s.take()
	return s
}

func hawser(raw *transport.RawSubscription, _ *tap) { raw.Hello.Protocol = transport.Protocol }

// request sends an agent's version list, or a source's empty hash list.
func (w *world) request(s *tap, held ...codec.ResourceVersion) {
	w.Helper()
	event := versions(s.peer.Name, held...)
	if s.peer.Role == "source" {
		event = hashes(s.peer.Name, "")
	}
	w.put(s.peer, event)
}

// refused returns the error of a call, which must have this code.
func (w *world) refused(err error, code transport.Code) *transport.Error {
	w.Helper()
	e, ok := err.(*transport.Error) //nolint:errorlint // the contract says *transport.Error
	if !ok || e.Code != code {
		w.Fatalf("got %v (%T), want code %v", err, err, code)
	}
	return e
}

func (w *world) wantCode(err error, code transport.Code) {
	w.Helper()
	_ = w.refused(err, code) // refused fails the test
}

// listed returns the hashes in a status resync request, by id.
func listed(t *testing.T, e codec.Envelope) map[string]string {
	t.Helper()
	var l codec.StatusHashList
	if err := json.Unmarshal(e.Data, &l); err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, h := range l.Hashes {
		m[h.ResourceID] = h.StatusHash
	}
	return m
}

// releaseOf is the event by which a source releases a cluster.
func releaseOf(t *testing.T, source, cluster string) []byte {
	t.Helper()
	e, err := codec.NewRelease("r", time.Unix(1_700_000_000, 0), source, cluster)
	if err != nil {
		t.Fatal(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }
