package token

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"

	"github.com/hawser-io/hawser/internal/identity"
)

const (
	// maxKeys and maxKeyBytes limit a key set: a hub has one key, or two during a rotation.
	maxKeys     = 64
	maxKeyBytes = 256 << 10
)

// parseKeys reads a key set. It skips keys that cannot verify tokens here; a set without usable keys is an
// error.
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
		k, private := jose.JSONWebKey{}, struct{ D, K json.RawMessage }{}
		if err := json.Unmarshal(r, &private); err != nil || len(private.D)+len(private.K) > 0 {
			continue // reading a private key costs computation, and it must not be published anyway
		}
		if err := k.UnmarshalJSON(r); err == nil && verifies(k) { // an unknown kind of key is for other purposes
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
	_, isRSA := k.Key.(*rsa.PublicKey)
	_, isECDSA := k.Key.(*ecdsa.PublicKey)
	return (isRSA || isECDSA) && identity.CheckKey(k.Key) == nil
}
