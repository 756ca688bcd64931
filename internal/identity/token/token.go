// Package token verifies the bearer tokens that a hub's API gives to its service accounts,
// without asking the hub: they are signed JSON Web Tokens (RFC 7519), and whoever has the hub's
// public keys can tell that one is good, whose it is, and until when. That its account is still
// there, only the hub can tell.
//
// An opaque token, such as a bootstrap token of kubeadm, says nothing of itself: [IsOpaque].
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
	// MaxBytes bounds a token. Those of service accounts have about 1 KiB.
	MaxBytes = 8 << 10
	// Leeway is how far the clocks of who signs and who verifies may be apart.
	Leeway = 10 * time.Second
)

// Why a token does not count; each error of [Verifier.Verify] is one of them.
var (
	ErrMalformed = errors.New("it is no signed JSON Web Token of a service account")
	ErrIssuer    = errors.New("another issuer made it than the hub")
	ErrAudience  = errors.New("it is for another audience")
	ErrSignature = errors.New("no key of the hub has signed it")
	ErrExpired   = errors.New("it has expired, or never does")
	ErrEarly     = errors.New("it is not valid yet")
)

// algorithms are those that Kubernetes signs with. None of them is symmetric: with a key that
// everybody knows, everybody could sign.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// Account is whose a token is, as the hub's API names it.
type Account struct {
	User   string
	Groups []string
	// Audiences are those of the token that the verifier accepts.
	Audiences []string
	// Ends is when the token counts no more.
	Ends time.Time
}

// Verifier knows the hub's issuer, its keys, and for whom a token has to be. It does not change.
type Verifier struct {
	issuer    string
	audiences []string
	keys      jose.JSONWebKeySet
}

// NewVerifier returns a verifier of tokens that issuer signed with a key of the JSON Web Key Set
// for one of the audiences. The error says what is missing.
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

// claims are what a token of a service account says.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// Verify returns whose token it is, as long as it counts.
func (v *Verifier) Verify(token string, now time.Time) (Account, error) {
	if len(token) > MaxBytes {
		return Account{}, fmt.Errorf("%w: it has %d bytes, at most %d are read", ErrMalformed, len(token), MaxBytes)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return Account{}, ErrMalformed // what the library says may be of the token
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
		return Account{}, fmt.Errorf("%w: this broker takes %q", ErrAudience, v.audiences)
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

// read checks the signature, and takes the claims. A token of another issuer is told so although
// nobody knows its key: it is the mistake that people make.
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

// groupsOf are the groups of every service account of a namespace.
func groupsOf(namespace string) []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
}

// intersection is what of all is in some.
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

// IsOpaque reports whether a token has the form of a bootstrap token, <id>.<secret>, of which only
// the hub knows whose it is.
func IsOpaque(token string) bool {
	id, secret, ok := strings.Cut(token, ".")
	return ok && len(id) == opaqueID && len(secret) == opaqueSecret && strings.Trim(id+secret, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}
