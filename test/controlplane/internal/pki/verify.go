package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// verify returns an error unless the files belong together and are valid at now.
func (f Files) verify(now time.Time) error {
	ca, err := loadPair(f.CACert, f.CAKey)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for _, leaf := range []struct {
		cert, key string
		usage     x509.ExtKeyUsage
	}{
		{f.ServerCert, f.ServerKey, x509.ExtKeyUsageServerAuth},
		{f.AdminCert, f.AdminKey, x509.ExtKeyUsageClientAuth},
	} {
		cert, err := loadPair(leaf.cert, leaf.key)
		if err != nil {
			return err
		}
		opts := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{leaf.usage}}
		if _, err := cert.Verify(opts); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(leaf.cert), err)
		}
	}
	return f.verifyTokenKeys()
}

// verifyTokenKeys returns an error unless the public key verifies tokens of the private key.
func (f Files) verifyTokenKeys() error {
	der, err := readPEM(f.TokenSigningKey)
	if err != nil {
		return err
	}
	private, err := x509.ParseECPrivateKey(der)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(f.TokenSigningKey), err)
	}
	if der, err = readPEM(f.TokenVerifyKeys); err != nil {
		return err
	}
	public, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(f.TokenVerifyKeys), err)
	}
	if key, ok := public.(*ecdsa.PublicKey); !ok || !private.PublicKey.Equal(key) {
		return fmt.Errorf("%s is not the public half of %s", filepath.Base(f.TokenVerifyKeys), filepath.Base(f.TokenSigningKey))
	}
	return nil
}

func loadPair(certFile, keyFile string) (*x509.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", filepath.Base(certFile), filepath.Base(keyFile), err)
	}
	return pair.Leaf, nil
}

func readPEM(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s: no PEM block", filepath.Base(file))
	}
	return block.Bytes, nil
}
