package tokens_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/identity/token"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// FuzzAuthenticate checks that a reference always has the identity of a mapping rule that names its account,
// and never that of an agent. This holds for any token and any answer of the hub. No error repeats the token.
func FuzzAuthenticate(f *testing.F) {
	issuer := testkit.NewIssuer(f, "https://hub.example")
	keys := issuer.Keys()
	good := issuer.Token("hub", "source", nil)
	const source = "system:serviceaccount:hub:source"
	f.Add(good, true, source, "", "hawser")
	f.Add(good, true, bootstrapUser, joiners, "hawser")
	f.Add(good, false, source, "", "hawser")
	f.Add(good[:len(good)-2]+"AA", true, source, "", "hawser")
	f.Add(opaque, true, "system:bootstrap:abcdef", joiners, "https://kubernetes.default.svc")
	f.Add(opaque, true, "", "", "")
	f.Add(opaque, true, "system:open-cluster-management:c1:a", "system:serviceaccounts:people", "x")
	f.Add(strings.Repeat("a.", 5<<10), true, source, "", "hawser")
	f.Fuzz(func(t *testing.T, text string, authenticated bool, user, group, audience string) {
		h := &hub{answers: map[string]*hawserv1.TokenReviewResult{text: {Authenticated: authenticated, User: user, Groups: []string{group}, Audiences: []string{audience}}}}
		all, err := tokens.New(tokens.Options{
			Config: tokens.Config{Audiences: []string{"hawser"}, Mapping: mapping}, Reviewer: h, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		all.SetKeys(&hawserv1.RegistrationKeys{Issuer: issuer.Name, Jwks: keys})
		p, err := all.Authenticate(t.Context(), text, address(0))
		if err != nil {
			var typed *transport.Error
			if !errors.As(err, &typed) || typed.Next == transport.NextUnspecified || len(text) > 16 && strings.Contains(err.Error(), text) {
				t.Fatalf("refused with %v", err)
			}
			if all.Known() > 1 {
				t.Fatalf("%d tokens are known of one", all.Known())
			}
			return
		}
		defer p.Release()
		named := func(r tokens.Rule) bool {
			return r.Role == p.Identity.Role && (r.Name == p.Identity.Name || r.Name == "" && p.Identity.Name == user) && (r.User != "" && r.User == user || r.Group != "" && r.Group == group)
		}
		if !authenticated || p.User != user || p.Identity.Role == identity.Agent || !slices.ContainsFunc(mapping, named) || !p.Is(text) {
			t.Fatalf("%q of %q in %q is %+v", text, user, group, p.Identity)
		}
		if !token.IsOpaque(text) && (user != source || audience != "hawser") {
			t.Fatalf("a token of %s is that of %q for %q", source, user, audience)
		}
	})
}
