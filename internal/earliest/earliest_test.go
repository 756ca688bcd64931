package earliest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/earliest"
)

func certificate(t testing.TB, from time.Time, valid time.Duration, extra ...pkix.Extension) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: from.Add(valid), ExtraExtensions: extra}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestIssuedAt: the time in the certificate is used, otherwise its begin. Other programs may ignore the
// extension.
func TestIssuedAt(t *testing.T) {
	from := time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
	at := from.Add(3*time.Minute + 200*time.Millisecond)
	reported := certificate(t, from, time.Hour, earliest.Extension(at.In(time.FixedZone("", 3600))))
	if got, is := earliest.IssuedAt(reported); !is || !got.Equal(at.Truncate(time.Second)) || !earliest.LatestIssuedAt(reported).Equal(got) {
		t.Errorf("issued at %v, %v", got, is)
	}
	if len(reported.UnhandledCriticalExtensions) > 0 {
		t.Error("others refuse the certificate")
	}
	garbage := earliest.Extension(at)
	garbage.Value = []byte{0x30, 0x80}
	const month = 30 * 24 * time.Hour
	for name, c := range map[string]struct {
		*x509.Certificate
		later time.Duration
	}{
		"silent":            {certificate(t, from, month), 5 * time.Minute},
		"garbage":           {certificate(t, from, month, garbage), 5 * time.Minute},
		"for forty minutes": {certificate(t, from, 42*time.Minute), 2 * time.Minute},
	} {
		got, is := earliest.IssuedAt(c.Certificate)
		if guess := earliest.LatestIssuedAt(c.Certificate); is || !got.Equal(from) || !guess.Equal(from.Add(c.later)) {
			t.Errorf("%s: issued at %v, %v, or at %v", name, got, is, guess)
		}
	}
}

func TestIsPlausible(t *testing.T) {
	now := time.Now()
	if !earliest.IsPlausible(now.Add(4*time.Minute), now) || earliest.IsPlausible(now.Add(6*time.Minute), now) {
		t.Error("a clock that is ahead by more than five minutes is believed, or one by less is not")
	}
}

// FuzzParse: an entry that was read means the same after it is written again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"2026-05-01T10:00:00Z", "2026-05-01T10:00:00Z 8d1c-7", "", "2026-05-01T10:00:00+01:00  x", "yesterday"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := earliest.Parse(s)
		if err != nil {
			return
		}
		again, err := earliest.Parse(e.String())
		if err != nil || !again.At.Equal(e.At.Truncate(time.Second)) {
			t.Errorf("%q is %+v, and %q is %+v, %v", s, e, e.String(), again, err)
		}
	})
}
