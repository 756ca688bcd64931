package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// hub is the source that serves registration. It publishes its keys, and reviews tokens.
type hub struct {
	t      *testing.T
	conn   transport.Conn
	issuer *testkit.Issuer

	ended chan error

	mu       sync.Mutex
	id       string // id of the subscription
	reviewed []*hawserv1.TokenReview
}

// serveHub serves until the test ends. It returns once the source is subscribed.
func (p *process) serveHub(d pki.Dir) *hub {
	p.t.Helper()
	h := &hub{t: p.t, conn: p.connect(d, pki.Source, "hub"), issuer: testkit.NewIssuer(p.t, "https://hub.example"), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan string, 1)
	go func() { // the test receives the result
		s := transport.Subscription{Filter: transport.Filter{Source: "hub", DataType: codec.Registrations}, Hello: transport.Hello{Protocol: transport.Protocol}}
		h.ended <- h.conn.Subscribe(ctx, s, func(a transport.Accepted) { ready <- a.SubscriptionID }, h.answer)
	}()
	p.t.Cleanup(func() {
		stop()
		if err := <-h.ended; err == nil {
			p.t.Error("a subscription ended without an error")
		}
		if err := h.conn.Close(); err != nil {
			p.t.Error(err)
		}
	})
	select {
	case id := <-ready:
		h.mu.Lock()
		h.id = id
		h.mu.Unlock()
		e, err := codec.NewRegistrationKeys(h.params(), &hawserv1.RegistrationKeys{Issuer: h.issuer.Name, Jwks: h.issuer.Keys()})
		if err == nil {
			_, err = h.conn.Publish(p.t.Context(), e, id)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	case err := <-h.ended:
		p.t.Fatal(err)
	}
	return h
}

func (h *hub) params() codec.SyncParams {
	return codec.SyncParams{ID: uuid.NewString(), Time: time.Now(), Source: "hub", Owner: "hub"}
}

// answer accepts the tokens of the bootstrap account only.
func (h *hub) answer(ctx context.Context, e codec.Event) error {
	r, err := codec.ParseRegistrationRequest(e)
	if err != nil || r.GetReview() == nil {
		return err
	}
	h.mu.Lock()
	h.reviewed = append(h.reviewed, r.GetReview())
	id := h.id
	h.mu.Unlock()
	answer := &hawserv1.RegistrationAnswer{Id: r.GetId(), Review: &hawserv1.TokenReviewResult{
		Authenticated: true, User: "system:serviceaccount:ns:joins", Audiences: r.GetReview().GetAudiences(),
	}}
	out, err := codec.NewRegistrationAnswer(h.params(), answer)
	if err == nil {
		_, err = h.conn.Publish(ctx, out, id)
	}
	return err
}

// subscribeWith returns the result of a subscription to ManagedClusters of c1 with a token.
func (p *process) subscribeWith(d pki.Dir, file string, t codec.DataType) error {
	p.t.Helper()
	driver := identity.Driver{CAFile: d.CACert(), TokenFile: file}
	creds, err := driver.Client("", func(err error) { p.t.Error(err) })
	if err != nil {
		p.t.Fatal(err)
	}
	dialer, err := transportgrpc.NewDialer(transportgrpc.Options{Target: p.grpc, Credentials: creds, Token: driver.Bearer})
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := dialer.Dial(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			p.t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	accepted := false
	s := transport.Subscription{Filter: transport.Filter{Cluster: "c1", DataType: t}}
	err = c.Subscribe(ctx, s, func(transport.Accepted) { accepted = true; cancel() }, func(context.Context, codec.Event) error { return nil })
	if accepted {
		return nil
	}
	return err
}

// TestProgram_Tokens: the holder of a token of a configured account may only request that a cluster joins,
// after the hub has verified the token.
func TestProgram_Tokens(t *testing.T) {
	d := certificates(t)
	file, token := filepath.Join(t.TempDir(), "broker.yaml"), filepath.Join(t.TempDir(), "token")
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, `
identities: [{commonName: 'hawser:source:hub', role: source, name: hub}]
registration: {source: hub}
tokens: {audiences: [hawser], mapping: [{user: "system:serviceaccount:ns:joins", role: bootstrap}]}
`)
	p := launch(t,
		"--config", file, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", filepath.Join(t.TempDir(), "data"), "--audit", "all",
		"--tls-cert-file", d.Cert(pki.Broker, "broker"), "--tls-key-file", d.Key(pki.Broker, "broker"), "--client-ca-file", d.CACert())
	defer p.end()
	write(token, testkit.NewIssuer(t, "https://hub.example").Token("ns", "joins", nil)+"\n")
	if err := p.subscribeWith(d, token, codec.ManagedClusters); transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("before the hub's source has come: %v", err)
	}
	h := p.serveHub(d)
	if err := p.subscribeWith(d, token, codec.ManagedClusters); transport.CodeOf(err) != transport.CodeUnauthenticated {
		t.Errorf("signed by another issuer: %v", err)
	}
	good := h.issuer.Token("ns", "joins", nil)
	write(token, good+"\n")
	for range 2 {
		if err := p.subscribeWith(d, token, codec.ManagedClusters); err != nil {
			t.Error(err)
		}
	}
	if err := p.subscribeWith(d, token, codec.ManifestBundles); transport.CodeOf(err) != transport.CodeDenied {
		t.Errorf("works: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.reviewed) != 1 || h.reviewed[0].GetToken() != good || strings.Join(h.reviewed[0].GetAudiences(), " ") != "hawser" {
		t.Errorf("%d reviews", len(h.reviewed))
	}
	if _, body := p.get("/metrics"); !strings.Contains(body, `hawser_broker_token_reviews_total{result="good"} 1`) {
		t.Error("the metrics do not count the review")
	}
	if strings.Contains(p.out.String(), good[:20]) || strings.Contains(p.out.String(), "eyJ") {
		t.Error("the audit stream contains the token")
	}
}
