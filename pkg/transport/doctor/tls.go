package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// seen holds the findings of the TLS handshake.
type seen struct {
	files     material
	shown     []*x509.Certificate // certificates of the server, the leaf first
	requested bool                // the server requested the client's certificate
}

// material has the certificates in the client's files.
type material struct {
	config *tls.Config
	own    *x509.Certificate // nil if there is none
}

// readFiles reads the files, and inline data, as a connection does.
func readFiles(d identity.Driver, needed bool) (m material, err error) {
	if needed && !d.HasCert() && !d.HasToken() {
		return m, errors.New("no certificate is named: the broker identifies a client by its certificate")
	}
	if _, err := d.Bearer(); err != nil {
		return m, err
	}
	if f, inFiles := d.Files(); inFiles {
		next, err := f.TLS(func(error) {})
		if err != nil {
			return m, err
		}
		m.config = next()
	} else if m.config, err = d.Config(); err != nil {
		return m, err
	}
	if len(m.config.Certificates) > 0 {
		m.own = m.config.Certificates[0].Leaf
	}
	return m, nil
}

// ownName returns the location of the client's certificate.
func (k *run) ownName() string {
	if k.Identity.ClientCertData != nil {
		return "clientCertData"
	}
	return k.Identity.ClientCertFile
}

// tls does the handshake with any certificate and verifies it afterwards. The certificate shows best which
// server answered.
func (k *run) tls(ctx context.Context) (string, error) {
	c := k.seen.files.config.Clone()
	c.ServerName, c.NextProtos = k.expected(), k.Transport.protocols
	c.InsecureSkipVerify = true // verified below; no data is sent over this connection
	own := &tls.Certificate{}   // none
	if len(c.Certificates) > 0 {
		own = &c.Certificates[0]
	}
	c.Certificates, c.GetClientCertificate = nil, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		k.seen.requested = true
		return own, nil
	}
	conn := tls.Client(k.raw, c)
	if err := conn.HandshakeContext(ctx); err != nil {
		return "", k.noHandshake(err)
	}
	k.seen.shown = conn.ConnectionState().PeerCertificates
	leaf := k.seen.shown[0]
	if err := k.verify(leaf); err != nil {
		return "", err
	}
	if !k.seen.requested && k.Transport.mutual {
		return "", k.inspected(leaf)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; k.Transport.mutual && got != k.Transport.protocols[0] {
		return "", problem(nil, "check the port; a load balancer in front of the broker has to pass TLS through",
			"%s shows the certificate of a broker, and does not speak HTTP/2 with TLS", k.Broker)
	}
	return fmt.Sprintf("the broker is %s, signed by %q", describe(leaf), leaf.Issuer.String()), nil
}

// expected returns the name that the certificate must have.
func (k *run) expected() string {
	if k.Transport.serverName != "" {
		return k.Transport.serverName
	}
	return k.host
}

// trusted names the accepted CAs.
func (k *run) trusted() string {
	switch {
	case k.Identity.CAData != nil:
		return "caData"
	case k.Identity.CAFile == "":
		return "this system"
	}
	return "the file " + k.Identity.CAFile
}

func (k *run) noHandshake(err error) error {
	switch {
	case errors.As(err, new(tls.RecordHeaderError)):
		return problem(err, "check the port; a broker that was started with --insecure is reached with --insecure, on its own machine", "%s does not speak TLS", k.Broker)
	case isAlert(err):
		return k.refused(err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return problem(err, fmt.Sprintf("check the port; if it is right, ask the network team which device ends TLS connections to %s", k.Broker),
			"%s closed the connection during the TLS handshake", k.Broker)
	case errors.Is(err, context.DeadlineExceeded):
		return problem(err, "check the port; if it is right, ask the network team whether large packets (TLS certificates) get through: it may be the MTU",
			"%s takes TCP connections and did not answer the TLS handshake within %s", k.Broker, k.Timeout)
	}
	return problem(err, "check the port, and that the broker runs", "TLS with %s failed: %v", k.Broker, err)
}

// verify checks name and signature. The clock step checks the dates.
func (k *run) verify(leaf *x509.Certificate) error {
	if err := identity.CheckShown(k.seen.shown); err != nil {
		return problem(err, "ask the operators of the broker to check its certificate (tls-cert-file)", "the certificate of %s is not checked: %v", k.Broker, err)
	}
	between := x509.NewCertPool()
	for _, c := range k.seen.shown[1:] {
		between.AddCert(c)
	}
	at := k.Now()
	if at.Before(leaf.NotBefore) || at.After(leaf.NotAfter) {
		at = leaf.NotBefore // its CA was valid at that time
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: k.seen.files.config.RootCAs, Intermediates: between, CurrentTime: at})
	named := leaf.VerifyHostname(k.expected()) == nil
	switch {
	case err != nil && !k.seen.requested && named && k.Transport.mutual:
		return k.inspected(leaf)
	case errors.As(err, new(x509.CertificateInvalidError)):
		return problem(err, "ask the operators of the broker to check its CA and certificate (tls-cert-file)",
			"the certificate of %s, %s, signed by %q, is not valid: %v", k.Broker, describe(leaf), leaf.Issuer.String(), err)
	case err != nil:
		advice := fmt.Sprintf("give the CA that signed the broker's certificate, %q; the operators of the broker have it", leaf.Issuer.String())
		if !k.seen.requested && named {
			advice += fmt.Sprintf(". If that is not the broker's CA, something on the way inspects TLS: ask the network team to exempt %s from it", k.Broker)
		}
		return problem(err, advice,
			"the certificate of %s, %s, is signed by %q, and %s does not have that CA", k.Broker, describe(leaf), leaf.Issuer.String(), k.trusted())
	case !named:
		return problem(leaf.VerifyHostname(k.expected()), fmt.Sprintf("use one of these names for the broker, or --server-name with one, or have the certificate issued for %s too", k.expected()),
			"the certificate of %s is %s, not for %s", k.Broker, describe(leaf), k.expected())
	}
	return nil
}

// inspected returns the error for TLS inspection on the path. The certificate has the right name, but the
// server does not request a client certificate, as each broker does.
func (k *run) inspected(leaf *x509.Certificate) error {
	return problem(nil, fmt.Sprintf("ask the network team to exempt %s from TLS inspection: client and broker know each other by their certificates, which do not get through it", k.Broker),
		"something on the way to %s inspects TLS. It shows %s, signed by %q, and does not request a client certificate; a broker does", k.Broker, describe(leaf), leaf.Issuer.String())
}

// clock compares the dates of the certificates with the clock of this machine.
func (k *run) clock(context.Context) (string, error) {
	now := k.Now()
	for _, c := range k.seen.shown {
		if err := inTime(c, now, "the broker shows", "ask the operators of the broker to renew its certificate (tls-cert-file)"); err != nil {
			return "", err
		}
	}
	here := fmt.Sprintf("here it is %s; ", now.UTC().Format(time.RFC3339))
	own := k.seen.files.own
	if own == nil {
		return here + "the broker's certificate is valid", nil
	}
	if err := inTime(own, now, "your certificate "+k.ownName()+" is", "have it issued again"); err != nil {
		return "", err
	}
	return here + "both certificates are valid", nil
}

func inTime(c *x509.Certificate, now time.Time, owner, renew string) error {
	here := now.UTC().Format(time.RFC3339)
	switch {
	case now.Before(c.NotBefore):
		return problem(nil, "set the clock of this machine, with NTP; if it is right, the clock of the certificate's issuer is wrong",
			"%s %s, which is valid only from %s on, and the clock of this machine says %s", owner, describe(c), c.NotBefore.UTC().Format(time.RFC3339), here)
	case now.After(c.NotAfter):
		return problem(nil, renew+"; if it should still be valid, set the clock of this machine, with NTP",
			"%s %s: it has expired, by the clock of this machine, which says %s", owner, describe(c), here)
	}
	return nil
}

// identity connects as the client does.
func (k *run) identity(ctx context.Context) (string, error) {
	var err error
	if k.conn, err = k.Transport.dial(ctx, k); err != nil {
		k.conn = nil // nothing to close
		if isAlert(err) && k.seen.files.own != nil {
			return "", k.refused(err)
		}
		p := explained("", err)
		if own := k.seen.files.own; own != nil && !k.seen.requested && transport.CodeOf(err) != transport.CodeDeadline {
			p.What += fmt.Sprintf("; it did not request your certificate %s", k.ownName())
		}
		return "", p
	}
	if own := k.seen.files.own; own != nil && k.seen.requested {
		return describe(own) + " is accepted", nil
	}
	return k.Transport.accepted(), nil
}

// isAlert reports whether the server rejected the client's part of the handshake.
func isAlert(err error) bool {
	var o *net.OpError
	return errors.As(err, &o) && o.Op == "remote error"
}

// refused returns the error that the broker rejected the client's certificate, with the reason.
func (k *run) refused(err error) error {
	var o *net.OpError
	errors.As(err, &o)
	reason, own := o.Err.Error(), k.seen.files.own
	advice := "have the certificate issued by the CA that the broker trusts (client-ca-file of hawser-broker)"
	if strings.Contains(reason, "expired") {
		advice = fmt.Sprintf("set the clocks: by the broker's it has expired, or not begun, and here it is %s", k.Now().UTC().Format(time.RFC3339))
	}
	return problem(err, advice, "the broker rejected your certificate %s, %s, signed by %q: %s", k.ownName(), describe(own), own.Issuer.String(), reason)
}

// describe returns the subject of a certificate as text.
func describe(c *x509.Certificate) string {
	s := fmt.Sprintf("%q", c.Subject.CommonName)
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) > 0 {
		s += " for " + strings.Join(names, ", ")
	}
	return s + " valid until " + c.NotAfter.UTC().Format(time.RFC3339)
}
