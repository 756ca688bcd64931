package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/earliest"
)

// Server is the TLS of a listening port, read again when its files change.
// Methods may be called concurrently.
type Server struct {
	credentials.TransportCredentials

	config *tls.Config
	loader *loader
	// chains are those of handshakes under way, by the peer's certificate.
	chains sync.Map
}

// Server returns the credentials of a listening port. Clients may come without
// a certificate (they then have no identity); one that is shown must be signed
// by CA, AgentCA or HubCA. onError hears of files that changed into something unusable; it is
// called from handshakes and from the methods of the result, and must not block.
func (f Files) Server(onError func(error)) (*Server, error) {
	if f.CA == "" || f.Cert == "" {
		return nil, errors.New("tls: a server needs a certificate, its key and the CA of its clients")
	}
	l, err := newLoader(f, onError)
	if err != nil {
		return nil, err
	}
	return l.server(), nil
}

// offer is the configuration that follows from what the files held.
type offer struct {
	material
	config *tls.Config
}

func (l *loader) server() *Server {
	// A session that is resumed is not verified again: t1 a client keeps a ticket,
	// t2 its CA is taken out, t3 the ticket would let it in.
	config := tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "mqtt", "http/1.1"}, SessionTicketsDisabled: true}
	s := &Server{loader: l}
	outer := config.Clone()
	var last atomic.Pointer[offer] // every connection keeps its configuration, so they share one
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m := l.get()
		if o := last.Load(); o != nil && o.material == m {
			return o.config, nil
		}
		c := config.Clone()
		// Verified by crypto/tls, a hundred certificates of a peer could be tried as issuers, for a second.
		c.Certificates, c.ClientCAs, c.ClientAuth = []tls.Certificate{*m.cert}, m.all, tls.RequestClientCert
		c.VerifyConnection = func(state tls.ConnectionState) error { return s.verify(state.PeerCertificates, m.all) }
		last.Store(&offer{material: m, config: c})
		return c, nil
	}
	s.TransportCredentials, s.config = credentials.NewTLS(outer), outer
	return s
}

// verify keeps the chains of a peer that shows certificates; the error is that there are none.
func (s *Server) verify(shown []*x509.Certificate, authorities *x509.CertPool) error {
	if len(shown) == 0 {
		return nil
	}
	chains, err := chainsOf(authorities, shown, time.Now())
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: shown, Err: err}
	}
	s.chains.Store(shown[0], chains)
	return nil
}

// ServerHandshake implements credentials.TransportCredentials. What is spoken may be left
// open, for a plain MQTT client agrees upon nothing.
func (s *Server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Server(raw, s.config)
	err := conn.Handshake() //nolint:noctx // whoever serves sets a deadline
	state := conn.ConnectionState()
	if len(state.PeerCertificates) > 0 {
		if chains, ok := s.chains.LoadAndDelete(state.PeerCertificates[0]); ok {
			state.VerifiedChains, _ = chains.([][]*x509.Certificate) // nothing else is stored
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, credentials.TLSInfo{
		State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// Authorities are the CAs of a port's clients. They are equal (==) as long as the
// files of the port do not change. The zero value has none.
type Authorities struct{ all, own *x509.CertPool }

// All returns those by which a handshake succeeds.
func (a Authorities) All() *x509.CertPool { return a.all }

// For returns those that vouch for clients of a role. What a hub tells of vouches for
// agents alone: who has taken a hub over must not be able to make an operator.
func (a Authorities) For(r Role) *x509.CertPool {
	if r == Agent {
		return a.all
	}
	return a.own
}

// IssuedAt returns when the certificate of an agent was issued, which is the first of those that it
// showed. An authority that a hub tells of is Open Cluster Management's, which does not say it.
func (a Authorities) IssuedAt(shown []*x509.Certificate, now time.Time) time.Time {
	at, reported := earliest.IssuedAt(shown[0])
	if reported || a.own == a.all {
		return at
	}
	if _, err := Covers(a.own, shown, now); err != nil {
		return earliest.Guess(shown[0])
	}
	return at
}

// Authorities returns the CAs that count at this moment: others after each change of
// the files.
func (s *Server) Authorities() Authorities { return s.loader.get().Authorities }

// Check returns nil when clients are shown a certificate that is valid at this
// moment, as far as its dates go; else why not.
func (s *Server) Check() error { return s.loader.valid() }

// End is when the certificate ends that clients are shown.
func (s *Server) End() time.Time { return s.loader.get().cert.Leaf.NotAfter }

// EndOf is when the last of these chains ends, each with the first of its
// certificates. Without a chain it is the zero time.
func EndOf(chains [][]*x509.Certificate) (end time.Time) {
	for _, chain := range chains {
		first := chain[0].NotAfter
		for _, c := range chain[1:] {
			if c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
		if first.After(end) {
			end = first
		}
	}
	return end
}

// Covers returns until when these CAs vouch for a client that showed some
// certificates, its own first, or why they do not.
func Covers(authorities *x509.CertPool, shown []*x509.Certificate, now time.Time) (end time.Time, err error) {
	chains, err := chainsOf(authorities, shown, now)
	return EndOf(chains), err
}

// chainsOf judges what a client showed, and verifies it then.
func chainsOf(authorities *x509.CertPool, shown []*x509.Certificate, now time.Time) ([][]*x509.Certificate, error) {
	if err := CheckShown(shown); err != nil {
		return nil, err
	}
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	return shown[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}
