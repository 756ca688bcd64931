package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer signs tokens of service accounts, as a hub does.
type Issuer struct {
	// Name is the issuer in its tokens.
	Name string

	t   testing.TB
	key *ecdsa.PrivateKey
}

// NewIssuer returns an issuer with its own key.
func NewIssuer(t testing.TB, name string) *Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("issuer: %v", err)
	}
	return &Issuer{Name: name, t: t, key: key}
}

// issuerKey is the key id of each issuer.
const issuerKey = "key1"

// Keys returns its JSON Web Key Set.
func (i *Issuer) Keys() []byte {
	i.t.Helper()
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: issuerKey, Use: "sig", Algorithm: string(jose.ES256)}}})
	if err != nil {
		i.t.Fatalf("issuer: %v", err)
	}
	return b
}

// Token returns a token of a service account, for the audience hawser and one hour, unless edit changes that;
// edit may be nil.
func (i *Issuer) Token(namespace, name string, edit func(claims map[string]any)) string {
	i.t.Helper()
	claims := map[string]any{
		"iss": i.Name, "sub": "system:serviceaccount:" + namespace + ":" + name, "aud": []string{"hawser"},
		"exp": time.Now().Add(time.Hour).Unix(), "nbf": time.Now().Unix(), "iat": time.Now().Unix(),
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": name, "uid": "u1"}},
	}
	if edit != nil {
		edit(claims)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		i.t.Fatalf("issuer: %v", err)
	}
	return i.Sign(jose.ES256, i.key, payload)
}

// Sign returns a token with a payload, signed with any key.
func (i *Issuer) Sign(algorithm jose.SignatureAlgorithm, key any, payload []byte) string {
	i.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: issuerKey}}, nil)
	if err != nil {
		i.t.Fatalf("issuer: %v", err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		i.t.Fatalf("issuer: %v", err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		i.t.Fatalf("issuer: %v", err)
	}
	return text
}
