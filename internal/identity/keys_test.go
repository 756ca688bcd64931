package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit/hugekey"
)

// dearCases maps errors to keys that must not be used in computations.
var dearCases = map[string]*rsa.PublicKey{
	"has 131072 bits": hugeKey(131072, 65537), "has 8200 bits": hugeKey(8200, 3), "exponent 2147483647": hugeKey(2048, hugekey.MaxExponent),
}

func hugeKey(bits, exponent int) *rsa.PublicKey {
	k, err := hugekey.New(bits, exponent)
	if err != nil {
		panic(err) // there are no random numbers
	}
	return k
}

// TestReaders_JudgeBeforeTheyCompute checks that each reader of a peer's data rejects expensive keys, with the
// reason. A computation with such a key would make the test time out.
func TestReaders_JudgeBeforeTheyCompute(t *testing.T) {
	dir, good := t.TempDir(), authority(t, "good")
	file := func(name string, b []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	p, err := good.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	ca, cert, key := good.CertificatePEM(), p.CertPEM, p.KeyPEM
	for want, k := range dearCases {
		name := pkix.Name{CommonName: "x"}
		request, err := hugekey.Request(name, k)
		if err != nil {
			t.Fatal(err)
		}
		der, err := hugekey.Certificate(name, name, k, k)
		if err != nil {
			t.Fatal(err)
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		parsed, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		among := append(append([]byte(nil), cert...), text...)
		for reader, read := range map[string]func() error{
			"request":             func() error { _, err := ReadRequest(request); return err },
			"certificate":         func() error { _, err := ReadCertificate(der); return err },
			"bundle":              func() error { _, err := ReadPool(append(append([]byte(nil), ca...), text...)); return err },
			"pair":                func() error { _, err := ReadPair(text, key); return err },
			"chain":               func() error { _, err := ReadPair(among, key); return err },
			"what a peer shows":   func() error { return CheckShown([]*x509.Certificate{parsed}) },
			"what covers a peer":  func() error { _, err := Covers(good.Pool(), []*x509.Certificate{parsed}, time.Now()); return err },
			"file of authorities": func() error { _, err := Files{CA: file("ca", text)}.read(); return err },
			"files of a pair":     func() error { _, err := Files{Cert: file("crt", among), Key: file("key", key)}.read(); return err },
			"agents' authorities": func() error { _, err := Files{CA: file("own", ca), AgentCA: file("agents", text)}.read(); return err },
			"caData":              func() error { d := Driver{CAData: text}; _, err := d.Config(); return err },
			"clientCertData":      func() error { d := Driver{ClientCertData: among, ClientKeyData: key}; _, err := d.Config(); return err },
		} {
			began := time.Now()
			switch err := read(); {
			case reader == "request" && len(request) > maxRequest && err != nil && strings.Contains(err.Error(), "bytes, more than"):
			case err == nil || !strings.Contains(err.Error(), want):
				t.Errorf("%s, of a key that %s: %v", reader, want, err)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s, of a key that %s, took %v", reader, want, took)
			}
		}
		if got, err := CheckAuthorities(append(append([]byte(nil), text...), ca...), time.Now()); err != nil || strings.Count(string(got), "BEGIN") != 1 {
			t.Errorf("authorities that the hub publishes, one %s: %v", want, err)
		}
	}
}

// TestReadRequest_Keys checks that keys that can be guessed are rejected in requests.
func TestReadRequest_Keys(t *testing.T) {
	curve := func(c elliptic.Curve) any { k, _ := ecdsa.GenerateKey(c, rand.Reader); return k }
	bits := func(n int) any { k, _ := rsa.GenerateKey(rand.Reader, n); return k }
	_, edwards, _ := ed25519.GenerateKey(rand.Reader)
	for name, c := range map[string]struct {
		key  any
		want string // "": accepted
	}{
		"RSA 1024": {bits(1024), "has 1024 bits, use 2048 to 8192"}, "RSA 2048": {bits(2048), ""},
		"P-224": {curve(elliptic.P224()), "has 224 bits"}, "P-256": {curve(elliptic.P256()), ""}, "P-521": {curve(elliptic.P521()), ""}, "Ed25519": {edwards, ""},
	} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x"}}, c.key)
		if err != nil {
			t.Fatal(err)
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		_, err = ReadRequest(text)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if _, err := ReadRequest(append(text, text...)); err == nil || !strings.Contains(err.Error(), "of one") {
			t.Errorf("%s, twice: %v", name, err)
		}
	}
	if err := CheckKey("x"); err == nil {
		t.Error("a key that is none is taken")
	}
}

// FuzzReadRequest checks that an accepted request has one common name at most after CheckCommonName, and a key
// that is neither weak nor expensive.
func FuzzReadRequest(f *testing.F) {
	for _, k := range dearCases {
		text, err := hugekey.Request(pkix.Name{CommonName: "x"}, k)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, c := range []elliptic.Curve{elliptic.P224(), elliptic.P256()} {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			f.Fatal(err)
		}
		two := pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{{Type: oidCommonName, Value: "a"}, {Type: oidCommonName, Value: "b"}}}
		for _, name := range []pkix.Name{{CommonName: "system:open-cluster-management:c1:a", Organization: []string{"o"}}, two} {
			der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: name}, k)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ReadRequest(text)
		if err != nil {
			return
		}
		if k, ok := r.PublicKey.(*rsa.PublicKey); len(text) > maxRequest || ok && (k.N.BitLen() < 2048 || k.N.BitLen() > 8192 || k.E > 65537) {
			t.Errorf("%d bytes are taken, with %v", len(text), k)
		}
		if k, ok := r.PublicKey.(*ecdsa.PublicKey); ok && k.Curve == elliptic.P224() {
			t.Error("P-224 is taken")
		}
		names := 0
		for _, set := range mustNames(t, r.RawSubject) {
			for _, a := range set {
				if a.Type.Equal(oidCommonName) {
					names++
				}
			}
		}
		if err := CheckCommonName(r.Subject); (err != nil) != (names > 1) {
			t.Errorf("%d common names: %v", names, err)
		}
	})
}

func mustNames(t *testing.T, der []byte) (names pkix.RDNSequence) {
	t.Helper()
	if rest, err := asn1.Unmarshal(der, &names); err != nil || len(rest) > 0 {
		t.Fatalf("x509 has read it, and asn1 does not: %v", err)
	}
	return names
}
