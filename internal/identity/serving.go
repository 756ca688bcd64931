package identity

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// Serving is the certificate of an HTTPS port. It is read again when its files change. Methods may be called
// concurrently.
type Serving struct{ loader *loader }

// Serving returns the certificate in Cert and Key. With a CA, clients must have a certificate that it has
// signed. The files may be missing at first: until they exist, handshakes fail, and Check returns the reason.
// onError is called when files cannot be used, from handshakes and from Check. It must not block.
func (f Files) Serving(onError func(error)) (*Serving, error) {
	if f.Cert == "" || f.Key == "" {
		return nil, errors.New("tls: an HTTPS port needs a certificate and its key")
	}
	return &Serving{&loader{files: Files{CA: f.CA, Cert: f.Cert, Key: f.Key}, onError: onError, now: time.Now}}, nil
}

// TLS returns the configuration of the port.
func (s *Serving) TLS() *tls.Config {
	// A resumed session is not verified again, see [Files.Server].
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.loader.certificate() },
	}
	if s.loader.files.CA == "" {
		return c
	}
	outer := c.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m, err := s.loader.look()
		if m.own == nil {
			return nil, err
		}
		strict := c.Clone()
		strict.ClientAuth, strict.ClientCAs = tls.RequireAndVerifyClientCert, m.own
		return strict, nil
	}
	return outer
}

// Check returns nil if the certificate for clients is valid now by its dates, else the reason.
func (s *Serving) Check() error { return s.loader.valid() }

// valid returns nil if the certificate in use is valid now.
func (l *loader) valid() error {
	cert, err := l.certificate()
	if err != nil {
		return err
	}
	now := l.now()
	switch leaf := cert.Leaf; {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate in %s has expired at %s: renew it", l.files.Cert, leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate in %s is not valid before %s: check the clocks", l.files.Cert, leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

func (l *loader) certificate() (*tls.Certificate, error) {
	m, err := l.look()
	if m.cert != nil { // an error of the current files does not matter then
		return m.cert, nil
	}
	return nil, err
}
