package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// tried subscribes once as c1. It returns nil if the subscription was accepted, otherwise the error.
func (p *process) tried(d pki.Dir) error {
	p.t.Helper()
	c := p.connect(d, pki.Agent, "c1")
	accepted := false
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	s := transport.Subscription{Filter: transport.Filter{Cluster: "c1", DataType: codec.ManifestBundles}}
	err := c.Subscribe(ctx, s, func(transport.Accepted) { accepted = true; cancel() }, func(context.Context, codec.Event) error { return nil })
	if closed := c.Close(); closed != nil {
		p.t.Error(closed)
	}
	if accepted {
		return nil
	}
	return err
}

// operate calls the broker as its operator.
func (p *process) operate(d pki.Dir, do func(hawserv1.AdminServiceClient) error) {
	p.t.Helper()
	creds, err := identity.Files{CA: d.CACert(), Cert: d.Cert(pki.Operator, "olga"), Key: d.Key(pki.Operator, "olga")}.Client("", func(err error) { p.t.Error(err) })
	if err != nil {
		p.t.Fatal(err)
	}
	cc, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	if err := do(hawserv1.NewAdminServiceClient(cc)); err != nil {
		p.t.Fatal(err)
	}
	if err := cc.Close(); err != nil {
		p.t.Error(err)
	}
}

// TestProgram_Denials: a denied agent loses its subscription, with a remedy in the error. It is rejected after
// a restart of the broker, and by a broker with a backup. The audit stream names the operator.
func TestProgram_Denials(t *testing.T) {
	d := certificates(t)
	file := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(file, []byte("identities: [{commonName: 'hawser:operator:olga', role: operator, name: olga}]\naudit: rejections\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data, copied := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "copy")
	args := []string{
		"--config", file, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--tls-cert-file", d.Cert(pki.Broker, "broker"), "--tls-key-file", d.Key(pki.Broker, "broker"), "--client-ca-file", d.CACert(),
	}
	p := launch(t, append(args, "--data-dir", data)...)
	agent := p.connect(d, pki.Agent, "c1")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	accepted, ended := make(chan struct{}), make(chan error, 1)
	go func() { // the test receives the result
		s := transport.Subscription{Filter: transport.Filter{Cluster: "c1", DataType: codec.ManifestBundles}}
		ended <- agent.Subscribe(ctx, s, func(transport.Accepted) { close(accepted) }, func(context.Context, codec.Event) error { return nil })
	}()
	<-accepted
	p.operate(d, func(c hawserv1.AdminServiceClient) error {
		_, err := c.Deny(ctx, &hawserv1.DenyRequest{Subject: "agent/c1", Reason: "lost"})
		return err
	})
	if err := <-ended; transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("its subscription ended with %v", err)
	}
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
	p.end()
	for _, want := range []string{
		`"event":"ended","addr":`, `"reason":"denied"`, `"identity":"operator/olga"`, `"method":"/hawser.v1.AdminService/Deny"`, `"subject":"agent/c1"`,
	} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("the audit stream lacks %s:\n%s", want, p.out)
		}
	}

	if _, err := pebble.Clone(ctx, data, copied); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"after a restart": data, "of a backup": copied} {
		p = launch(t, append(args, "--data-dir", dir)...)
		if err := p.tried(d); transport.CodeOf(err) != transport.CodeUnauthenticated || !strings.Contains(err.Error(), "hawser allow agent/c1") {
			t.Errorf("%s: %v", name, err)
		}
		p.operate(d, func(c hawserv1.AdminServiceClient) error {
			_, err := c.Allow(ctx, &hawserv1.AllowRequest{Subject: "agent/c1"})
			return err
		})
		if err := p.tried(d); err != nil {
			t.Errorf("%s, when it is allowed: %v", name, err)
		}
		p.end()
	}
}

// TestProgram_ExpiredCertificate: a broker whose own certificate has expired is not ready, and names the file.
func TestProgram_ExpiredCertificate(t *testing.T) {
	d := certificates(t)
	expired := pki.Request{Role: pki.Broker, Name: "old", Hosts: []string{"127.0.0.1"}, Valid: pki.Starting(time.Now(), -time.Minute)}
	if _, err := d.Issue(expired, false); err != nil {
		t.Fatal(err)
	}
	p := launch(t, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--tls-cert-file", d.Cert(pki.Broker, "old"), "--tls-key-file", d.Key(pki.Broker, "old"), "--client-ca-file", d.CACert())
	if code, body := p.get("/readyz"); code == http.StatusOK || !strings.Contains(body, d.Cert(pki.Broker, "old")) {
		t.Errorf("readyz: %d %s", code, body)
	}
	p.end()
}
