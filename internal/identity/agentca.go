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

// maxAuthorities bounds the authorities that a hub tells of, in bytes of PEM: some forty
// certificates.
const maxAuthorities = 64 << 10

// CheckAuthorities returns the certificates in a PEM text that may vouch for somebody: those of CAs
// that have not ended, in their order. The error is that there is none, or more than 64 KiB of them.
func CheckAuthorities(text []byte, now time.Time) ([]byte, error) {
	if len(text) > maxCertificates {
		return nil, fmt.Errorf("%d bytes of certificates are too many: leave at most %d", len(text), maxAuthorities)
	}
	var good bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := ReadCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue // x509.CertPool leaves it out of a bundle, too, if it cannot be read
		}
		if c.BasicConstraintsValid && c.IsCA && now.Before(c.NotAfter) {
			_ = pem.Encode(&good, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // a Buffer takes everything
		}
	}
	switch {
	case good.Len() == 0:
		return nil, errors.New("no certificate of a CA that has not ended is in it")
	case good.Len() > maxAuthorities:
		return nil, fmt.Errorf("%d bytes of certificates of CAs are too many: leave at most %d, of those that sign and those that signed what has not ended", good.Len(), maxAuthorities)
	}
	return good.Bytes(), nil
}

// KeepHubCA makes a file, for Files.HubCA, hold the authorities in a PEM text that may vouch for
// agents, or removes it where the text is empty. changed: it did not hold them before. The file is for
// its owner alone and never half written. With an error it is as it was.
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

// replace puts a new file in the place of what was there.
func replace(file string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*") // for its owner alone
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

// syncDir has names that were changed last.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
