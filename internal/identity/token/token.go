// Package token verifies the bearer tokens that a hub's API gives to its service accounts, without a call to
// the hub. They are signed JSON Web Tokens (RFC 7519). With the hub's public keys their signature, account and
// expiry can be verified. Only the hub knows whether the account still exists.
//
// An opaque token, such as a bootstrap token of kubeadm, contains none of that: [IsOpaque].
package token

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// MaxBytes is the maximum size of a token. Those of service accounts have about 1 KiB.
	MaxBytes = 8 << 10
	// Leeway is the allowed difference between the clocks of the hub and of the verifier.
	Leeway = 10 * time.Second
)

// Reasons to reject a token. Each error of [Verifier.Verify] is one of them.
var (
	ErrMalformed = errors.New("it is no signed JSON Web Token of a service account")
	ErrIssuer    = errors.New("its issuer is not the hub")
	ErrAudience  = errors.New("it is for another audience")
	ErrSignature = errors.New("no key of the hub has signed it")
	ErrExpired   = errors.New("it has expired, or has no expiry time")
	ErrEarly     = errors.New("it is not valid yet")
)

// algorithms are the signature algorithms of Kubernetes. None is symmetric: the keys are public, so with a
// symmetric one every client could sign.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// Account is the account of a token, as the hub's API names it.
type Account struct {
	User   string
	Groups []string
	// Audiences are the audiences of the token that the verifier accepts.
	Audiences []string
	// Ends is when the token expires, with Leeway.
	Ends time.Time
}

// Verifier has the hub's issuer, its keys, and the accepted audiences. It is immutable.
type Verifier struct {
	issuer    string
	audiences []string
	keys      jose.JSONWebKeySet
}

// NewVerifier returns a verifier of tokens of issuer, signed with a key of the JSON Web Key Set for one of the
// audiences. An error names what is missing.
func NewVerifier(issuer string, keySet []byte, audiences []string) (*Verifier, error) {
	keys, err := parseKeys(keySet)
	switch {
	case err != nil:
		return nil, err
	case issuer == "":
		return nil, errors.New("tokens: the hub names no issuer")
	case len(audiences) == 0 || slices.Contains(audiences, ""):
		return nil, errors.New("tokens: no audience is accepted")
	}
	return &Verifier{issuer: issuer, audiences: slices.Clone(audiences), keys: keys}, nil
}

// claims are the claims of a service account token.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// Verify returns the account of a valid token.
func (v *Verifier) Verify(token string, now time.Time) (Account, error) {
	if len(token) > MaxBytes {
		return Account{}, fmt.Errorf("%w: it has %d bytes, at most %d are read", ErrMalformed, len(token), MaxBytes)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return Account{}, ErrMalformed // the library's error may contain parts of the token
	}
	var c claims
	if err := v.read(parsed, &c); err != nil {
		return Account{}, err
	}
	a := Account{Audiences: intersection(v.audiences, c.Audience)}
	switch {
	case c.Issuer != v.issuer:
		return Account{}, ErrIssuer
	case len(a.Audiences) == 0:
		return Account{}, fmt.Errorf("%w: this broker accepts %q", ErrAudience, v.audiences)
	case c.Expiry == nil:
		return Account{}, ErrExpired
	case c.NotBefore != nil && now.Add(Leeway).Before(c.NotBefore.Time()):
		return Account{}, ErrEarly
	}
	a.Ends = c.Expiry.Time().Add(Leeway)
	if !now.Before(a.Ends) {
		return Account{}, ErrExpired
	}
	namespace, name, err := c.account()
	if err != nil {
		return Account{}, err
	}
	a.User, a.Groups = accountPrefix+namespace+":"+name, groupsOf(namespace)
	return a, nil
}

// read checks the signature, and decodes the claims. A token of another issuer gets that error although its key
// is unknown, because this is a frequent mistake.
func (v *Verifier) read(t *jwt.JSONWebToken, c *claims) error {
	head := t.Headers[0] // a compact token has one signature
	keys := v.keys.Key(head.KeyID)
	fits := func(k jose.JSONWebKey) bool { return cmp.Or(k.Algorithm, head.Algorithm) == head.Algorithm }
	i := slices.IndexFunc(keys, fits)
	if i < 0 {
		var unsure claims
		if t.UnsafeClaimsWithoutVerification(&unsure) == nil && unsure.Issuer != v.issuer {
			return ErrIssuer
		}
		return ErrSignature
	}
	switch err := t.Claims(keys[i].Key, c); {
	case errors.Is(err, jose.ErrCryptoFailure), errors.Is(err, jose.ErrUnsupportedAlgorithm):
		return ErrSignature
	case err != nil:
		return ErrMalformed
	}
	return nil
}

const accountPrefix = "system:serviceaccount:"

// account returns namespace and name of the service account.
func (c *claims) account() (namespace, name string, err error) {
	rest, ok := strings.CutPrefix(c.Subject, accountPrefix)
	namespace, name, cut := strings.Cut(rest, ":")
	if !ok || !cut || namespace == "" || name == "" || strings.Contains(name, ":") {
		return "", "", fmt.Errorf("%w: its subject is %.80q", ErrMalformed, c.Subject)
	}
	k := c.Kubernetes
	if cmp.Or(k.Namespace, namespace) != namespace || cmp.Or(k.ServiceAccount.Name, name) != name {
		return "", "", fmt.Errorf("%w: it names two accounts", ErrMalformed)
	}
	return namespace, name, nil
}

// groupsOf returns the groups of every service account of a namespace.
func groupsOf(namespace string) []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
}

// intersection returns the elements of all that are in some.
func intersection(all, some []string) (both []string) {
	for _, s := range all {
		if slices.Contains(some, s) {
			both = append(both, s)
		}
	}
	return both
}

const (
	opaqueID, opaqueSecret = 6, 16
)

// IsOpaque reports whether a token has the form of a bootstrap token, <id>.<secret>, whose account only the hub
// knows.
func IsOpaque(token string) bool {
	id, secret, ok := strings.Cut(token, ".")
	return ok && len(id) == opaqueID && len(secret) == opaqueSecret && strings.Trim(id+secret, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}
