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

// Server is the TLS of a listening port. It is read again when its files change. Methods may be called
// concurrently.
type Server struct {
	credentials.TransportCredentials

	config *tls.Config
	loader *loader
	// chains are the verified chains of running handshakes, by the peer's certificate.
	chains sync.Map
}

// Server returns the credentials of a listening port. Clients may connect without a certificate, and then have
// no identity. A certificate must be signed by CA, AgentCA or HubCA. onError is called when changed files
// cannot be used, from handshakes and from the methods of the result. It must not block.
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

// offer is a configuration and the material that it was made from.
type offer struct {
	material
	config *tls.Config
}

func (l *loader) server() *Server {
	// Scenario:
	//   t1: a client keeps a session ticket.
	//   t2: its CA is removed.
	//   t3: the client resumes the session, which is not verified again.
	// Result: tickets are disabled.
	config := tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "mqtt", "http/1.1"}, SessionTicketsDisabled: true}
	s := &Server{loader: l}
	outer := config.Clone()
	var last atomic.Pointer[offer] // connections keep their configuration, so they share one
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m := l.get()
		if o := last.Load(); o != nil && o.material == m {
			return o.config, nil
		}
		c := config.Clone()
		// With the verification of crypto/tls, a peer could have a hundred certificates tried as issuers, for a second.
		c.Certificates, c.ClientCAs, c.ClientAuth = []tls.Certificate{*m.cert}, m.all, tls.RequestClientCert
		c.VerifyConnection = func(state tls.ConnectionState) error { return s.verify(state.PeerCertificates, m.all) }
		last.Store(&offer{material: m, config: c})
		return c, nil
	}
	s.TransportCredentials, s.config = credentials.NewTLS(outer), outer
	return s
}

// verify stores the verified chains of a peer with certificates. It returns an error if there is no valid
// chain.
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

// ServerHandshake implements credentials.TransportCredentials. ALPN is optional, because a simple MQTT client
// does not use it.
func (s *Server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Server(raw, s.config)
	err := conn.Handshake() //nolint:noctx // the serving port sets a deadline
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

// Authorities are the CAs of a port's clients. They are equal (==) as long as the files of the port do not
// change. The zero value has none.
type Authorities struct{ all, own *x509.CertPool }

// All returns the CAs that handshakes accept.
func (a Authorities) All() *x509.CertPool { return a.all }

// For returns the CAs that may sign for clients of a role. Those that a hub reports may sign for agents only:
// an attacker who controls a hub must not be able to create an operator.
func (a Authorities) For(r Role) *x509.CertPool {
	if r == Agent {
		return a.all
	}
	return a.own
}

// IssuedAt returns the issue time of an agent's certificate, which is the first one of shown. A CA that only
// the hub reports belongs to Open Cluster Management, whose certificates do not contain the time; for these it
// is estimated.
func (a Authorities) IssuedAt(shown []*x509.Certificate, now time.Time) time.Time {
	at, reported := earliest.IssuedAt(shown[0])
	if reported || a.own == a.all {
		return at
	}
	if _, err := Covers(a.own, shown, now); err != nil {
		return earliest.LatestIssuedAt(shown[0])
	}
	return at
}

// Authorities returns the current CAs. They differ after each change of the files.
func (s *Server) Authorities() Authorities { return s.loader.get().Authorities }

// Check returns nil if the certificate for clients is valid now by its dates, else the reason.
func (s *Server) Check() error { return s.loader.valid() }

// End returns the expiry of the certificate for clients.
func (s *Server) End() time.Time { return s.loader.get().cert.Leaf.NotAfter }

// EndOf returns when the last of these chains expires. A chain expires with the first of its certificates.
// Without a chain it returns the zero time.
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

// Covers verifies the certificates of a client, leaf first, with these CAs. It returns their expiry, or an
// error.
func Covers(authorities *x509.CertPool, shown []*x509.Certificate, now time.Time) (end time.Time, err error) {
	chains, err := chainsOf(authorities, shown, now)
	return EndOf(chains), err
}

// chainsOf checks the certificates of a client, and then verifies them.
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
