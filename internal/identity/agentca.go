package identity

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// maxAuthorities is the maximum size of the CAs that a hub reports, in bytes of PEM: some forty certificates.
const maxAuthorities = 64 << 10

// CheckAuthorities returns the certificates of CAs in a PEM text that have not expired, in their order. It
// returns an error if there are none, or more than 64 KiB of them.
func CheckAuthorities(text []byte, now time.Time) ([]byte, error) {
	if len(text) > maxCertificates {
		return nil, fmt.Errorf("%d bytes of certificates are too many: leave at most %d", len(text), maxAuthorities)
	}
	var good bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := ReadCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue // x509.CertPool also skips unreadable certificates
		}
		if c.BasicConstraintsValid && c.IsCA && now.Before(c.NotAfter) {
			_ = pem.Encode(&good, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // a Buffer never fails
		}
	}
	switch {
	case good.Len() == 0:
		return nil, errors.New("it contains no valid CA certificate")
	case good.Len() > maxAuthorities:
		return nil, fmt.Errorf("%d bytes of certificates of CAs are too many: keep at most %d, of the CAs that sign and those whose certificates have not expired", good.Len(), maxAuthorities)
	}
	return good.Bytes(), nil
}

// KeepHubCA writes the CAs in a PEM text to a file for Files.HubCA, or removes the file if text is empty.
// changed: the content was different. Only the owner may read the file, and it is never half written. On an
// error it is unchanged.
func KeepHubCA(file string, text []byte, now time.Time) (changed bool, err error) {
	had, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if len(text) == 0 {
		err := os.Remove(file)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	good, err := CheckAuthorities(text, now)
	if err != nil || bytes.Equal(good, had) {
		return false, err
	}
	return true, replace(file, good)
}

// replace atomically replaces a file.
func replace(file string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*") // only the owner may read it
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(file))
}

// syncDir makes changed names in a directory durable.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
