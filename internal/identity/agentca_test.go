package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/pki"
)

// TestServer_HubCA checks that clients with a certificate of a CA in the file HubCA are accepted, as agents
// only. The file appears, changes and disappears without a restart.
func TestServer_HubCA(t *testing.T) {
	own, sent, now := authority(t, "own"), authority(t, "reported"), time.Now()
	broker, agent := side{t, t.TempDir()}, side{t, t.TempDir()}
	broker.renew(own, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}}, own)
	agent.renew(sent, pki.Request{Role: pki.Agent, Name: "c1"}, own)
	f := broker.files()
	f.HubCA = filepath.Join(broker.dir, "agent-ca.crt")
	var reported []error
	s := loaderFor(t, f, func(err error) { reported = append(reported, err) }, &now).server()
	pair, err := tls.LoadX509KeyPair(agent.files().Cert, agent.files().Key)
	if err != nil {
		t.Fatal(err)
	}
	client := credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: own.Pool(), ServerName: "127.0.0.1",
		// The client sends its certificate for any CAs that the server names. By default it would send none.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	})
	// verified returns the roles for which the present CAs accept the certificate.
	verified := func() (roles []Role) {
		t.Helper()
		for _, r := range []Role{Agent, Source, Operator, Viewer, Bootstrap, ""} {
			if _, err := Covers(s.Authorities().For(r), []*x509.Certificate{pair.Leaf}, now); err == nil {
				roles = append(roles, r)
			}
		}
		return roles
	}
	comes := func(want bool, why string) {
		t.Helper()
		now = now.Add(checkEvery)
		if _, err := handshake(t, client, s); (err == nil) != want {
			t.Errorf("%s: %v", why, err)
		}
	}
	keep := func(text []byte, want bool) {
		t.Helper()
		if changed, err := KeepHubCA(f.HubCA, text, time.Now()); err != nil || changed != want {
			t.Errorf("kept: %v, %v", changed, err)
		}
		// If a file is replaced twice within one tick of the file system's clock, by content of the same size, both
		// look the same. In production the writes are minutes apart, as here.
		if err := os.Chtimes(f.HubCA, now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}

	comes(false, "the hub has not reported the CA")
	if a := s.Authorities(); a.All() != a.For(Source) || len(verified()) != 0 {
		t.Errorf("without that file the CA signs for: %v", verified())
	}
	before := s.Authorities()
	keep(sent.CertificatePEM(), true)
	comes(true, "the hub reports the CA")
	if got := verified(); !slices.Equal(got, []Role{Agent}) || s.Authorities() == before {
		t.Errorf("it signs for %q", got)
	}
	keep(sent.CertificatePEM(), false)
	keep(authority(t, "next").CertificatePEM(), true)
	comes(false, "the hub reports another CA")
	keep(slices.Concat(sent.CertificatePEM(), authority(t, "next").CertificatePEM()), true)
	comes(true, "the hub reports both CAs")
	keep(nil, true)
	keep(nil, false)
	comes(false, "taken back")
	if len(reported) != 0 {
		t.Error(reported)
	}

	// A broken file is reported, and the previous CAs stay in use. At the start it is an error.
	keep(sent.CertificatePEM(), true)
	comes(true, "the hub reports the CA again")
	broker.write("agent-ca.crt", []byte("broken"))
	comes(true, "the file is broken")
	if len(reported) != 1 || !strings.Contains(reported[0].Error(), "remove it") {
		t.Errorf("reported %v", reported)
	}
	if _, err := f.Server(func(error) {}); err == nil || !strings.Contains(err.Error(), f.HubCA) {
		t.Errorf("a server starts with a broken file: %v", err)
	}
}

// TestCheckAuthorities checks that only CAs that have not expired are accepted.
func TestCheckAuthorities(t *testing.T) {
	a, now := authority(t, "a"), time.Now()
	ended, err := pki.NewAuthority("ended", pki.Period{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: pki.Starting(now, time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	rest := slices.Concat([]byte("text\n"), ended.CertificatePEM(), leaf.CertPEM, leaf.KeyPEM)
	got, err := CheckAuthorities(slices.Concat(rest, a.CertificatePEM(), rest), now)
	if err != nil || !bytes.Equal(got, a.CertificatePEM()) {
		t.Errorf("%v:\n%s", err, got)
	}
	for why, text := range map[string][]byte{
		"nothing": nil, "of none of these": rest,
		"too much of it": bytes.Repeat(a.CertificatePEM(), maxAuthorities/len(a.CertificatePEM())+1),
	} {
		if got, err := CheckAuthorities(text, now); err == nil {
			t.Errorf("%s: %s", why, got)
		}
	}
}

// TestKeepHubCA checks that only the owner may read the file, that unusable text changes nothing, and that no
// other file is left in the directory.
func TestKeepHubCA(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	file := filepath.Join(dir, "agent-ca.crt")
	for _, name := range []string{"a", "b"} {
		if changed, err := KeepHubCA(file, authority(t, name).CertificatePEM(), now); !changed || err != nil {
			t.Fatalf("%v, %v", changed, err)
		}
	}
	had, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if changed, err := KeepHubCA(file, []byte("nothing of use"), now); changed || err == nil {
		t.Errorf("what cannot be used: %v, %v", changed, err)
	}
	if has, err := os.ReadFile(file); err != nil || !bytes.Equal(has, had) {
		t.Errorf("the file has changed: %v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := KeepHubCA(filepath.Join(dir, "none", "x"), had, now); err == nil {
		t.Error("there is no such directory")
	}
}

// FuzzCheckAuthorities checks that the result is always certificates of CAs, and that it is accepted again.
func FuzzCheckAuthorities(f *testing.F) {
	ca, p := issued(f, pki.Request{Role: pki.Agent, Name: "c1"})
	f.Add(ca)
	f.Add(slices.Concat(p.CertPEM, ca))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	now := time.Unix(1700000000, 0)
	f.Fuzz(func(t *testing.T, text []byte) {
		good, err := CheckAuthorities(text, now)
		if err != nil {
			return
		}
		if again, err := CheckAuthorities(good, now); err != nil || !bytes.Equal(again, good) {
			t.Fatalf("%v, %d bytes, and then %d", err, len(good), len(again))
		}
	})
}

// TestServer_AgentCA checks that the CAs in AgentCA sign for agents only, also beside those that a hub reports.
// The file must exist.
func TestServer_AgentCA(t *testing.T) {
	own, signer, reported := authority(t, "own"), authority(t, "signer"), authority(t, "reported")
	broker := side{t, t.TempDir()}
	broker.renew(own, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}}, own)
	f := broker.files()
	f.AgentCA, f.HubCA = filepath.Join(broker.dir, "agents.crt"), filepath.Join(broker.dir, "reported.crt")
	if _, err := f.Server(func(error) {}); err == nil || !strings.Contains(err.Error(), f.AgentCA) {
		t.Errorf("a server starts without its file: %v", err)
	}
	broker.write("agents.crt", slices.Concat(own.CertificatePEM(), signer.CertificatePEM()))
	broker.write("reported.crt", reported.CertificatePEM())
	s, err := f.Server(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	for a, all := range map[*pki.Authority]bool{own: true, signer: false, reported: false} {
		pair, err := a.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: pki.Starting(time.Now(), time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		shown, err := pair.TLS()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []Role{Agent, Source, Operator, Viewer, Bootstrap, ""} {
			if _, err := Covers(s.Authorities().For(r), []*x509.Certificate{shown.Leaf}, time.Now()); (err == nil) != (all || r == Agent) {
				t.Errorf("%s for the role %q: %v", shown.Leaf.Issuer, r, err)
			}
		}
	}
}
