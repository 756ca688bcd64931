package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/pki"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newAuthority(t *testing.T, valid pki.Period) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority("test authority", valid)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t *testing.T, a *pki.Authority, req pki.Request) tls.Certificate {
	t.Helper()
	pair, err := a.Issue(req)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestSubject(t *testing.T) {
	type subject struct{ CommonName, Organization string }
	for role, want := range map[pki.Role]subject{
		pki.Agent:    {"system:open-cluster-management:x1:agent", "system:open-cluster-management:x1"},
		pki.Source:   {"hawser:source:x1", ""},
		pki.Operator: {"hawser:operator:x1", ""},
		pki.Viewer:   {"hawser:viewer:x1", ""},
		pki.Broker:   {"hawser:broker:x1", ""},
		pki.Webhook:  {"hawser:webhook:x1", ""},
	} {
		var got subject
		got.CommonName, got.Organization = pki.Subject(role, "x1")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Subject(%s) (-want +got):\n%s", role, diff)
		}
	}
}

func TestParseRole(t *testing.T) {
	for _, want := range pki.Roles() {
		if got, err := pki.ParseRole(string(want)); err != nil || got != want {
			t.Errorf("ParseRole(%q) = %q, %v", want, got, err)
		}
	}
	_, err := pki.ParseRole("admin")
	if !errors.Is(err, pki.ErrUnknownRole) || !strings.Contains(err.Error(), "broker, agent, source, operator, viewer, webhook") {
		t.Errorf("ParseRole(admin): %v; want ErrUnknownRole and the roles there are", err)
	}
}

// An issued certificate works in a real handshake for its own purpose, and for no other.
func TestAuthority_Handshake(t *testing.T) {
	now := time.Now()
	a := newAuthority(t, pki.Starting(now, time.Hour))
	unknownCA := newAuthority(t, pki.Starting(now, time.Hour))
	valid := pki.Starting(now, time.Hour)
	server := issue(t, a, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"broker.example", "127.0.0.1", "::1"}, Valid: valid})
	agent := issue(t, a, pki.Request{Role: pki.Agent, Name: "cluster1", Valid: valid})

	for _, tc := range []struct {
		name           string
		server, client tls.Certificate
		host           string
		wantErr        string
	}{
		{"by name", server, agent, "broker.example", ""},
		{"webhook", issue(t, a, pki.Request{Role: pki.Webhook, Name: "w", Hosts: []string{"hawser-hub-source.hawser.svc"}, Valid: valid}), agent, "hawser-hub-source.hawser.svc", ""},
		{"by address", server, agent, "127.0.0.1", ""},
		{"by IPv6 address", server, agent, "::1", ""},
		{"another host", server, agent, "other.example", "not other.example"},
		{"agent as server", agent, agent, "broker.example", "not valid for any names"},
		{"broker as client", server, server, "broker.example", "incompatible key usage"},
		{
			"client of another CA", server,
			issue(t, unknownCA, pki.Request{Role: pki.Agent, Name: "cluster1", Valid: valid}),
			"broker.example", "unknown authority",
		},
		{
			"expired client", server,
			issue(t, a, pki.Request{Role: pki.Agent, Name: "old", Valid: pki.Period{NotBefore: now.Add(-2 * time.Minute), NotAfter: now.Add(-time.Minute)}}),
			"broker.example", "expired",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := handshake(a.Pool(), tc.server, tc.client, tc.host)
			if tc.wantErr == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil {
				t.Fatalf("handshake succeeded, want an error about %q", tc.wantErr)
			}
			if !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("handshake: %v; want an error about %q", err, tc.wantErr)
			}
		})
	}
}

// handshake runs both sides of a mutual handshake, with one byte after it. A TLS 1.3 client learns of a
// rejection only from its first read.
func handshake(pool *x509.CertPool, server, client tls.Certificate, host string) error {
	here, there := net.Pipe()
	s := tls.Server(there, &tls.Config{
		Certificates: []tls.Certificate{server},
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	})
	c := tls.Client(here, &tls.Config{
		Certificates: []tls.Certificate{client},
		RootCAs:      pool,
		ServerName:   host,
		MinVersion:   tls.VersionTLS13,
	})
	served := make(chan error, 1)
	go func() {
		_, err := s.Write([]byte{1})
		served <- errors.Join(err, there.Close())
	}()
	_, err := c.Read(make([]byte, 1))
	return errors.Join(err, here.Close(), <-served)
}

func TestAuthority_IssueSetsSubjectAndLifetime(t *testing.T) {
	a := newAuthority(t, pki.Period{NotBefore: epoch, NotAfter: epoch.Add(time.Hour)})
	cert := issue(t, a, pki.Request{Role: pki.Agent, Name: "cluster1", Valid: pki.Starting(epoch, 48*time.Hour)})
	if got := cert.Leaf.Subject.String(); got != "CN=system:open-cluster-management:cluster1:agent,O=system:open-cluster-management:cluster1" {
		t.Errorf("subject %q", got)
	}
	if want := epoch.Add(time.Hour); !cert.Leaf.NotAfter.Equal(want) {
		t.Errorf("valid until %v, want %v: no longer than the authority", cert.Leaf.NotAfter, want)
	}
	if want := epoch.Add(-5 * time.Minute); !cert.Leaf.NotBefore.Equal(want) {
		t.Errorf("valid from %v, want %v", cert.Leaf.NotBefore, want)
	}
	if cert.Leaf.IsCA {
		t.Error("an issued certificate may sign others")
	}
}

func TestAuthority_IssueRefuses(t *testing.T) {
	valid := pki.Starting(epoch, time.Hour)
	a := newAuthority(t, valid)
	for _, tc := range []struct {
		name string
		req  pki.Request
		want error
	}{
		{"unknown role", pki.Request{Role: "admin", Name: "x", Valid: valid}, pki.ErrUnknownRole},
		{"no name", pki.Request{Role: pki.Source, Valid: valid}, pki.ErrInvalidName},
		{"a name that is a path", pki.Request{Role: pki.Source, Name: "../x", Valid: valid}, pki.ErrInvalidName},
		{"a name with a colon", pki.Request{Role: pki.Agent, Name: "x:agent", Valid: valid}, pki.ErrInvalidName},
		{"a broker without hosts", pki.Request{Role: pki.Broker, Name: "b", Valid: valid}, pki.ErrInvalidHosts},
		{"a broker with a URL", pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"https://b"}, Valid: valid}, pki.ErrInvalidHosts},
		{"an agent with hosts", pki.Request{Role: pki.Agent, Name: "c", Hosts: []string{"c"}, Valid: valid}, pki.ErrInvalidHosts},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := a.Issue(tc.req); !errors.Is(err, tc.want) {
				t.Errorf("Issue: %v, want %v", err, tc.want)
			}
		})
	}
	t.Run("never valid", func(t *testing.T) {
		late := pki.Request{Role: pki.Source, Name: "s", Valid: pki.Starting(epoch.Add(2*time.Hour), time.Hour)}
		if _, err := a.Issue(late); err == nil || !strings.Contains(err.Error(), "never be valid") {
			t.Errorf("Issue after the authority ended: %v", err)
		}
	})
}

func TestParseAuthority_Refuses(t *testing.T) {
	valid := pki.Starting(epoch, time.Hour)
	a, other := newAuthority(t, valid), newAuthority(t, valid)
	leaf, err := a.Issue(pki.Request{Role: pki.Source, Name: "s", Valid: valid})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		cert, key []byte
	}{
		{"nothing", nil, nil},
		{"another's key", a.CertificatePEM(), other.KeyPEM()},
		{"a certificate that may not sign", leaf.CertPEM, leaf.KeyPEM},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := pki.ParseAuthority(tc.cert, tc.key); !errors.Is(err, pki.ErrUnusableAuthority) {
				t.Errorf("ParseAuthority: %v, want ErrUnusableAuthority", err)
			}
		})
	}
}
