package tokens_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	bootstrapUser = "system:serviceaccount:hub:agent-registration-bootstrap"
	opaque        = "abcdef.0123456789abcdef"
	joiners       = "system:bootstrappers:managedcluster"
)

var mapping = []tokens.Rule{
	{User: bootstrapUser, Role: identity.Bootstrap},
	{Group: joiners, Role: identity.Bootstrap},
	{User: "system:serviceaccount:hub:source", Role: identity.Source, Name: "hub1"},
	{Group: "system:serviceaccounts:people", Role: identity.Operator, Name: "olga"},
}

// hub is a Reviewer with accounts.
type hub struct {
	mu      sync.Mutex
	gone    map[string]bool // deleted accounts
	away    bool
	reviews []string // audiences of each review
	answers map[string]*hawserv1.TokenReviewResult
	hold    chan struct{} // if not nil, answers wait until it is closed
}

func (h *hub) Review(ctx context.Context, text string, audiences []string) (*hawserv1.TokenReviewResult, error) {
	h.mu.Lock()
	hold := h.hold
	h.reviews = append(h.reviews, fmt.Sprint(audiences))
	h.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch r := h.answers[text]; {
	case h.away:
		return nil, errors.New("no source is connected")
	case r == nil || h.gone[r.GetUser()]:
		return &hawserv1.TokenReviewResult{}, nil
	default:
		return r, nil
	}
}

func (h *hub) times() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.reviews)
}

func (h *hub) set(do func(*hub)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do(h)
}

// rig is Tokens and the hub that reviews them.
type rig struct {
	*tokens.Tokens
	*hub
	t      *testing.T
	issuer *testkit.Issuer
	log    *bytes.Buffer
	ended  int
}

// start returns running Tokens with a hub. The caller is in a bubble of package synctest, whose clock they use.
func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, issuer: testkit.NewIssuer(t, "https://hub.example"), hub: &hub{answers: map[string]*hawserv1.TokenReviewResult{}, gone: map[string]bool{}}, log: &bytes.Buffer{}}
	var err error
	if r.Tokens, err = tokens.New(tokens.Options{
		Config: tokens.Config{Audiences: []string{"hawser"}, HubAudience: true, Mapping: mapping}, Reviewer: r.hub,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}); err != nil {
		t.Fatal(err)
	}
	r.keys()
	r.OnEnd(func() { r.hub.set(func(*hub) { r.ended++ }) })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }() // the result is received below
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) keys() {
	r.SetKeys(&hawserv1.RegistrationKeys{Issuer: r.issuer.Name, Jwks: r.issuer.Keys(), ApiAudiences: []string{"https://kubernetes.default.svc"}})
}

// account returns a token of an account that the hub knows.
func (r *rig) account(namespace, name string, edit func(map[string]any)) string {
	text := r.issuer.Token(namespace, name, edit)
	r.hub.set(func(h *hub) {
		h.answers[text] = &hawserv1.TokenReviewResult{
			Authenticated: true, User: "system:serviceaccount:" + namespace + ":" + name,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}, Audiences: []string{"hawser"},
		}
	})
	return text
}

// authenticate checks that a token gives an identity or an error code, which want names.
func (r *rig) authenticate(text, want string) *tokens.TokenRef {
	r.t.Helper()
	p, err := r.Authenticate(r.t.Context(), text, address(0))
	got := transport.CodeOf(err).String()
	if err == nil {
		got = p.Identity.String()
	}
	if got != want {
		r.t.Errorf("%s (%v), want %s", got, err, want)
	}
	if err != nil && len(text) > 8 && strings.Contains(err.Error(), text[len(text)-8:]) {
		r.t.Error("the error contains the token")
	}
	return p
}

func TestAuthenticate_FirstUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		p := r.authenticate(r.account("hub", "agent-registration-bootstrap", nil), "bootstrap/"+bootstrapUser)
		if p.User != bootstrapUser || !slices.Contains(p.Groups, "system:serviceaccounts:hub") || p.Ends.IsZero() || p.Revoked() {
			t.Errorf("%+v", p)
		}
		p.Release()
		p.Release()
		r.authenticate(r.account("hub", "source", nil), "source/hub1").Release()
		r.authenticate(r.account("people", "another", nil), "operator/olga").Release()
		r.authenticate(r.account("hub", "source", func(c map[string]any) { c["aud"] = "https://kubernetes.default.svc" }), "unauthenticated") // the hub reports the audience hawser
		if got := strings.Join(r.reviews, " "); got != "[hawser] [hawser] [hawser] [https://kubernetes.default.svc]" {
			t.Errorf("the review is for %s", got)
		}
		requests := r.times()
		r.authenticate(r.account("hub", "unmapped", nil), "unauthenticated")
		r.authenticate(r.account("hub", "source", func(c map[string]any) { c["exp"] = time.Now().Add(-time.Hour).Unix() }), "unauthenticated")
		r.authenticate("no token", "unauthenticated")
		if r.times() != requests {
			t.Error("the hub gets a review of a token that is known to be bad")
		}
		if strings.Contains(r.log.String(), "eyJ") {
			t.Errorf("a token is in the log: %s", r.log)
		}
	})
}

// TestAuthenticate_HubAudience checks that tokens for the hub's own API are accepted only if that is
// configured, and tokens for other audiences never.
func TestAuthenticate_HubAudience(t *testing.T) {
	i := testkit.NewIssuer(t, "https://hub.example")
	for _, c := range []struct {
		on   bool
		own  []string // audiences that the hub's source reports
		aud  string
		want transport.Code
	}{
		{true, nil, i.Name, -1}, {true, []string{"api"}, "api", -1}, {true, []string{"api"}, i.Name, transport.CodeUnauthenticated},
		{false, nil, i.Name, transport.CodeUnauthenticated}, {false, []string{"api"}, "api", transport.CodeUnauthenticated},
		{true, nil, "https://other.example", transport.CodeUnauthenticated},
	} {
		text := i.Token("hub", "source", func(claims map[string]any) { claims["aud"] = []string{c.aud} })
		h := &hub{answers: map[string]*hawserv1.TokenReviewResult{text: {Authenticated: true, User: "system:serviceaccount:hub:source", Audiences: []string{c.aud}}}}
		all, err := tokens.New(tokens.Options{Config: tokens.Config{Audiences: []string{"hawser"}, HubAudience: c.on, Mapping: mapping}, Reviewer: h})
		if err != nil {
			t.Fatal(err)
		}
		all.SetKeys(&hawserv1.RegistrationKeys{Issuer: i.Name, Jwks: i.Keys(), ApiAudiences: c.own})
		if _, err := all.Authenticate(t.Context(), text, address(0)); (err == nil) != (c.want < 0) || err != nil && transport.CodeOf(err) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestAuthenticate_DeletedAccount checks a token with a valid signature whose account is deleted.
func TestAuthenticate_DeletedAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		text := r.account("hub", "source", nil)
		r.hub.set(func(h *hub) { h.gone["system:serviceaccount:hub:source"] = true })
		r.authenticate(text, "unauthenticated")
		r.authenticate(text, "unauthenticated")
		if r.times() != 1 {
			t.Errorf("%d reviews for one answer", r.times())
		}
		r.hub.set(func(h *hub) { clear(h.gone) })
		<-time.After(10 * time.Second)
		r.authenticate(text, "source/hub1").Release()
	})
}

// TestAuthenticate_HubAway checks an outage of the hub. Known tokens stay valid, and other tokens have to wait.
func TestAuthenticate_HubAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		source, joins := r.account("hub", "source", nil), r.account("hub", "agent-registration-bootstrap", nil)
		r.hub.set(func(h *hub) { h.away = true })
		r.authenticate(source, "unavailable")
		r.hub.set(func(h *hub) { h.away = false })
		r.authenticate(source, "source/hub1").Release()
		r.authenticate(joins, "bootstrap/"+bootstrapUser).Release()
		r.hub.set(func(h *hub) { h.away = true })
		r.authenticate(joins, "bootstrap/"+bootstrapUser).Release()
		<-time.After(2 * time.Minute)
		r.authenticate(source, "source/hub1").Release()
		r.authenticate(joins, "unavailable")
		<-time.After(time.Hour)
		r.authenticate(source, "unauthenticated") // the token has expired
	})
}

// TestAuthenticate_NoKeys checks that no token is valid before the hub's keys arrive.
func TestAuthenticate_NoKeys(t *testing.T) {
	h := &hub{}
	all, err := tokens.New(tokens.Options{Config: tokens.Config{Audiences: []string{"hawser"}, Mapping: mapping}, Reviewer: h})
	if err != nil {
		t.Fatal(err)
	}
	i := testkit.NewIssuer(t, "https://hub.example")
	for _, k := range []*hawserv1.RegistrationKeys{nil, {Issuer: i.Name}, {Jwks: i.Keys()}, {Issuer: i.Name, Jwks: []byte("x")}} {
		all.SetKeys(k)
		if _, err := all.Authenticate(t.Context(), i.Token("hub", "source", nil), address(0)); transport.CodeOf(err) != transport.CodeUnavailable || h.times() > 0 {
			t.Errorf("%v: %v", k, err)
		}
	}
}

// address returns the nth address prefix.
func address(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 32)
}

// TestAuthenticate_Opaque checks that the hub reviews opaque tokens, but not a flood of invented ones.
func TestAuthenticate_Opaque(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.hub.set(func(h *hub) {
			h.answers[opaque] = &hawserv1.TokenReviewResult{Authenticated: true, User: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", joiners}}
			h.answers["root00.0123456789abcdef"] = &hawserv1.TokenReviewResult{Authenticated: true, User: "system:bootstrap:root00", Groups: []string{"system:masters"}}
		})
		p := r.authenticate(opaque, "bootstrap/system:bootstrap:abcdef")
		if r.reviews[0] != "[]" || !p.Ends.IsZero() {
			t.Errorf("the review is for %s, the token expires %s", r.reviews[0], p.Ends)
		}
		r.authenticate("root00.0123456789abcdef", "unauthenticated")
		var last error
		made := func(n, from int) error {
			_, err := r.Authenticate(t.Context(), fmt.Sprintf("%06d.0123456789abcdef", n), address(from))
			return err
		}
		for n := range 1000 {
			last = made(n, n%2)
		}
		if transport.CodeOf(last) != transport.CodeOverloaded || r.times() > 45 {
			t.Errorf("two addresses: %d questions, %v", r.times(), last)
		}
		if err := made(1000, 2); transport.CodeOf(err) != transport.CodeUnauthenticated {
			t.Errorf("a third one: %v", err)
		}
		for n := range 1000 {
			last = made(2000+n, n)
		}
		if transport.CodeOf(last) != transport.CodeOverloaded || r.times() > 110 {
			t.Errorf("%d questions, %v", r.times(), last)
		}
		r.authenticate(opaque, "bootstrap/system:bootstrap:abcdef").Release() // the token is known
		p.Release()
	})
}

// TestAuthenticate_OneQuestion checks that callers with one token cause one review, even if one gives up.
func TestAuthenticate_OneQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		text := r.account("hub", "agent-registration-bootstrap", nil)
		hold := make(chan struct{})
		r.hub.set(func(h *hub) { h.hold = hold })
		ctx, giveUp := context.WithCancel(t.Context())
		var all sync.WaitGroup
		results := make(chan error, 100)
		req := func(ctx context.Context) {
			p, err := r.Authenticate(ctx, text, address(0))
			if err == nil {
				p.Release()
			}
			results <- err
		}
		all.Go(func() { req(ctx) })
		synctest.Wait()
		for range 99 {
			all.Go(func() { req(t.Context()) })
		}
		synctest.Wait()
		giveUp()
		synctest.Wait()
		close(hold)
		all.Wait()
		close(results)
		for err := range results {
			if err != nil {
				t.Error(err)
			}
		}
		if r.times() != 1 {
			t.Errorf("%d reviews", r.times())
		}
	})
}

// TestAuthenticate_OneFailure checks that callers with one token wait at the same time, not one after the
// other, while the hub does not answer. Known tokens stay valid.
func TestAuthenticate_OneFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		joins, source := r.account("hub", "agent-registration-bootstrap", nil), r.account("hub", "source", nil)
		r.authenticate(source, "source/hub1").Release()
		<-time.After(2 * time.Minute)
		r.hub.set(func(h *hub) { h.hold = make(chan struct{}) })
		requests := r.times()
		var all sync.WaitGroup
		for _, c := range []struct{ text, want string }{{joins, "unavailable"}, {source, "source/hub1"}} {
			for range 20 {
				all.Go(func() {
					began := time.Now()
					if p := r.authenticate(c.text, c.want); p != nil {
						p.Release()
					}
					if took := time.Since(began); took > 5*time.Second {
						t.Errorf("%s after %s", c.want, took)
					}
				})
				<-time.After(100 * time.Millisecond)
			}
		}
		all.Wait()
		if n := r.times() - requests; n != 2 {
			t.Errorf("%d reviews of two tokens", n)
		}
		all.Go(func() { r.authenticate(joins, "unavailable") }) // a later caller causes another review
		synctest.Wait()
		if n := r.times() - requests; n != 3 {
			t.Errorf("%d reviews", n)
		}
		all.Wait()
	})
}

// TestAuthenticate_GaveUp checks a caller with a valid token that gives up.
//
// Scenario:
//
//	t1: the hub is slow.
//	t2: the caller gives up.
//
// Result: the last review of the token is not extended.
func TestAuthenticate_GaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		text := r.account("hub", "source", nil)
		r.authenticate(text, "source/hub1").Release()
		<-time.After(2 * time.Minute)
		hold := make(chan struct{})
		r.hub.set(func(h *hub) { h.hold = hold })
		var all sync.WaitGroup
		for n := range 32 {
			text := r.issuer.Token("hub", "source", func(c map[string]any) { c["jti"] = fmt.Sprint(n) })
			all.Go(func() { r.authenticate(text, "unauthenticated") })
		}
		synctest.Wait()
		ctx, giveUp := context.WithCancel(t.Context())
		all.Go(func() {
			if p, err := r.Authenticate(ctx, text, address(0)); p != nil || transport.CodeOf(err) != transport.CodeUnavailable {
				t.Errorf("a caller that gave up: %v, %v", p, err)
			}
		})
		synctest.Wait()
		giveUp()
		synctest.Wait()
		close(hold)
		all.Wait()
		requests := r.times()
		r.hub.set(func(h *hub) { h.gone["system:serviceaccount:hub:source"] = true })
		r.authenticate(text, "unauthenticated")
		if n := r.times() - requests; n != 1 {
			t.Errorf("%d reviews", n)
		}
	})
}

// TestRun_ReviewsAgain checks that the account of a token must exist as long as a connection uses it.
func TestRun_ReviewsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		text := r.account("hub", "source", nil)
		p := r.authenticate(text, "source/hub1")
		<-time.After(5*time.Minute + time.Second)
		if n := r.times(); n < 5 || n > 6 || p.Revoked() {
			t.Errorf("%d reviews in five minutes, revoked: %v", n, p.Revoked())
		}
		r.hub.set(func(h *hub) { h.away = true })
		<-time.After(5 * time.Minute)
		if p.Revoked() {
			t.Error("the token was revoked while the hub is unavailable")
		}
		r.hub.set(func(h *hub) { h.away = false; h.gone["system:serviceaccount:hub:source"] = true })
		<-time.After(time.Minute + 2*time.Second)
		if !p.Revoked() || r.ended != 1 {
			t.Errorf("revoked: %v, called %d times", p.Revoked(), r.ended)
		}
		p.Release()
		requests := r.times()
		<-time.After(10 * time.Minute)
		if r.times() != requests {
			t.Error("the hub gets a review of a token without a connection")
		}
	})
}

// TestRun_LeftMeanwhile checks a connection that ends before the review of its token.
//
// Scenario:
//
//	t1: the review of a connection's token is due while another caller already waits for a review.
//	t2: the connection ends.
//	t3: the review of the other caller fails.
//
// Result: the broker requests no further review.
func TestRun_LeftMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		<-time.After(time.Second / 2) // Run checks for due reviews each second
		text := r.account("hub", "agent-registration-bootstrap", nil)
		p := r.authenticate(text, "bootstrap/"+bootstrapUser)
		hold := make(chan struct{})
		r.hub.set(func(h *hub) { h.hold = hold })
		<-time.After(time.Minute)
		var other sync.WaitGroup
		other.Go(func() { r.authenticate(text, transport.CodeUnavailable.String()) })
		<-time.After(time.Second)
		p.Release()
		r.hub.set(func(h *hub) { h.away = true })
		close(hold)
		other.Wait()
		<-time.After(time.Second)
		if r.times() != 2 {
			t.Errorf("the hub got %d reviews", r.times())
		}
	})
}

// TestRun_KeysTakenBack checks that a token is revoked when the hub removes its key.
func TestRun_KeysTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		p := r.authenticate(r.account("hub", "source", nil), "source/hub1")
		defer p.Release()
		r.issuer = testkit.NewIssuer(t, r.issuer.Name)
		r.keys()
		<-time.After(time.Minute + 2*time.Second)
		if !p.Revoked() {
			t.Error("a token of a removed key is still accepted")
		}
	})
}

// TestRun_OtherGroups checks that a connection ends if a review of its token gives another identity.
func TestRun_OtherGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		answer := func(groups ...string) {
			r.hub.set(func(h *hub) {
				h.answers[opaque] = &hawserv1.TokenReviewResult{Authenticated: true, User: "system:bootstrap:abcdef", Groups: groups}
			})
		}
		answer(joiners)
		p := r.authenticate(opaque, "bootstrap/system:bootstrap:abcdef")
		defer p.Release()
		answer("system:bootstrappers")
		<-time.After(time.Minute + 2*time.Second)
		if !p.Revoked() {
			t.Error("it still has the old identity")
		}
	})
}

func TestLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		text := r.account("hub", "source", nil)
		if p, wait, err := r.Look(text); p != nil || !wait || err != nil {
			t.Errorf("before the first use: %v, %v, %v", p, wait, err)
		}
		r.authenticate(text, "source/hub1").Release()
		p, wait, err := r.Look(text)
		if err != nil || wait || p.Identity.Name != "hub1" || !p.Is(text) || p.Is(opaque) {
			t.Fatalf("after it: %v, %v, %v", p, wait, err)
		}
		defer p.Release()
		if p, wait, err := r.Look("x.y.z"); p != nil || wait || transport.CodeOf(err) != transport.CodeUnauthenticated {
			t.Errorf("what is none: %v, %v, %v", p, wait, err)
		}
		if err := r.SameAccount(p, r.issuer.Token("hub", "source", func(c map[string]any) { c["exp"] = time.Now().Add(time.Minute).Unix() })); err != nil {
			t.Errorf("another token of the account: %v", err)
		}
		for _, other := range []string{r.issuer.Token("hub", "agent-registration-bootstrap", nil), opaque, "x"} {
			if err := r.SameAccount(p, other); transport.CodeOf(err) != transport.CodeUnauthenticated {
				t.Errorf("another account: %v", err)
			}
		}
	})
}

// TestKnown_Bounded checks that the number of known tokens is bounded.
func TestKnown_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		held := r.authenticate(r.account("hub", "source", nil), "source/hub1")
		for n := range 10_000 {
			text := fmt.Sprintf("%06d.0123456789abcdef", n)
			if n%100 == 99 {
				<-time.After(5 * time.Second)
			}
			_, err := r.Authenticate(t.Context(), text, address(n))
			if transport.CodeOf(err) != transport.CodeUnauthenticated {
				t.Fatalf("%d: %v", n, err)
			}
		}
		if n := r.Known(); n > 4096 {
			t.Errorf("%d are known", n)
		}
		if held.Revoked() {
			t.Error("the token in use is forgotten")
		}
		held.Release()
	})
}

func TestConfig_Validate(t *testing.T) {
	rule := func(r tokens.Rule) tokens.Config {
		return tokens.Config{Audiences: []string{"hawser"}, Mapping: []tokens.Rule{r}}
	}
	good := []tokens.Config{
		{}, rule(mapping[0]), rule(mapping[1]), rule(mapping[2]), {HubAudience: true, Mapping: mapping},
		rule(tokens.Rule{User: "u", Role: identity.Viewer, Name: "v"}),
	}
	for _, c := range good {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for want, c := range map[string]tokens.Config{
		"audiences is empty":         {Mapping: mapping},
		"an audience is empty":       {Audiences: []string{""}, Mapping: mapping},
		"mapping is empty":           {Audiences: []string{"hawser"}},
		"exactly one":                rule(tokens.Rule{User: "u", Group: "g", Role: identity.Bootstrap}),
		"rule 1: set exactly":        rule(tokens.Rule{Role: identity.Bootstrap}),
		"cannot give the role agent": rule(tokens.Rule{User: "u", Role: identity.Agent, Name: "c1"}),
		"role is \"root\"":           rule(tokens.Rule{User: "u", Role: "root", Name: "x"}),
		"name is empty":              rule(tokens.Rule{User: "u", Role: identity.Source}),
		"every account":              rule(tokens.Rule{Group: "system:authenticated", Role: identity.Bootstrap}),
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	if _, err := tokens.New(tokens.Options{Config: good[1]}); err == nil {
		t.Error("New accepts options without a reviewer")
	}
}
