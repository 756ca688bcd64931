package tokens

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/identity/token"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// freshFor is how long counts what the hub said of a token, and stays how long, if it was no.
	freshFor = time.Minute
	keptFor  = 10 * time.Second
	// retry is how long after the hub could not be asked somebody asks again for who is connected.
	retry = 10 * time.Second
	// patience bounds one question to the hub.
	patience = 5 * time.Second
	// reviewsPerSecond is how many questions are under way at a time.
	reviewsPerSecond = 32
	// remembered is how many tokens are known that nobody is connected by.
	remembered = 4096
)

// unknownTokenRate is how often the hub is asked about tokens that say nothing of themselves, and were
// not seen before: everybody can make them up.
// share is what of that one address may have.
var unknownTokenRate, share = fair.Rate{PerSecond: 20, Burst: 100}, fair.Rate{PerSecond: 2, Burst: 20}

// Reviewer asks the hub.
type Reviewer interface {
	// Review says whose token it is, if the hub knows it and it is for one of the audiences,
	// of which none means the hub's own.
	Review(ctx context.Context, token string, audiences []string) (*hawserv1.TokenReviewResult, error)
}

// Options are what [Tokens] are made of. Reviewer is required.
type Options struct {
	Config
	Reviewer Reviewer
	Log      *slog.Logger          // nil: slog.Default()
	Registry prometheus.Registerer // nil: metrics are kept and not shown
	Now      func() time.Time      // nil: time.Now
}

// Tokens says whose tokens are. Create it with [New]; methods may be called concurrently.
type Tokens struct {
	o       Options
	ctx     context.Context //nolint:containedctx // it is the life of what Run ends
	end     context.CancelFunc
	slots   chan struct{} // has room for the questions under way
	reviews *prometheus.CounterVec

	mu            sync.Mutex
	verifier      *token.Verifier // nil before the hub's keys have come
	known         map[[sha256.Size]byte]*entry
	unknownTokens fair.Bucket
	shares        map[netip.Prefix]*fair.Bucket // of addresses
	ended         []func()
}

// New returns Tokens that know no keys yet. The error says what is wrong with the options.
func New(o Options) (*Tokens, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Reviewer == nil {
		return nil, errors.New("tokens: nobody to ask about them")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Tokens{o: o, slots: make(chan struct{}, reviewsPerSecond), known: map[[sha256.Size]byte]*entry{}, shares: map[netip.Prefix]*fair.Bucket{}}
	t.ctx, t.end = context.WithCancel(context.Background())
	meter := telemetry.NewMeter(o.Registry, "hawser_broker_")
	t.reviews = meter.Counters("token_reviews_total", "Questions to the hub about tokens.", "result")
	meter.Shown("token_cache_entries", "Tokens of which is known what the hub said.", nil, func() float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return float64(len(t.known))
	})
	return t, nil
}

// SetKeys takes over what the hub says of its tokens. What cannot be used is told to the log, and
// what was before stays in use.
func (t *Tokens) SetKeys(k *hawserv1.RegistrationKeys) {
	v, err := token.NewVerifier(k.GetIssuer(), k.GetJwks(), t.audiences(k))
	if err != nil {
		t.o.Log.Error("the keys of the hub's tokens cannot be used, those from before stay in use", "issuer", k.GetIssuer(), "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.verifier = v
}

// audiences are for whom tokens may be.
func (t *Tokens) audiences(k *hawserv1.RegistrationKeys) []string {
	all := slices.Clone(t.o.Audiences)
	switch own := k.GetApiAudiences(); {
	case !t.o.HubAudience:
	case len(own) == 0: // a kube-apiserver to which nobody says otherwise takes tokens for its issuer
		all = append(all, k.GetIssuer())
	default:
		all = append(all, own...)
	}
	return all
}

// OnEnd has f called after tokens ended before their time; it must not wait for Tokens.
func (t *Tokens) OnEnd(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = append(t.ended, f)
}

// Look says whose a token is, if that is known; it never waits. wait: only the hub knows, ask
// with [Tokens.Authenticate]. The caller releases the pass.
func (t *Tokens) Look(text string) (p *TokenRef, wait bool, err error) {
	now, hash := t.o.Now(), sha256.Sum256([]byte(text))
	t.mu.Lock()
	e := t.known[hash]
	if e != nil {
		if p, err = e.pass(t, text, now); p != nil || err != nil {
			t.mu.Unlock()
			return p, false, err
		}
	}
	t.mu.Unlock()
	if _, err := t.verify(text, now); err != nil {
		return nil, false, err
	}
	return nil, true, nil
}

// Authenticate says whose a token is that came from an address, and asks the hub where only that
// knows. The caller releases the pass. The error is a *transport.Error.
func (t *Tokens) Authenticate(ctx context.Context, text string, from netip.Prefix) (*TokenRef, error) {
	a, err := t.verify(text, t.o.Now())
	if err != nil {
		return nil, err
	}
	e, failures := t.entry(text)
	defer t.leave(e)
	select { // of those who have the same token, one asks
	case e.lock <- struct{}{}:
		defer func() { <-e.lock }()
	case <-ctx.Done():
		return nil, transport.GaveUp(ctx, "nobody waits for what the hub says of the token")
	}
	if p, err := t.passOf(e, text); p != nil || err != nil {
		return p, err
	}
	// t1 two come with a token, t2 the first one asks, t3 the hub does not answer: the second one has
	// waited as long, and does not ask after it.
	if err = t.failedSince(e, failures); err == nil {
		if err = t.unknownToken(e, a, from); err == nil {
			err = t.review(ctx, e, text, a)
		}
	}
	if err != nil && (ctx.Err() != nil || !t.refresh(e)) { // who gave up says nothing of the hub
		return nil, err
	}
	p, err := t.passOf(e, text)
	if p == nil && err == nil { // t1 the hub knew it, t2 it expired
		err = refused(token.ErrExpired.Error())
	}
	return p, err
}

// SameAccount says why another token cannot be used in the place of p, of the same connection.
func (t *Tokens) SameAccount(p *TokenRef, text string) error {
	a, err := t.verify(text, t.o.Now())
	if err == nil && a.User != p.User {
		err = refused("the connection is that of " + p.Identity.String() + " already: use another connection for another token")
	}
	return err
}

// verify says what a token says of itself: nothing, where it is opaque.
func (t *Tokens) verify(text string, now time.Time) (token.Account, error) {
	if token.IsOpaque(text) {
		return token.Account{}, nil
	}
	t.mu.Lock()
	v := t.verifier
	t.mu.Unlock()
	if v == nil {
		return token.Account{}, unavailable("the broker has not got the keys of the hub's tokens yet", nil)
	}
	a, err := v.Verify(text, now)
	if err != nil {
		return a, refused(err.Error())
	}
	if _, ok := t.o.identify(a.User, a.Groups); !ok {
		return a, unmapped(a.User)
	}
	return a, nil
}

// refresh has what the hub said before count for a while, as the hub cannot be asked; false: it does
// not count.
func (t *Tokens) refresh(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := e.grant
	if g == nil || g.Identity.Role == identity.Bootstrap {
		return false
	}
	e.until = t.o.Now().Add(retry)
	return true
}

// review asks the hub, and notes what it says. The error is why it said nothing.
func (t *Tokens) review(ctx context.Context, e *entry, text string, a token.Account) error {
	requesting, stop := context.WithTimeout(t.ctx, patience) // who goes meanwhile leaves the answer to others
	defer stop()
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-requesting.Done():
		return t.fail(e, unavailable("too many tokens wait for what the hub says of them", nil))
	case <-ctx.Done():
		return transport.GaveUp(ctx, "nobody waits for what the hub says of the token")
	}
	r, err := t.o.Reviewer.Review(requesting, text, a.Audiences)
	if err != nil {
		t.reviews.WithLabelValues("unavailable").Inc()
		return t.fail(e, unavailable("the hub cannot be asked whether the token's account is still there", err))
	}
	g, why := t.judge(r, a)
	if why != nil {
		t.reviews.WithLabelValues("refused").Inc()
	} else {
		t.reviews.WithLabelValues("good").Inc()
	}
	if t.note(e, g, why) {
		t.notify()
	}
	return nil
}

// unknownToken counts a token that says nothing of itself, and was not seen before. Each address has a
// share, so that it takes many to keep everybody else from being asked about.
func (t *Tokens) unknownToken(e *entry, a token.Account, from netip.Prefix) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	if a.User != "" || e.grant != nil || t.unknownTokens.Allows(unknownTokenRate, now) && t.shareOf(from, now).Spend(share, now, 1) && t.unknownTokens.Spend(unknownTokenRate, now, 1) {
		return nil
	}
	return &transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: retry,
		Message: "too many tokens come that only the hub can know", Hint: "try again later, or use a token of a service account",
	}
}

// shareOf returns the share of an address. Those that are whole are forgotten; the others are few,
// because all together spend no more than one bucket has. The caller has the lock.
func (t *Tokens) shareOf(from netip.Prefix, now time.Time) *fair.Bucket {
	if t.shares[from] == nil {
		maps.DeleteFunc(t.shares, func(_ netip.Prefix, b *fair.Bucket) bool { return b.Full(share, now) })
		t.shares[from] = &fair.Bucket{}
	}
	return t.shares[from]
}

// judge turns what the hub said into what it means here, or into why the token does not count.
func (t *Tokens) judge(r *hawserv1.TokenReviewResult, a token.Account) (*grant, error) {
	user, groups := r.GetUser(), r.GetGroups()
	switch {
	case !r.GetAuthenticated() || user == "":
		return nil, refused("the hub does not know it any more, or never did")
	case a.User != "" && user != a.User:
		return nil, refused("the hub says that it is somebody else's")
	case a.User != "" && !slices.ContainsFunc(r.GetAudiences(), func(s string) bool { return slices.Contains(a.Audiences, s) }):
		return nil, refused("the hub says that it is for another audience")
	}
	id, ok := t.o.identify(user, groups)
	if !ok {
		return nil, unmapped(user)
	}
	return &grant{Identity: id, User: user, Groups: groups, Ends: a.Ends}, nil
}

// notify has everybody look whose token has ended.
func (t *Tokens) notify() {
	t.mu.Lock()
	all := slices.Clone(t.ended)
	t.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// refused is the answer to who shows a token that does not count.
func refused(why string) *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: "the token does not count: " + why, Hint: "get a new one, with: hawser token create",
	}
}

// unmapped is the answer to an account that is nobody here.
func unmapped(user string) *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: "the token's account " + clip(user) + " has no role",
		Hint:    "add a rule for it to tokens.mapping in the broker's configuration, or use the token of another account",
	}
}

func unavailable(message string, cause error) *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: patience, Message: message,
		Hint: "hub-source has to be connected to the broker", Err: cause,
	}
}

// clip bounds what somebody else wrote.
func clip(s string) string {
	const most = 256
	return s[:min(len(s), most)]
}
