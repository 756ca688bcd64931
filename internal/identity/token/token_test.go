package token_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/hawser-io/hawser/internal/identity/token"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/hugekey"
)

const issuer = "https://hub.example"

func verifier(t testing.TB, i *testkit.Issuer, audiences ...string) *token.Verifier {
	t.Helper()
	v, err := token.NewVerifier(issuer, i.Keys(), audiences)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVerify_Good(t *testing.T) {
	i := testkit.NewIssuer(t, issuer)
	now := time.Now().Truncate(time.Second)
	for name, edit := range map[string]func(map[string]any){
		"as it is":           nil,
		"one audience":       func(c map[string]any) { c["aud"] = "hawser" },
		"several audiences":  func(c map[string]any) { c["aud"] = []string{"other", "hawser"} },
		"nothing of its own": func(c map[string]any) { delete(c, "kubernetes.io") },
		"ended a moment ago": func(c map[string]any) { c["exp"] = now.Add(-token.Leeway / 2).Unix() },
		"begins in a moment": func(c map[string]any) { c["nbf"] = now.Add(token.Leeway / 2).Unix() },
		"no beginning":       func(c map[string]any) { delete(c, "nbf") },
		"an unknown claim":   func(c map[string]any) { c["warnafter"] = 7 },
	} {
		a, err := verifier(t, i, "hub", "hawser").Verify(i.Token("ns", "name", edit), now)
		groups := []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"}
		if err != nil || a.User != "system:serviceaccount:ns:name" || !slices.Equal(a.Groups, groups) || !slices.Equal(a.Audiences, []string{"hawser"}) || !now.Before(a.Ends) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

func TestVerify_Refused(t *testing.T) {
	i, other := testkit.NewIssuer(t, issuer), testkit.NewIssuer(t, issuer)
	now := time.Now()
	set := func(key string, to any) func(map[string]any) { return func(c map[string]any) { c[key] = to } }
	without := func(key string) func(map[string]any) { return func(c map[string]any) { delete(c, key) } }
	good := i.Token("ns", "name", nil)
	parts := strings.Split(good, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	unsigned := func(algorithm string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"`+algorithm+`","kid":"key1"}`)) + "." + parts[1] + "."
	}
	symmetric := i.Sign(jose.HS256, i.Keys(), payload) // signed with the public keys
	for name, c := range map[string]struct {
		token string
		want  error
	}{
		"nothing":           {"", token.ErrMalformed},
		"text":              {"a.b.c", token.ErrMalformed},
		"too long":          {good + strings.Repeat("A", token.MaxBytes), token.ErrMalformed},
		"unsigned":          {unsigned("none"), token.ErrMalformed},
		"unsigned, capital": {unsigned("None"), token.ErrMalformed},
		"signature cut off": {unsigned("ES256"), token.ErrSignature},
		"symmetric":         {symmetric, token.ErrMalformed},
		"other key":         {other.Token("ns", "name", nil), token.ErrSignature},
		"changed":           {parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), "ns:name", "ns:root", 1))) + "." + parts[2], token.ErrSignature},
		"other issuer":      {i.Token("ns", "name", set("iss", "https://other.example")), token.ErrIssuer},
		"no issuer":         {i.Token("ns", "name", without("iss")), token.ErrIssuer},
		"other audience":    {i.Token("ns", "name", set("aud", []string{"https://kubernetes.default.svc"})), token.ErrAudience},
		"no audience":       {i.Token("ns", "name", without("aud")), token.ErrAudience},
		"empty audience":    {i.Token("ns", "name", set("aud", []string{""})), token.ErrAudience},
		"audience a number": {i.Token("ns", "name", set("aud", 1)), token.ErrMalformed},
		"expired":           {i.Token("ns", "name", set("exp", now.Add(-time.Minute).Unix())), token.ErrExpired},
		"no end":            {i.Token("ns", "name", without("exp")), token.ErrExpired},
		"end overflows":     {i.Token("ns", "name", set("exp", 1e300)), token.ErrMalformed},
		"not yet":           {i.Token("ns", "name", set("nbf", now.Add(time.Minute).Unix())), token.ErrEarly},
		"no account":        {i.Token("ns", "name", set("sub", "another")), token.ErrMalformed},
		"no namespace":      {i.Token("", "name", nil), token.ErrMalformed},
		"no name":           {i.Token("ns", "", nil), token.ErrMalformed},
		"another name":      {i.Token("ns", "name:else", nil), token.ErrMalformed},
		"two accounts":      {i.Token("ns", "name", set("sub", "system:serviceaccount:ns:other")), token.ErrMalformed},
		"two namespaces":    {i.Token("ns", "name", set("sub", "system:serviceaccount:kube-system:name")), token.ErrMalformed},
		"user of the hub":   {i.Token("ns", "name", set("sub", "system:admin")), token.ErrMalformed},
		"opaque":            {"abcdef.0123456789abcdef", token.ErrMalformed},
	} {
		a, err := verifier(t, i, "hawser").Verify(c.token, now)
		if !errors.Is(err, c.want) || a.User != "" {
			t.Errorf("%s: %+v, %v, want %v", name, a, err, c.want)
		}
		if err != nil && len(c.token) > 20 && strings.Contains(err.Error(), c.token[:20]) {
			t.Errorf("%s: the error contains the token", name)
		}
	}
}

// TestNewVerifier_Keys checks that keys which others than the hub could use to sign are skipped, and that keys
// of unknown kinds do no harm.
func TestNewVerifier_Keys(t *testing.T) {
	i := testkit.NewIssuer(t, issuer)
	weak, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // it is to be refused
	if err != nil {
		t.Fatal(err)
	}
	set := func(keys ...jose.JSONWebKey) []byte {
		b, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	huge, err := hugekey.New(131072, 65537)
	if err != nil {
		t.Fatal(err)
	}
	strong, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"huge": set(jose.JSONWebKey{Key: huge, KeyID: "key1"}), "strong and private": set(jose.JSONWebKey{Key: strong, KeyID: "key1"}),
		"none": set(), "no JSON": []byte("keys"), "symmetric": set(jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "key1"}),
		"private": set(jose.JSONWebKey{Key: weak, KeyID: "key1"}), "weak": set(jose.JSONWebKey{Key: weak.Public(), KeyID: "key1"}),
		"too many": set(slices.Repeat([]jose.JSONWebKey{{Key: weak.Public(), KeyID: "key1"}}, 65)...),
		"too long": append(i.Keys(), slices.Repeat([]byte(" "), 1<<20)...),
	} {
		if _, err := token.NewVerifier(issuer, b, []string{"hawser"}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	mixed := strings.Replace(string(i.Keys()), `{"keys":[`, `{"keys":[{"kty":"XYZ","kid":"key1"},`, 1)
	v, err := token.NewVerifier(issuer, []byte(mixed), []string{"hawser"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(i.Token("ns", "name", nil), time.Now()); err != nil {
		t.Error(err)
	}
	for _, audiences := range [][]string{nil, {""}, {"hawser", ""}} {
		if _, err := token.NewVerifier(issuer, i.Keys(), audiences); err == nil {
			t.Errorf("audiences %q are taken", audiences)
		}
	}
	if _, err := token.NewVerifier("", i.Keys(), []string{"hawser"}); err == nil {
		t.Error("no issuer is taken")
	}
}

func TestIsOpaque(t *testing.T) {
	for s, want := range map[string]bool{
		"abcdef.0123456789abcdef": true, "000000.aaaaaaaaaaaaaaaa": true,
		"": false, ".": false, "abcdef.0123456789abcde": false, "abcde.0123456789abcdef": false, "ABCDEF.0123456789abcdef": false,
		"abcdef.0123456789abcdef.x": false, "abcdef.0123456789abcde\n": false, "abc.ef.0123456789abcdef": false,
	} {
		if token.IsOpaque(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

// FuzzVerify checks that an accepted token contains only what the hub has signed.
func FuzzVerify(f *testing.F) {
	i, other := testkit.NewIssuer(f, issuer), testkit.NewIssuer(f, issuer)
	v := verifier(f, i, "hawser")
	now := time.Now()
	good := i.Token("ns", "name", nil)
	for _, s := range []string{
		"", "..", "a.b.c", good, other.Token("ns", "name", nil), good[:len(good)-1], good + "=", strings.ToUpper(good), "abcdef.0123456789abcdef",
		base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + good[strings.Index(good, "."):], `{"payload":"e30","signatures":[]}`,
	} {
		f.Add(s)
	}
	f.Add(string(i.Keys()))
	f.Fuzz(func(t *testing.T, s string) {
		if other, err := token.NewVerifier(issuer, []byte(s), []string{"hawser"}); err == nil { // the text as a key set
			if _, err := other.Verify(good, now); err != nil && !errors.Is(err, token.ErrSignature) {
				t.Errorf("%q: %v", s, err)
			}
		}
		a, err := v.Verify(s, now)
		if (err == nil) != (a.User != "") || err == nil && a.User != "system:serviceaccount:ns:name" {
			t.Errorf("%q: %+v, %v", s, a, err)
		}
		if known := slices.ContainsFunc([]error{token.ErrMalformed, token.ErrIssuer, token.ErrAudience, token.ErrSignature, token.ErrExpired, token.ErrEarly}, func(e error) bool { return errors.Is(err, e) }); err != nil && !known {
			t.Errorf("%q: %v", s, err)
		}
	})
}
