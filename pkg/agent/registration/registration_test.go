package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is the broker's side of a fakeHub, like the server of Open Cluster Management. Present objects are
// sent on request, changes are sent to all streams.
type server struct {
	mu      sync.Mutex
	hub     *fakeHub
	streams map[*serverStream]bool
	// rights: a registered agent without rights is rejected, as before its acceptance.
	rights bool
	denied int
}

type serverStream struct {
	kind   Kind
	conn   uint64
	events chan []byte
}

const queueLength = 100

func newServer(h *fakeHub) *server {
	s := &server{hub: h, streams: map[*serverStream]bool{}, rights: true}
	h.changed = func(k Kind, o runtime.Object, gone types.UID) {
		for stream := range s.streams {
			if stream.kind == k {
				stream.send(s.event(k, o, gone))
			}
		}
	}
	return s
}

func (s *serverStream) send(event []byte) {
	select {
	case s.events <- event:
	default:
		panic("the agent does not read")
	}
}

// with calls f with the hub.
func (s *server) with(f func(h *fakeHub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.hub)
}

// available and renewals return the current values of the hub.
func (s *server) available() (yes bool) {
	s.with(func(h *fakeHub) { yes = h.available() })
	return yes
}

func (s *server) renewals() (n int) {
	s.with(func(h *fakeHub) { n = h.renewals })
	return n
}

func (s *server) event(k Kind, o runtime.Object, gone types.UID) []byte {
	b := codec.Builder{
		ID: "e", Time: time.Now(), Source: "kube", Cluster: cluster1, Extensions: map[string]any{},
		Type: codec.EventType{DataType: dataTypes[k], Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
	}
	if o == nil {
		b.Extensions[codec.ExtResourceID], b.Extensions[codec.ExtDeletionTimestamp] = string(gone), time.Now()
	} else {
		data, err := json.Marshal(o)
		if err != nil {
			s.hub.t.Fatal(err)
		}
		b.Data, b.ContentType = data, codec.ContentTypeJSON
	}
	e, err := b.Event()
	if err != nil {
		s.hub.t.Fatal(err)
	}
	text, err := codec.Marshal(e)
	if err != nil {
		s.hub.t.Fatal(err)
	}
	return text
}

// Publish implements transport.Server.
func (s *server) Publish(_ context.Context, p transport.Peer, event []byte, _ string) (transport.Receipt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := codec.Unmarshal(event)
	if err != nil {
		return transport.Receipt{}, transport.Invalid("event", err)
	}
	t, err := codec.ParseEventType(e.Type())
	if err != nil {
		return transport.Receipt{}, transport.Invalid("type", err)
	}
	if err := s.allowed(p); err != nil {
		return transport.Receipt{}, err
	}
	if t.Action == codec.ResyncRequest {
		return transport.Receipt{}, s.answer(p, t, e.Data())
	}
	for w, a := range subscriptions {
		if dataTypes[a.kind] == t.DataType && a.sub == t.Subresource && a.act == t.Action {
			o := [numKinds]runtime.Object{&clusterv1.ManagedCluster{}, &certificatesv1.CertificateSigningRequest{}, &coordinationv1.Lease{}}[a.kind]
			if err := json.Unmarshal(e.Data(), o); err != nil {
				return transport.Receipt{}, transport.Invalid("data", err)
			}
			return transport.Receipt{}, s.hub.do(RequestKind(w), o)
		}
	}
	return transport.Receipt{}, transport.Invalid("no handler for "+e.Type(), nil)
}

func (s *server) allowed(p transport.Peer) error {
	if p.Role == "agent" && !s.rights {
		s.denied++
		return &transport.Error{Code: transport.CodeDenied, Message: "access denied"}
	}
	return nil
}

// answer sends the objects that the agent does not hold.
func (s *server) answer(p transport.Peer, t codec.EventType, data []byte) error {
	held, err := codec.DecodeVersions(data)
	if err != nil {
		return transport.Invalid("list", err)
	}
	for stream := range s.streams {
		if stream.conn != p.Conn || dataTypes[stream.kind] != t.DataType {
			continue
		}
		has := map[string]bool{}
		for _, o := range s.hub.all(stream.kind) {
			has[string(o.(interface{ GetUID() types.UID }).GetUID())] = true
			stream.send(s.event(stream.kind, o, ""))
		}
		for _, h := range held {
			if !has[h.ResourceID] {
				stream.send(s.event(stream.kind, nil, types.UID(h.ResourceID)))
			}
		}
	}
	return nil
}

// Subscribe implements transport.Server.
func (s *server) Subscribe(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) error {
	stream := &serverStream{kind: -1, conn: p.Conn, events: make(chan []byte, queueLength)}
	for k, d := range dataTypes {
		if d.String() == raw.DataType {
			stream.kind = Kind(k)
		}
	}
	if raw.Hello != (transport.Hello{Heartbeat: time.Minute, Former: raw.Hello.Former}) {
		s.hub.t.Errorf("the agent sends the headers %+v", raw.Hello)
	}
	s.mu.Lock()
	err := s.allowed(p)
	if err == nil {
		s.streams[stream] = true
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	defer s.with(func(*fakeHub) { delete(s.streams, stream) })
	if err := out.Accept(transport.Accepted{SubscriptionID: fmt.Sprint(stream.kind)}); err != nil {
		return err
	}
	for {
		select {
		case e := <-stream.events:
			if err := out.Send(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return transport.GaveUp(ctx, "the call was given up")
		}
	}
}

// secret is an in-memory Store.
type secret struct {
	mu    sync.Mutex
	data  map[string][]byte
	taken bool
}

func (s *secret) Load(context.Context) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.data), nil
}

func (s *secret) Save(_ context.Context, data map[string][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		return fmt.Errorf("secret: %w", ErrTaken)
	}
	s.data = data
	return nil
}

// reader is a fake of a managed cluster.
type reader struct {
	mu    sync.Mutex
	err   error
	facts Facts
}

func (r *reader) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *reader) Healthy(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *reader) Facts(context.Context) (Facts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.facts, nil
}

// program is a Registration that runs against a server, in a synctest bubble.
type program struct {
	*Registration
	t       *testing.T
	server  *server
	secret  *secret
	reader  *reader
	dialers map[string]*mem.Dialer
	// registered is the dialer of the registered agent, unless it is nil.
	registered transport.Dialer
	changed    chan struct{}
	file       string
	log        strings.Builder
	stop       context.CancelFunc
	done       chan error

	used    []*Credential
	retries int
	moves   int
}

func newProgram(t *testing.T) *program {
	p := &program{t: t, server: newServer(newFakeHub(t, time.Now)), secret: &secret{}, reader: &reader{facts: Facts{Healthy: true, Version: "v1.36.0"}}, file: "file1", dialers: map[string]*mem.Dialer{}}
	for _, role := range []string{"bootstrap", "agent"} {
		p.dialers[role] = mem.New(p.server, transport.Peer{Role: role, Name: cluster1})
	}
	return p
}

func (p *program) start() {
	p.t.Helper()
	p.changed, p.done = make(chan struct{}, 1), make(chan error, 1)
	registered := p.registered
	if registered == nil {
		registered = p.dialers["agent"]
	}
	shared := transport.Share(registered)
	var err error
	p.Registration, err = New(Config{
		Cluster: cluster1, Hub: "hub1", Broker: []byte("url: broker:8090\n"),
		Bootstrap: transport.Share(p.dialers["bootstrap"]), Registered: shared,
		BootstrapID: func() (string, error) { return p.file, nil }, Changed: p.changed,
		ActivateCertificate: func(c *Credential) { p.used = append(p.used, c); shared.Renew() },
		MigrateConnections: func(ctx context.Context) error {
			p.moves++
			conn, err := shared.Move(ctx)
			if err != nil {
				return err
			}
			<-time.After(time.Second)
			return conn.Close()
		},
		Retry:  func() { p.retries++ },
		Secret: "s", Store: p.secret, Reader: p.reader,
		Log: slog.New(slog.NewTextHandler(&p.log, nil)), Registry: prometheus.NewRegistry(),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(p.t.Context())
	go func() { p.done <- p.Run(ctx) }() // end receives from done
}

func (p *program) end() {
	p.t.Helper()
	p.stop()
	if err := <-p.done; err != nil {
		p.t.Error(err)
	}
}

func (p *program) wantWaits(text string) {
	p.t.Helper()
	if err := p.Ready(); text == "" && err != nil || !strings.Contains(fmt.Sprint(err), text) {
		p.t.Errorf("it waits for %v, want %q", err, text)
	}
}

func (p *program) own() *Credential { return p.Progress().Credential }

func sleep(d time.Duration) {
	<-time.After(d) // of the bubble
	synctest.Wait()
}

// TestRun_JoinRenewRestart is the lifecycle of a cluster in the fleet. It joins, renews, restarts, is
// disconnected until its certificate has expired, and joins again.
func TestRun_JoinRenewRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram(t)
		p.start()
		sleep(5 * time.Second)
		p.wantWaits("has to approve")
		p.server.with(func(h *fakeHub) { h.approve(h.waiting()[0]) })
		sleep(time.Second)
		p.wantWaits("has not accepted the cluster")
		if p.Progress().As != Registered || p.retries != 1 {
			t.Fatalf("%+v, %d retries", p.Progress(), p.retries)
		}
		p.server.with(func(h *fakeHub) { h.accept(true) })
		sleep(time.Second)
		p.wantWaits("")
		if !p.server.available() || p.retries != 2 {
			t.Errorf("%d retries", p.retries)
		}

		first := p.own()
		p.server.with(func(h *fakeHub) { h.approving = true })
		sleep(time.Hour)
		if p.own() == first || p.Ready() != nil {
			t.Errorf("not renewed: %+v", p.Progress())
		}
		p.end()
		kept := p.own()
		p.start()
		sleep(5 * time.Second)
		p.wantWaits("")
		if string(p.own().Cert) != string(kept.Cert) {
			t.Error("a restart lost the certificate")
		}
		p.end()

		<-time.After(2 * time.Hour)
		p.start()
		sleep(5 * time.Second)
		p.wantWaits("")
		if !strings.Contains(p.log.String(), "by the clock of this cluster its certificate expired") {
			t.Errorf("log: %s", p.log.String())
		}
		p.end()
		for _, c := range p.used {
			if c != nil && strings.Contains(p.log.String(), string(c.Key)) {
				t.Error("the log has a key")
			}
		}
	})
}

// TestRun_RightsComeLate: if a hub grants rights some time after the certificate, the agent retries every few
// seconds.
func TestRun_RightsComeLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram(t)
		p.server.rights, p.server.hub.approving, p.server.hub.accepting = false, true, true
		p.start()
		sleep(10 * time.Minute)
		p.wantWaits("registered, but there is no connection: denied: access denied")
		p.server.with(func(*fakeHub) {
			if n := p.server.denied; n < 60 || n > 300 { // three streams, each refused every 10 to 20 s
				t.Errorf("refused %d times in ten minutes", n)
			}
			p.server.rights = true
		})
		sleep(30 * time.Second)
		p.wantWaits("")
		p.end()
	})
}

// TestRun_LostConnections: cut connections lose no changes, and deletions in the meantime are noticed.
func TestRun_LostConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram(t)
		p.server.hub.approving, p.server.hub.accepting = true, true
		p.start()
		for i := range 20 {
			sleep(time.Duration(i) * 700 * time.Millisecond)
			p.dialers["agent"].Cut()
			p.dialers["bootstrap"].Cut()
			sleep(time.Second)
			p.dialers["agent"].Restore()
			p.dialers["bootstrap"].Restore()
		}
		sleep(2 * time.Minute)
		p.wantWaits("")
		p.dialers["agent"].Cut()
		sleep(time.Second)
		p.server.with(func(h *fakeHub) { h.removeCluster() })
		p.dialers["agent"].Restore()
		sleep(time.Minute)
		p.wantWaits("the hub has no ManagedCluster")
		p.file = "file2"
		p.changed <- struct{}{}
		sleep(10 * time.Second)
		p.wantWaits("")
		p.end()
	})
}

// TestRun_NoWayToTheBroker: an agent that has never reached the broker reports why.
func TestRun_NoWayToTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram(t)
		p.dialers["bootstrap"].Cut()
		p.start()
		sleep(10 * time.Second)
		_, err := p.dialers["bootstrap"].Dial(t.Context())
		p.wantWaits(err.Error())
		p.dialers["bootstrap"].Restore()
		sleep(30 * time.Second)
		p.wantWaits("hawser accept")
		p.end()
	})
}

// TestRun_ClusterSilent: a managed cluster without answers is unavailable after 20 s, and its Lease is renewed
// nevertheless.
func TestRun_ClusterSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram(t)
		p.server.hub.approving, p.server.hub.accepting = true, true
		p.start()
		sleep(30 * time.Second)
		p.reader.set(errors.New("connection refused"))
		sleep(15 * time.Second)
		if !p.server.available() {
			t.Error("not available after 15 s")
		}
		sleep(30 * time.Second)
		p.server.with(func(h *fakeHub) {
			if h.available() || h.cluster.Status.Version.Kubernetes == "" {
				t.Errorf("status %+v", h.cluster.Status)
			}
		})
		before := p.server.renewals()
		sleep(5 * time.Minute)
		if p.server.renewals()-before < 4 {
			t.Errorf("%d renewals", p.server.renewals()-before)
		}
		p.reader.set(nil)
		sleep(15 * time.Second)
		if !p.server.available() {
			t.Error("not available although it answers")
		}
		p.end()
	})
}

// TestNew_ErrorNamesMissingOption: the error names the missing field.
func TestNew_ErrorNamesMissingOption(t *testing.T) {
	for _, c := range []Config{{}, {Cluster: cluster1, Hub: "hub1"}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

// TestRead_Hostile: an event without an object of the stream is rejected, and ends no connection.
func TestRead_Hostile(t *testing.T) {
	build := func(change func(*codec.Builder)) codec.Event {
		b := codec.Builder{ID: "e", Time: time.Now(), Source: "kube", Cluster: cluster1, Type: "cluster.open-cluster-management.io.v1.managedclusters.spec.update_request", ContentType: codec.ContentTypeJSON, Extensions: map[string]any{}}
		change(&b)
		e, err := b.Event()
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	refused := []codec.Event{
		build(func(*codec.Builder) {}),
		build(func(b *codec.Builder) { b.Data = []byte("{") }),
		build(func(b *codec.Builder) { b.Data = []byte("[]") }),
		build(func(b *codec.Builder) { b.Extensions[codec.ExtDeletionTimestamp] = time.Now() }),
		build(func(b *codec.Builder) { b.Extensions[codec.ExtResourceID] = "uid" }),
		build(func(b *codec.Builder) {
			b.Type, b.Data = "coordination.k8s.io.v1.leases.spec.update_request", []byte("{}")
		}),
		build(func(b *codec.Builder) { b.Type, b.Data = codec.TypeCheckpoint, []byte("{}") }),
	}
	for i, e := range refused {
		if s, err := read(Clusters, e); err == nil {
			t.Errorf("%d is read as %+v", i, s)
		}
	}
	c := newRig(t).core
	for _, o := range []runtime.Object{
		&clusterv1.ManagedCluster{}, &certificatesv1.CertificateSigningRequest{}, &coordinationv1.Lease{},
	} {
		c.StoreObject(o) // without an owner
	}
	if held := slices.Concat(c.ObjectUIDs(Clusters), c.ObjectUIDs(Requests), c.ObjectUIDs(Leases)); !slices.Equal(held, []types.UID{noUID}) {
		t.Errorf("holds %v", held)
	}
}

// TestMetrics_AreDocumented: docs/metrics.md and the registry have the same series.
func TestMetrics_AreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	newMetrics(registry, func() Progress { return Progress{} })
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if row := fmt.Sprintf("| `%s` | %s |", f.GetName(), strings.ToLower(f.GetType().String())); !strings.Contains(string(doc), row) {
			t.Errorf("docs/metrics.md has no row %s", row)
		}
	}
	if n := strings.Count(string(doc), "| `hawser_agent_registration_"); n != len(families) {
		t.Errorf("docs/metrics.md has %d rows of a registration, there are %d metrics", n, len(families))
	}
}
