package pki_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

// FuzzParseAuthority: any content of the two files is rejected with a known error, or can issue a certificate.
func FuzzParseAuthority(f *testing.F) {
	valid := pki.Starting(time.Unix(1700000000, 0), time.Hour)
	a, err := pki.NewAuthority("fuzz", valid)
	if err != nil {
		f.Fatal(err)
	}
	leaf, err := a.Issue(pki.Request{Role: pki.Source, Name: "s", Valid: valid})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(a.CertificatePEM(), a.KeyPEM())
	f.Add(leaf.CertPEM, leaf.KeyPEM)
	f.Add(a.KeyPEM(), a.CertificatePEM())
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte{})
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		a, err := pki.ParseAuthority(cert, key)
		if err != nil {
			if a != nil || !errors.Is(err, pki.ErrUnusableAuthority) {
				t.Fatalf("%v, %v", a, err)
			}
			return
		}
		if a.Pool() == nil || a.NotAfter().IsZero() {
			t.Fatal("an authority without a certificate")
		}
	})
}
