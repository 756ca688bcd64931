package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	caCertFile = "ca.crt"
	caKeyFile  = "ca.key"
)

// ErrExists is wrapped if a file would be overwritten without permission.
var ErrExists = errors.New("already exists")

// Dir is a directory with a CA (ca.crt, ca.key) and its certificates (<role>-<name>.crt and .key). Only the
// owner can read keys. Concurrent writes of two programs to one directory are not prevented.
type Dir string

// CACert is the path of the CA certificate, which may be distributed.
func (d Dir) CACert() string { return filepath.Join(string(d), caCertFile) }

// CAKey is the path of the CA key, which is secret.
func (d Dir) CAKey() string { return filepath.Join(string(d), caKeyFile) }

// Cert is the path of the certificate of (role, name).
func (d Dir) Cert(role Role, name string) string {
	return filepath.Join(string(d), string(role)+"-"+name+".crt")
}

// Key is the path of the private key of (role, name).
func (d Dir) Key(role Role, name string) string {
	return filepath.Join(string(d), string(role)+"-"+name+".key")
}

// Init makes the directory if needed, and a new CA in it. If there is one already, it returns an error that
// wraps [ErrExists], unless overwrite is set. A new CA invalidates all certificates issued before.
func (d Dir) Init(commonName string, valid Period, overwrite bool) (*Authority, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory for certificates: %w", err)
	}
	if err := refuseExisting(overwrite, d.CAKey(), d.CACert()); err != nil {
		return nil, err
	}
	a, err := NewAuthority(commonName, valid)
	if err != nil {
		return nil, err
	}
	if err := writePair(a.pair, d.CACert(), d.CAKey()); err != nil {
		return nil, err
	}
	return a, nil
}

// Authority reads the CA. If there is none, the error wraps [fs.ErrNotExist]; if it is unusable,
// [ErrUnusableAuthority].
func (d Dir) Authority() (*Authority, error) {
	certPEM, err := os.ReadFile(d.CACert())
	if err != nil {
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	keyPEM, err := os.ReadFile(d.CAKey())
	if err != nil {
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	a, err := ParseAuthority(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", d.CACert(), d.CAKey(), err)
	}
	return a, nil
}

// Issue signs a certificate with the directory's CA and writes it with its key to Cert and Key. If either
// exists, it returns an error that wraps [ErrExists], unless overwrite is set. Files are replaced by rename,
// key first, so that a program which reloads them never reads a partial file.
func (d Dir) Issue(req Request, overwrite bool) (Pair, error) {
	if err := checkName(req.Name); err != nil {
		return Pair{}, err
	}
	a, err := d.Authority()
	if err != nil {
		return Pair{}, err
	}
	cert, key := d.Cert(req.Role, req.Name), d.Key(req.Role, req.Name)
	if err := refuseExisting(overwrite, key, cert); err != nil {
		return Pair{}, err
	}
	pair, err := a.Issue(req)
	if err != nil {
		return Pair{}, err
	}
	if err := writePair(pair, cert, key); err != nil {
		return Pair{}, err
	}
	return pair, nil
}

func refuseExisting(overwrite bool, paths ...string) error {
	if overwrite {
		return nil
	}
	for _, p := range paths {
		switch _, err := os.Lstat(p); {
		case err == nil:
			return fmt.Errorf("%s %w", p, ErrExists)
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("look for an existing file: %w", err)
		}
	}
	return nil
}

func writePair(p Pair, cert, key string) error {
	if err := writeFile(key, p.KeyPEM, 0o600); err != nil {
		return err
	}
	return writeFile(cert, p.CertPEM, 0o644)
}

// writeFile replaces the file path by data atomically.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
