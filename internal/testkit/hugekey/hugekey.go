// Package hugekey makes data that is slow to verify: requests and certificates with RSA keys of many bits.
// There are no private keys, so no signature is valid.
package hugekey

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"time"
)

// MaxExponent is the largest public exponent that crypto/rsa accepts.
const MaxExponent = 1<<31 - 1

// New returns a public key with this number of bits, a multiple of 8.
func New(bits, exponent int) (*rsa.PublicKey, error) {
	b := make([]byte, bits/8)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	b[0] |= 0x80
	b[len(b)-1] |= 1
	return &rsa.PublicKey{N: new(big.Int).SetBytes(b), E: exponent}, nil
}

var sha256WithRSA = pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue}

// signed is a request or a certificate.
type signed struct {
	Of        asn1.RawValue
	Algorithm pkix.AlgorithmIdentifier
	Signature asn1.BitString
}

// sign appends a signature of the key's size to the signed data.
func sign(of any, key *rsa.PublicKey) ([]byte, error) {
	der, err := asn1.Marshal(of)
	if err != nil {
		return nil, err
	}
	s := make([]byte, (key.N.BitLen()+7)/8)
	s[len(s)-1] = 5
	return asn1.Marshal(signed{asn1.RawValue{FullBytes: der}, sha256WithRSA, asn1.BitString{Bytes: s, BitLength: 8 * len(s)}})
}

// Request returns the PEM of a certificate request.
func Request(subject pkix.Name, key *rsa.PublicKey) ([]byte, error) {
	public, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	der, err := sign(struct {
		Version    int
		Subject    pkix.RDNSequence
		Key        asn1.RawValue
		Attributes asn1.RawValue
	}{0, subject.ToRDNSequence(), asn1.RawValue{FullBytes: public}, asn1.RawValue{Class: asn1.ClassContextSpecific, IsCompound: true}}, key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
}

// Certificate returns the DER of a certificate with any key, with by as its claimed signer. It has version 1,
// for which verifiers do not check whether it may sign others.
func Certificate(subject, issuer pkix.Name, key any, by *rsa.PublicKey) ([]byte, error) {
	public, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	return sign(struct {
		Serial    int64
		Algorithm pkix.AlgorithmIdentifier
		Issuer    pkix.RDNSequence
		Valid     struct{ From, To time.Time }
		Subject   pkix.RDNSequence
		Key       asn1.RawValue
	}{time.Now().UnixNano(), sha256WithRSA, issuer.ToRDNSequence(),
		struct{ From, To time.Time }{time.Now().Add(-time.Hour).UTC(), time.Now().Add(time.Hour).UTC()}, subject.ToRDNSequence(), asn1.RawValue{FullBytes: public}}, by)
}
