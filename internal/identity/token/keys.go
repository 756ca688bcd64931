package token

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

const (
	// maxKeys and maxKeyBytes bound a key set: a hub has one key, or two while it changes them.
	maxKeys     = 64
	maxKeyBytes = 256 << 10
	// fewestBits are those of the weakest RSA key that counts.
	fewestBits = 2048
)

// parseKeys reads a key set. Keys that verify no token here are left out; none at all is an error.
func parseKeys(b []byte) (jose.JSONWebKeySet, error) {
	if len(b) > maxKeyBytes {
		return jose.JSONWebKeySet{}, fmt.Errorf("tokens: the hub's key set has %d bytes, at most %d are read", len(b), maxKeyBytes)
	}
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return jose.JSONWebKeySet{}, fmt.Errorf("tokens: the hub's key set: %w", err)
	}
	if len(raw.Keys) > maxKeys {
		return jose.JSONWebKeySet{}, fmt.Errorf("tokens: the hub's key set has %d keys, at most %d are read", len(raw.Keys), maxKeys)
	}
	var set jose.JSONWebKeySet
	for _, r := range raw.Keys {
		var k jose.JSONWebKey
		if err := k.UnmarshalJSON(r); err == nil && verifies(k) { // one of a kind that we do not know is another's
			set.Keys = append(set.Keys, k)
		}
	}
	if len(set.Keys) == 0 {
		return set, errors.New("tokens: the hub's key set holds no public key for RS256, ES256, ES384 or ES512")
	}
	return set, nil
}

// verifies reports whether a key can verify tokens of service accounts.
func verifies(k jose.JSONWebKey) bool {
	if !k.Valid() || k.KeyID == "" || k.Use != "" && k.Use != "sig" {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() >= fewestBits
	case *ecdsa.PublicKey:
		return true
	}
	return false // symmetric and private keys are not for others
}
