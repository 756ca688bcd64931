package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// publish reports the authorities that sign for clusters; nil: the source does not know them.
func (h *hub) publish(authorities []byte) {
	h.t.Helper()
	h.mu.Lock()
	id := h.id
	h.mu.Unlock()
	e, err := codec.NewRegistrationKeys(h.params(), &hawserv1.RegistrationKeys{Issuer: h.issuer.Name, Jwks: h.issuer.Keys(), ClientAuthorities: authorities})
	if err == nil {
		_, err = h.conn.Publish(h.t.Context(), e, id)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// member is an agent of c1 with a certificate of the hub's signer, while it is connected.
type member struct {
	ended chan error
	stop  context.CancelFunc
}

// attempt connects the agent once; the error is the rejection.
func (p *process) attempt(d, signer pki.Dir) (*member, error) {
	p.t.Helper()
	files := identity.Files{CA: d.CACert(), Cert: signer.Cert(pki.Agent, "c1"), Key: signer.Key(pki.Agent, "c1")}
	creds, err := files.Client("", func(err error) { p.t.Error(err) })
	if err != nil {
		p.t.Fatal(err)
	}
	dialer, err := transportgrpc.NewDialer(transportgrpc.Options{Target: p.grpc, Credentials: creds})
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := dialer.Dial(p.t.Context())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(p.t.Context(), patience)
	accepted, m := make(chan struct{}), &member{ended: make(chan error, 1), stop: stop}
	go func() { // attempt or leaves receives the result
		s := transport.Subscription{Filter: transport.Filter{Cluster: "c1", DataType: codec.ManagedClusters}}
		err := c.Subscribe(ctx, s, func(transport.Accepted) { close(accepted) }, func(context.Context, codec.Event) error { return nil })
		_ = c.Close() // the broker may have closed the connection
		m.ended <- err
	}()
	select {
	case <-accepted:
		return m, nil
	case err := <-m.ended:
		stop()
		return nil, err
	}
}

// comes waits until the agent is accepted.
func (p *process) comes(d, signer pki.Dir) *member {
	p.t.Helper()
	late := time.After(patience)
	for {
		m, err := p.attempt(d, signer)
		if err == nil {
			return m
		}
		select {
		case <-late:
			p.t.Fatal(err)
		case <-time.After(100 * time.Millisecond): // the broker limits failed handshakes per address
		}
	}
}

// leaves ends the connection of the agent.
func (m *member) leaves(t *testing.T) {
	t.Helper()
	m.stop()
	if err := <-m.ended; err == nil {
		t.Error("a subscription ended without an error")
	}
}

// refused waits until the agent is rejected. Its library then sends no certificate.
func (p *process) refused(d, signer pki.Dir) {
	p.t.Helper()
	for late := time.After(patience); ; {
		m, err := p.attempt(d, signer)
		if err == nil {
			m.leaves(p.t)
		} else if transport.CodeOf(err) == transport.CodeUnauthenticated {
			return
		}
		select {
		case <-late:
			p.t.Fatalf("it is let in, or not refused: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestProgram_SignerOfTheHub: OCM's signer rotates, as it does each year, and the hub's source reports it.
//
// Scenario:
//
//	t1: the broker has the CA of programs in its file, and no CA of clusters.
//	t2: the source reports OCM's current CA: clusters with its certificates are accepted.
//	t3: the broker restarts while the source is disconnected: they are still accepted.
//	t4: the source reconnects and does not know the CA: they are still accepted.
//	t5: OCM has another CA, and the source reports it: only certificates of the new CA are accepted.
//	t6: the hub has no OCM any more: the connections of its clusters end.
func TestProgram_SignerOfTheHub(t *testing.T) {
	d := certificates(t)
	ocm := func() pki.Dir {
		s := pki.Dir(t.TempDir())
		if _, err := s.Init("ocm", pki.Starting(time.Now(), time.Hour), false); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: pki.Starting(time.Now(), time.Hour)}, false); err != nil {
			t.Fatal(err)
		}
		return s
	}
	authority := func(s pki.Dir) []byte {
		b, err := os.ReadFile(s.CACert())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	file, data := filepath.Join(t.TempDir(), "broker.yaml"), filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, []byte("identities: [{commonName: 'hawser:source:hub', role: source, name: hub}]\nregistration: {source: hub}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--config", file, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", data,
		"--tls-cert-file", d.Cert(pki.Broker, "broker"), "--tls-key-file", d.Key(pki.Broker, "broker"), "--client-ca-file", d.CACert(),
	}
	first, second := ocm(), ocm()
	t.Run("reported", func(t *testing.T) {
		p := launch(t, args...)
		t.Cleanup(p.end) // ends after its hub
		p.refused(d, first)
		p.serveHub(d).publish(authority(first))
		p.comes(d, first).leaves(t)
	})
	t.Run("restarted", func(t *testing.T) {
		p := launch(t, args...)
		t.Cleanup(p.end)
		p.comes(d, first).leaves(t)
		h := p.serveHub(d)
		h.publish(nil)
		h.publish([]byte("nothing of use"))
		p.comes(d, first).leaves(t)
		h.publish(authority(second))
		m := p.comes(d, second)
		p.refused(d, first)
		h.publish([]byte{})
		if err := <-m.ended; transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("the connection ended with %v", err)
		}
		m.stop()
		p.refused(d, second)
	})
	files, err := filepath.Glob(filepath.Join(data, "agent-ca.*"))
	if err != nil || len(files) != 0 {
		t.Errorf("%s, %v", strings.Join(files, " "), err)
	}
}
