// Package pki creates the certificates and keys of one control plane. These are a certificate authority, a
// serving certificate for 127.0.0.1, an administrator's client certificate and the key pair for service account
// tokens.
//
// They are created once per state directory and never changed. So a kubeconfig or a token from before a restart
// stays valid after it.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is much longer than the life of a state directory.
const lifetime = 10 * 365 * 24 * time.Hour

// Files are the absolute paths of PEM files.
type Files struct {
	CACert, CAKey                    string
	ServerCert, ServerKey            string
	AdminCert, AdminKey              string
	TokenSigningKey, TokenVerifyKeys string
}

func files(dir string) Files {
	in := func(name string) string { return filepath.Join(dir, name) }
	return Files{
		CACert: in("ca.crt"), CAKey: in("ca.key"),
		ServerCert: in("server.crt"), ServerKey: in("server.key"),
		AdminCert: in("admin.crt"), AdminKey: in("admin.key"),
		TokenSigningKey: in("service-account.key"), TokenVerifyKeys: in("service-account.pub"),
	}
}

// Ensure returns the files of dir, and creates them if dir does not exist. It checks existing files. A file
// that is missing, damaged, expired at now or not signed by the authority is an error. Ensure never replaces
// it, because clients trust the existing files. dir appears completely or not at all, whenever the process is
// killed. The caller holds the lock of the state directory.
func Ensure(dir string, now time.Time) (Files, error) {
	_, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := create(dir, now); err != nil {
			return Files{}, fmt.Errorf("create certificates: %w", err)
		}
	case err != nil:
		return Files{}, fmt.Errorf("look for certificates: %w", err)
	}
	f := files(dir)
	if err := f.verify(now); err != nil {
		return Files{}, fmt.Errorf("certificates in %s cannot be used: %w; delete the state directory to start afresh", dir, err)
	}
	return f, nil
}

// create fills a temporary directory beside dir and renames it.
func create(dir string, now time.Time) error {
	draft := dir + ".new"
	if err := os.RemoveAll(draft); err != nil {
		return err
	}
	if err := os.MkdirAll(draft, 0o700); err != nil {
		return err
	}
	if err := fill(files(draft), now); err != nil {
		return err
	}
	return os.Rename(draft, dir)
}

func fill(f Files, now time.Time) error {
	ca, err := newAuthority(f, now)
	if err != nil {
		return err
	}
	server := x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)},
	}
	if err := ca.issue(server, f.ServerCert, f.ServerKey); err != nil {
		return err
	}
	admin := x509.Certificate{
		// RBAC never denies a request of this group of kube-apiserver.
		Subject:     pkix.Name{CommonName: "controlplane-admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if err := ca.issue(admin, f.AdminCert, f.AdminKey); err != nil {
		return err
	}
	signing, err := newKey(f.TokenSigningKey)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&signing.PublicKey)
	if err != nil {
		return err
	}
	return writePEM(f.TokenVerifyKeys, "PUBLIC KEY", public)
}

// authority signs certificates while the files are created.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
}

func newAuthority(f Files, now time.Time) (*authority, error) {
	key, err := newKey(f.CAKey)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key, now: now}
	template := x509.Certificate{
		Subject:  pkix.Name{CommonName: "controlplane-ca"},
		IsCA:     true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a.cert, err = a.sign(template, nil, &key.PublicKey, f.CACert)
	return a, err
}

// issue creates a key and a leaf certificate for it.
func (a *authority) issue(template x509.Certificate, certFile, keyFile string) error {
	key, err := newKey(keyFile)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	_, err = a.sign(template, a.cert, &key.PublicKey, certFile)
	return err
}

// sign signs template with the authority's key. parent is the issuer, nil for a self-signed certificate.
func (a *authority) sign(template x509.Certificate, parent *x509.Certificate, public *ecdsa.PublicKey, file string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.BasicConstraintsValid = true
	template.NotBefore = a.now.Add(-time.Minute) // the clocks of clients may be behind
	template.NotAfter = a.now.Add(lifetime)
	if parent == nil {
		parent = &template
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent, public, a.key)
	if err != nil {
		return nil, err
	}
	if err := writePEM(file, "CERTIFICATE", der); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func newKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(file, "EC PRIVATE KEY", der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
