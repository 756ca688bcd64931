package registration

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	"github.com/hawser-io/hawser/pkg/transport/mem"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const source = "hub1"

// hubSource is the source that serves registration, with a fakeHub behind it.
type hubSource struct {
	t       *testing.T
	session *session.Session

	mu      sync.Mutex
	hub     *fakeHub
	pending []*hawserv1.RegistrationObject
	names   map[types.UID]string
}

func newHubSource(t *testing.T, h *fakeHub, d transport.Dialer) *hubSource {
	s := &hubSource{t: t, hub: h, names: map[types.UID]string{}}
	h.changed = func(k Kind, o runtime.Object, gone types.UID) { s.pending = append(s.pending, s.object(k, o, gone)) }
	s.session = session.New(session.Config{Dialer: d, Filter: transport.Filter{Source: source, DataType: codec.Registrations}, Handler: s, Log: slog.New(slog.DiscardHandler)})
	return s
}

// object returns the message to the broker about a changed or deleted object.
func (s *hubSource) object(k Kind, o runtime.Object, gone types.UID) *hawserv1.RegistrationObject {
	m := &hawserv1.RegistrationObject{DataType: dataTypes[k].String(), Cluster: cluster1}
	if o == nil {
		m.Name = s.names[gone]
		return m
	}
	meta := o.(metav1.Object)
	s.names[meta.GetUID()] = meta.GetName()
	m.Name, m.Uid, m.ResourceVersion = meta.GetName(), string(meta.GetUID()), meta.GetResourceVersion()
	var err error
	if m.Json, err = json.Marshal(o); err != nil {
		s.t.Error(err)
	}
	switch o := o.(type) {
	case *clusterv1.ManagedCluster:
		m.ManagedClusterStatus = &hawserv1.ManagedClusterStatus{Accepted: o.Spec.HubAcceptsClient}
	case *certificatesv1.CertificateSigningRequest:
		m.Requester = o.Annotations["open-cluster-management.io/csr-user"]
	}
	return m
}

func (s *hubSource) params() codec.SyncParams {
	return codec.SyncParams{ID: "e", Time: time.Now(), Source: source, Owner: source}
}

// with applies f to the hub, and sends the changes to the broker.
func (s *hubSource) with(f func(h *fakeHub)) {
	s.mu.Lock()
	f(s.hub)
	changed := s.pending
	s.pending = nil
	s.mu.Unlock()
	if len(changed) > 0 {
		s.publish(codec.NewRegistrationObjects(s.params(), &hawserv1.RegistrationObjects{Objects: changed}))
	}
}

func (s *hubSource) publish(e codec.Event, err error) {
	if err == nil {
		_, err = s.session.Publish(context.Background(), e)
	}
	if err != nil && transport.CodeOf(err) != transport.CodeUnavailable { // a cut
		s.t.Error(err)
	}
}

// Hello implements session.Handler.
func (s *hubSource) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }

// Subscribed implements session.Handler.
func (s *hubSource) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = nil
	all := &hawserv1.RegistrationObjects{SnapshotComplete: true}
	for k := range numKinds {
		for _, o := range s.hub.all(k) {
			all.Objects = append(all.Objects, s.object(k, o, ""))
		}
	}
	e, err := codec.NewRegistrationObjects(s.params(), all)
	return []codec.Event{e}, err
}

// Handle implements session.Handler.
func (s *hubSource) Handle(_ context.Context, e codec.Event) error {
	r, err := codec.ParseRegistrationRequest(e)
	if err != nil {
		s.t.Errorf("%s: %v", e.Type(), err)
		return nil
	}
	for range r.GetRenewals().GetRenewals() {
		s.with(func(h *fakeHub) {
			if h.lease != nil {
				h.renewals++
				h.lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
				h.showLease()
			}
		})
	}
	if request := r.GetAgentRequest(); request != nil {
		a := &hawserv1.RegistrationAnswer{Id: r.GetId()}
		s.with(func(h *fakeHub) { a.Error = s.do(h, request) })
		s.publish(codec.NewRegistrationAnswer(s.params(), a))
	}
	return nil
}

// do executes a request of an agent, and returns the Status of a refusal.
func (s *hubSource) do(h *fakeHub, request *hawserv1.AgentRequest) []byte {
	e, err := codec.Unmarshal(request.GetEvent())
	if err != nil {
		s.t.Error(err)
		return nil
	}
	for w, a := range subscriptions {
		if (codec.EventType{DataType: dataTypes[a.kind], Subresource: a.sub, Action: a.act}).String() != e.Type() {
			continue
		}
		o := [numKinds]runtime.Object{&clusterv1.ManagedCluster{}, &certificatesv1.CertificateSigningRequest{}, &coordinationv1.Lease{}}[a.kind]
		if err := json.Unmarshal(e.Data(), o); err != nil {
			s.t.Error(err)
		}
		if r, ok := o.(*certificatesv1.CertificateSigningRequest); ok {
			r.Annotations = map[string]string{"open-cluster-management.io/csr-user": request.GetUser()}
		}
		return statusOf(h.do(RequestKind(w), o))
	}
	s.t.Errorf("no handler for %s", e.Type())
	return nil
}

func statusOf(err error) []byte {
	var e *transport.Error
	if !errors.As(err, &e) {
		return nil
	}
	var status apierrors.StatusError
	if json.Unmarshal([]byte(e.Message), &status) != nil {
		return nil
	}
	b, err := json.Marshal(status.ErrStatus)
	if err != nil {
		return nil
	}
	return b
}

// Disconnected implements session.Handler.
func (s *hubSource) Disconnected(error) {}

// TestBroker_JoinAndStay is the lifecycle of a cluster through a Hawser broker: join, acceptance and renewal.
// Then the connection of the hub's source is cut, the acceptance is withdrawn, the certificate expires, and the
// cluster is deleted.
func TestBroker_JoinAndStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Registration: source}})
		p := newProgram(t)
		link := b.Dialer(identity.Identity{Role: identity.Source, Name: source})
		s := newHubSource(t, newFakeHub(t, time.Now), link)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.session.Run(ctx) }()
		p.dialers["bootstrap"] = mem.New(b.Broker, transport.Peer{Role: "bootstrap", Name: "boot", User: "boot", Groups: []string{"system:bootstrappers:managedcluster"}})
		p.dialers["agent"] = mem.New(b.Broker, transport.Peer{Role: "agent", Name: cluster1, User: "system:open-cluster-management:cluster1:a"})
		p.start()

		sleep(5 * time.Second)
		p.wantWaits("has to approve")
		s.with(func(h *fakeHub) { h.approve(h.waiting()[0]) })
		sleep(5 * time.Second)
		p.wantWaits("has not accepted the cluster")
		s.with(func(h *fakeHub) { h.accept(true) })
		sleep(2 * time.Second)
		p.wantWaits("")
		s.with(func(h *fakeHub) {
			h.approving = true
			if !h.available() {
				t.Errorf("status %+v", h.cluster.Status)
			}
		})
		first := p.own()
		sleep(2 * time.Hour)
		p.wantWaits("")
		s.with(func(h *fakeHub) {
			if h.renewals < 90 || h.reports > 3 {
				t.Errorf("%d renewals and %d reports in two hours", h.renewals, h.reports)
			}
		})
		if p.own() == first {
			t.Error("not renewed in two hours")
		}
		if p.moves != 2 {
			t.Errorf("%d times to a new certificate in two hours", p.moves)
		}

		link.Cut()
		sleep(time.Minute)
		link.Restore()
		sleep(time.Minute)
		s.with(func(h *fakeHub) { h.accept(false) })
		sleep(5 * time.Second)
		p.wantWaits("has not accepted the cluster")
		sleep(3 * time.Hour) // the certificate expires in the meantime
		s.with(func(h *fakeHub) { h.accept(true) })
		sleep(time.Minute)
		p.wantWaits("")

		s.with(func(h *fakeHub) { h.removeCluster() })
		sleep(time.Minute)
		p.wantWaits("the hub has no ManagedCluster")
		p.end()
		p.start() // it lists the objects, and there are none
		sleep(time.Minute)
		p.wantWaits("the hub has no ManagedCluster")
		p.end()
		link.Cut()
		p.start()
		sleep(10 * time.Minute)
		p.wantWaits("the hub has not shown the ManagedCluster cluster1 yet")
		link.Restore()
		sleep(time.Minute)
		p.wantWaits("the hub has no ManagedCluster")
		s.with(func(h *fakeHub) { h.accepting = true })
		p.file = "file2"
		p.changed <- struct{}{}
		sleep(10 * time.Second)
		p.wantWaits("")
		p.end()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.Stop()
	})
}

// TestBroker_AnotherSignerOfTheSameName: the hub was rebuilt, and its new signer has the name of the old one. So
// the agent uses its old certificate and is refused in the handshake, before there is a connection. It then
// requests a certificate with its present bootstrap file.
func TestBroker_AnotherSignerOfTheSameName(t *testing.T) {
	b := testkit.StartBroker(t, testkit.Options{Port: true, Broker: broker.Config{Registration: source}})
	client := ocm.Subject{Cluster: cluster1, Agent: "a"}
	old := testkit.NewCA(t).Sign(x509.Certificate{Subject: pkix.Name{CommonName: client.CommonName(), Organization: client.Organizations()}})
	der, err := x509.MarshalPKCS8PrivateKey(old.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	p := newProgram(t)
	p.secret.data = SavedState{Cluster: cluster1, Agent: client.Agent, Hub: "hub1", Bootstrap: "file0", Credential: &Credential{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: old.Certificate[0]}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}}.Data()
	registered, err := transportgrpc.NewDialer(transportgrpc.Options{Target: b.Addr, Credentials: b.CA.Showing(old)})
	if err != nil {
		t.Fatal(err)
	}
	p.dialers["bootstrap"] = mem.New(b.Broker, transport.Peer{Role: "bootstrap", Name: "boot", User: "boot", Groups: []string{"system:bootstrappers:managedcluster"}})
	p.registered = registered
	p.start()
	for end := time.After(time.Minute); p.Progress().As != Bootstrapping; {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-end:
			t.Fatalf("it waits for %v", p.Ready())
		}
	}
	if p.own() == nil {
		t.Error("the old certificate is thrown away, and may be taken again")
	}
	p.end()
}
