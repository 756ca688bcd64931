package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
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
	last   atomic.Pointer[offer] // connections keep their configuration, so they share one
	// chains are the verified chains of running handshakes, of type verified, by the peer's certificate. Connections
	// that resume at the same time share a parsed certificate.
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

// verified is the chains of a certificate, and the CAs that verified them.
type verified struct {
	chains [][]*x509.Certificate
	by     *x509.CertPool
}

// offer is the configurations that were made from a material.
type offer struct {
	material
	// resuming issues and accepts session tickets, full does not. TLS 1.3 uses resuming.
	resuming, full *tls.Config
}

func (l *loader) server() *Server {
	s := &Server{loader: l}
	s.config = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "mqtt", "http/1.1"}, SessionTicketsDisabled: true}
	base := s.config.Clone()
	s.config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		o := s.offered(base)
		if slices.Contains(hello.SupportedVersions, tls.VersionTLS13) {
			return o.resuming, nil
		}
		return o.full, nil
	}
	s.TransportCredentials = credentials.NewTLS(s.config)
	s.offered(base) // so that the first client of a returning fleet is recognized by its ticket
	return s
}

// offered returns the configurations for the current material.
func (s *Server) offered(base *tls.Config) *offer {
	m := s.loader.get()
	if o := s.last.Load(); o != nil && o.material == m {
		return o
	}
	c := base.Clone()
	// With the verification of crypto/tls, a peer could have a hundred certificates tried as issuers, for a second.
	c.Certificates, c.ClientCAs, c.ClientAuth = []tls.Certificate{*m.cert}, m.all, tls.RequestClientCert
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if state.DidResume {
			return nil // it was verified for the next ticket
		}
		return s.verify(state.PeerCertificates, m.all)
	}
	o := &offer{material: m, full: c, resuming: c.Clone()}
	m.issueTickets(o.resuming, s.loader.now, func(state tls.ConnectionState) time.Time {
		if state.DidResume && s.verify(state.PeerCertificates, m.all) != nil {
			return time.Time{}
		}
		v, _ := s.chains.Load(state.PeerCertificates[0])
		shown, _ := v.(verified) // nothing else is stored
		return EndOf(shown.chains)
	})
	s.last.Store(o)
	return o
}

// Resumes reports whether the first bytes of a connection are a ClientHello with a ticket that the server accepts.
// The ticket does not prove that the client owns the session: the handshake does.
func (s *Server) Resumes(hello []byte) bool {
	o, ticket := s.last.Load(), ticketOf(hello)
	if o == nil || ticket == nil {
		return false
	}
	state, err := o.resuming.UnwrapSession(ticket, tls.ConnectionState{})
	return err == nil && state != nil
}

// verify stores the verified chains of a peer with certificates. It returns an error if there is no valid
// chain.
func (s *Server) verify(shown []*x509.Certificate, authorities *x509.CertPool) error {
	if len(shown) == 0 {
		return nil
	}
	chains, err := chainsOf(authorities, shown, time.Now())
	if err == nil {
		s.chains.Store(shown[0], verified{chains, authorities})
	}
	return err
}

// ServerHandshake implements credentials.TransportCredentials. ALPN is optional, because a simple MQTT client
// does not use it.
func (s *Server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Server(raw, s.config)
	err := conn.Handshake() //nolint:noctx // the serving port sets a deadline
	state := conn.ConnectionState()
	if len(state.PeerCertificates) > 0 {
		v, _ := s.chains.LoadAndDelete(state.PeerCertificates[0])
		shown, _ := v.(verified) // the zero value if another connection has taken it
		state.VerifiedChains = shown.chains
		if all := s.loader.get().all; err == nil && shown.by != all {
			state.VerifiedChains, err = chainsOf(all, state.PeerCertificates, time.Now())
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

// chainsOf checks the certificates of a client, and then verifies them. The error is a
// [tls.CertificateVerificationError].
func chainsOf(authorities *x509.CertPool, shown []*x509.Certificate, now time.Time) (chains [][]*x509.Certificate, err error) {
	if err = CheckShown(shown); err == nil {
		between := x509.NewCertPool()
		for _, c := range shown[1:] {
			between.AddCert(c)
		}
		chains, err = shown[0].Verify(x509.VerifyOptions{
			Roots: authorities, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
	}
	if err != nil {
		return nil, &tls.CertificateVerificationError{UnverifiedCertificates: shown, Err: err}
	}
	return chains, nil
}
