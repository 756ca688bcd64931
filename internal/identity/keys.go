package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
)

const (
	// maxRequest is the maximum size in bytes of the PEM of a certificate request, which usually has 700, and of a
	// private key. maxCertificates is that of several certificates.
	maxRequest, maxCertificates = 16 << 10, 1 << 20
	// minRSA and maxRSA are the limits of RSA keys in bits: shorter ones can be guessed, longer ones cost too much.
	// TLS has the same maximum. maxExponent is the public exponent of almost every key; larger ones cost up to
	// twenty times as much.
	minRSA, maxRSA, maxExponent = 2048, 8192, 1<<16 + 1
	// maxShown is the maximum number of certificates that a peer may send. Each of them may be tried as the issuer
	// of each other one.
	maxShown = 10
)

// affordable returns an error if a key costs too much to verify anything. It does not compute with the key. One
// request with an RSA key of 131,072 bits would take from a third of a second to minutes.
func affordable(key any) error {
	k, isRSA := key.(*rsa.PublicKey)
	switch {
	case isRSA && k.N.BitLen() > maxRSA:
		return fmt.Errorf("its RSA key has %d bits, use %d to %d", k.N.BitLen(), minRSA, maxRSA)
	case isRSA && k.E > maxExponent:
		return fmt.Errorf("its RSA key has the public exponent %d, use %d", k.E, maxExponent)
	}
	return nil
}

// CheckKey rejects public keys that cost too much, can be guessed, or cannot be used by TLS clients.
func CheckKey(key any) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if bits := k.Curve.Params().BitSize; bits < 256 {
			return fmt.Errorf("the curve of its key has %d bits, use 256 or more", bits)
		}
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSA {
			return fmt.Errorf("its RSA key has %d bits, use %d to %d", bits, minRSA, maxRSA)
		}
	case ed25519.PublicKey:
	default:
		return fmt.Errorf("its key is a %T, use ECDSA, RSA or Ed25519", key)
	}
	return affordable(key)
}

// ReadRequest reads the PEM of exactly one certificate request, which must be signed by its own key. Size and
// key are checked before the signature.
func ReadRequest(text []byte) (*x509.CertificateRequest, error) {
	if len(text) > maxRequest {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(text), maxRequest)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(block.Headers) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("it is not the PEM of one certificate request")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	if err := CheckKey(r.PublicKey); err != nil {
		return nil, err
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("it is not signed by its own key: %w", err)
	}
	return r, nil
}

// CheckCommonName rejects a subject with several common names, because readers choose different ones.
func CheckCommonName(subject pkix.Name) error {
	names := 0
	for _, n := range subject.Names {
		if n.Type.Equal(oidCommonName) {
			names++
		}
	}
	if names > 1 {
		return fmt.Errorf("subject %q has %d common names, and one is allowed", subject.String(), names)
	}
	return nil
}

// ReadCertificate reads a certificate, and rejects one whose key costs too much.
func ReadCertificate(der []byte) (*x509.Certificate, error) {
	c, err := x509.ParseCertificate(der)
	if err == nil {
		err = affordable(c.PublicKey)
	}
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return c, nil
}

// ReadPool reads a PEM bundle of CAs, and skips what is not a certificate. It returns an error for a key that
// costs too much, and for a bundle without certificates.
func ReadPool(text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	return pool, addTo(pool, text)
}

func addTo(pool *x509.CertPool, text []byte) error {
	if err := checkCertificates(text); err != nil {
		return err
	}
	if !pool.AppendCertsFromPEM(text) {
		return errors.New("no PEM certificate is in it")
	}
	return nil
}

// checkCertificates checks the size of a PEM text, and the keys of all certificates in it.
func checkCertificates(text []byte) error {
	if len(text) > maxCertificates {
		return fmt.Errorf("%d bytes of certificates are too many: leave at most %d", len(text), maxCertificates)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue
		}
		if err := affordable(c.PublicKey); err != nil {
			return fmt.Errorf("certificate of %q: %w", c.Subject.CommonName, err)
		}
	}
	return nil
}

// ReadPair is [tls.X509KeyPair], and rejects certificates whose keys cost too much.
func ReadPair(certs, key []byte) (tls.Certificate, error) {
	if len(key) > maxRequest {
		return tls.Certificate{}, fmt.Errorf("the private key has %d bytes of PEM, more than %d", len(key), maxRequest)
	}
	if err := checkCertificates(certs); err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certs, key)
}

// CheckShown checks the certificates of a peer, before any of them is tried as the issuer of another.
func CheckShown(shown []*x509.Certificate) error {
	if len(shown) > maxShown {
		return fmt.Errorf("the peer sent %d certificates, at most %d are allowed", len(shown), maxShown)
	}
	for _, c := range shown {
		if err := affordable(c.PublicKey); err != nil {
			return fmt.Errorf("certificate of %q: %w", c.Subject.CommonName, err)
		}
	}
	return nil
}
