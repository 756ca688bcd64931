//go:build linux

package attack

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/testkit/hugekey"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// dearRequests is the number of requests that occupy all readers of requests in hub-source.
const dearRequests = 8

// TestAttack_ExpensiveRequests: a client with a bootstrap token requests certificates with RSA keys of 131,072
// bits. They are rejected, and meanwhile another cluster can request to join.
func TestAttack_ExpensiveRequests(t *testing.T) {
	s := alone(t, joinConfig)
	s.hub = s.play("1", "hub", s.addr)
	s.hub.wait("ready")
	token, err := os.ReadFile(tokenFile(s.pki))
	if err != nil {
		t.Fatal(err)
	}
	const own, honest = "rogue", "honest"
	// The broker rejects the first request by its size, hub-source rejects the second by its key.
	var dear [2][]byte
	for n, bits := range []int{131072, 24576} {
		key, err := hugekey.New(bits, hugekey.MaxExponent)
		if err == nil {
			dear[n], err = hugekey.Request(pkix.Name{CommonName: agentOf(own), Organization: groupsOf(own)}, key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	query := func(ctx context.Context, cluster string, n int, request []byte) error {
		c, err := target{addr: s.addr, pki: s.pki, load: &load{}, real: true}.joiner(ctx, string(token))
		if err != nil {
			return err
		}
		defer c.Close()
		e, err := requester(codec.SigningRequests, codec.Spec, codec.CreateRequest, cluster, csr(cluster, fmt.Sprint(cluster, "-", n), request))
		if err == nil {
			_, err = c.Publish(ctx, e, "")
		}
		return err
	}
	request, err := requestOf(pkix.Name{CommonName: agentOf(honest), Organization: groupsOf(honest)}, false)
	if err != nil {
		t.Fatal(err)
	}
	ready, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	_ = every(ready, 20*time.Millisecond, func() error { // the broker must first learn from the hub how tokens are verified
		if err = query(ready, honest, 0, request); err == nil {
			return errDone
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for n := range dearRequests {
		wg.Go(func() {
			var refusal *transport.Error
			err := query(ctx, own, n, dear[n%2])
			if !errors.As(err, &refusal) || !strings.Contains(refusal.Message, []string{"bytes, at most", "24576 bits"}[n%2]) {
				t.Errorf("a key of 131,072 or 24,576 bits was not refused for its size: %v", err)
			}
		})
	}
	for n := range 5 {
		if err := query(ctx, honest, 1+n, request); err != nil {
			t.Errorf("a cluster that joins beside them: %v", err)
		}
	}
	wg.Wait()
}

// TestAttack_ExpensiveChains: a client without a valid certificate presents a hundred issuers that may each have
// signed it. Their keys cost as much as TLS allows. The broker does not try them.
func TestAttack_ExpensiveChains(t *testing.T) {
	s := alone(t, "")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	shown := tls.Certificate{PrivateKey: key}
	leaf, issuer := pkix.Name{CommonName: agentOf(evil)}, pkix.Name{CommonName: "issuer"}
	for n := range 101 {
		dear, err := hugekey.New(8192, hugekey.MaxExponent)
		if err != nil {
			t.Fatal(err)
		}
		der, err := hugekey.Certificate(issuer, pkix.Name{CommonName: "other"}, dear, dear)
		if n == 0 {
			der, err = hugekey.Certificate(leaf, issuer, key.Public(), dear)
		}
		if err != nil {
			t.Fatal(err)
		}
		shown.Certificate = append(shown.Certificate, der)
	}
	config := target{pki: s.pki}.config(false)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
	const times, most = 3, 500 * time.Millisecond
	before := s.spent()
	for range times {
		raw, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		c := tls.Client(raw, config)
		if err = errors.Join(c.HandshakeContext(t.Context()), c.SetReadDeadline(time.Now().Add(patience))); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if alert := (*net.OpError)(nil); !errors.As(err, &alert) || alert.Op != "remote error" {
			t.Errorf("the chain was not refused: %v", err)
		}
		_ = raw.Close() // the broker has closed it already
	}
	if took := s.spent() - before; took > most {
		t.Errorf("%d handshakes took the broker %v of a core, at most %v are allowed", times, took, most)
	}
}

// spent returns the processor time of the broker.
func (s *stage) spent() time.Duration {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(s.broker.PID()), "stat"))
	if err != nil {
		s.t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return s.ticks(f[11], f[12]) // as in ours
}
