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
	// freshFor is how long a positive review is valid, and keptFor how long a negative one is.
	freshFor = time.Minute
	keptFor  = 10 * time.Second
	// retry is the pause after a failed review, before connected tokens are reviewed again.
	retry = 10 * time.Second
	// patience is the timeout of one review.
	patience = 5 * time.Second
	// maxReviews is the maximum number of concurrent reviews.
	maxReviews = 32
	// remembered is the maximum number of known tokens, except for those in use.
	remembered = 4096
)

// unknownTokenRate limits the reviews of unknown opaque tokens, because any client can invent tokens. share is
// the limit of one address.
var unknownTokenRate, share = fair.Rate{PerSecond: 20, Burst: 100}, fair.Rate{PerSecond: 2, Burst: 20}

// Reviewer sends token reviews to the hub.
type Reviewer interface {
	// Review returns the account of a token, if the hub knows it and it is for one of the audiences. No audience
	// means the hub's own.
	Review(ctx context.Context, token string, audiences []string) (*hawserv1.TokenReviewResult, error)
}

// Options are the options of [New]. Reviewer is required.
type Options struct {
	Config
	Reviewer Reviewer
	Log      *slog.Logger          // nil: slog.Default()
	Registry prometheus.Registerer // nil: metrics are kept and not shown
	Now      func() time.Time      // nil: time.Now
}

// Tokens identifies clients by their tokens. Create it with [New]. Methods may be called concurrently.
type Tokens struct {
	o       Options
	ctx     context.Context //nolint:containedctx // it is the life of what Run ends
	end     context.CancelFunc
	slots   chan struct{} // capacity: concurrent reviews
	reviews *prometheus.CounterVec

	mu            sync.Mutex
	verifier      *token.Verifier // nil until the hub's keys arrive
	known         map[[sha256.Size]byte]*entry
	unknownTokens fair.Bucket
	shares        map[netip.Prefix]*fair.Bucket // by address
	ended         []func()
}

// New returns Tokens without keys. An error names the invalid option.
func New(o Options) (*Tokens, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Reviewer == nil {
		return nil, errors.New("tokens: no reviewer is set")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Tokens{o: o, slots: make(chan struct{}, maxReviews), known: map[[sha256.Size]byte]*entry{}, shares: map[netip.Prefix]*fair.Bucket{}}
	t.ctx, t.end = context.WithCancel(context.Background())
	meter := telemetry.NewMeter(o.Registry, "hawser_broker_")
	t.reviews = meter.Counters("token_reviews_total", "Token reviews requested from the hub.", "result")
	meter.GaugeFunc("token_cache_entries", "Tokens with a known answer of the hub.", nil, func() float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return float64(len(t.known))
	})
	return t, nil
}

// SetKeys stores the hub's keys. Keys that cannot be used are logged, and the previous ones stay in use.
func (t *Tokens) SetKeys(k *hawserv1.RegistrationKeys) {
	v, err := token.NewVerifier(k.GetIssuer(), k.GetJwks(), t.audiences(k))
	if err != nil {
		t.o.Log.Error("the hub's token keys cannot be used; the previous ones stay in use", "issuer", k.GetIssuer(), "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.verifier = v
}

// audiences returns the accepted audiences.
func (t *Tokens) audiences(k *hawserv1.RegistrationKeys) []string {
	all := slices.Clone(t.o.Audiences)
	switch own := k.GetApiAudiences(); {
	case !t.o.HubAudience:
	case len(own) == 0: // the default of a kube-apiserver is its issuer
		all = append(all, k.GetIssuer())
	default:
		all = append(all, own...)
	}
	return all
}

// OnEnd registers f, which is called after tokens were revoked. f must not wait for Tokens.
func (t *Tokens) OnEnd(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = append(t.ended, f)
}

// Look returns the reference of a known token, and never blocks. If wait is true, the hub must review the
// token: call [Tokens.Authenticate]. The caller releases the reference.
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

// Authenticate returns the reference of a token that came from an address, and requests a review of the hub if
// necessary. The caller releases the reference. The error is a *transport.Error.
func (t *Tokens) Authenticate(ctx context.Context, text string, from netip.Prefix) (*TokenRef, error) {
	a, err := t.verify(text, t.o.Now())
	if err != nil {
		return nil, err
	}
	e, failures := t.entry(text)
	defer t.leave(e)
	if !e.lock.Acquire(ctx) { // only one caller with the same token requests the review
		return nil, transport.GaveUp(ctx, "the caller cancelled before the token was reviewed")
	}
	defer e.lock.Release()
	if p, err := t.passOf(e, text); p != nil || err != nil {
		return p, err
	}
	// Scenario:
	//   t1: two callers use the same token.
	//   t2: the first one asks the hub.
	//   t3: the hub does not answer.
	// Result: the second one has waited as long, and does not ask again.
	if err = t.failedSince(e, failures); err == nil {
		if err = t.unknownToken(e, a, from); err == nil {
			err = t.review(ctx, e, text, a)
		}
	}
	if err != nil && (ctx.Err() != nil || !t.refresh(e)) { // a caller that gave up is no failure of the hub
		return nil, err
	}
	p, err := t.passOf(e, text)
	if p == nil && err == nil { // the token expired after the review
		err = refused(token.ErrExpired.Error())
	}
	return p, err
}

// SameAccount returns an error if another token cannot be used on the connection of p.
func (t *Tokens) SameAccount(p *TokenRef, text string) error {
	a, err := t.verify(text, t.o.Now())
	if err == nil && a.User != p.User {
		err = refused("the connection belongs to " + p.Identity.String() + " already: use another connection for another token")
	}
	return err
}

// verify returns the account in a token, after the check of its signature. It is zero for an opaque token.
func (t *Tokens) verify(text string, now time.Time) (token.Account, error) {
	if token.IsOpaque(text) {
		return token.Account{}, nil
	}
	t.mu.Lock()
	v := t.verifier
	t.mu.Unlock()
	if v == nil {
		return token.Account{}, unavailable("the broker has not received the hub's token keys yet", nil)
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

// refresh extends the last positive review, because the hub does not answer. It returns false if the token has
// none or is a bootstrap token.
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

// review requests a review of the hub, and records the result. An error means that the hub gave no answer.
func (t *Tokens) review(ctx context.Context, e *entry, text string, a token.Account) error {
	requesting, stop := context.WithTimeout(t.ctx, patience) // the result serves other callers even if this one gives up
	defer stop()
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-requesting.Done():
		return t.fail(e, unavailable("too many tokens wait for a review of the hub", nil))
	case <-ctx.Done():
		return transport.GaveUp(ctx, "the caller cancelled before the token was reviewed")
	}
	r, err := t.o.Reviewer.Review(requesting, text, a.Audiences)
	if err != nil {
		t.reviews.WithLabelValues("unavailable").Inc()
		return t.fail(e, unavailable("the hub cannot review the token", err))
	}
	g, why := t.judge(r, a)
	if why != nil {
		t.reviews.WithLabelValues("rejected").Inc()
	} else {
		t.reviews.WithLabelValues("good").Inc()
	}
	if t.note(e, g, why) {
		t.notify()
	}
	return nil
}

// unknownToken charges the review of an opaque token that is not known. Each address has a share, so that only
// many addresses together can block the reviews of other clients.
func (t *Tokens) unknownToken(e *entry, a token.Account, from netip.Prefix) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	if a.User != "" || e.grant != nil || t.unknownTokens.Allows(unknownTokenRate, now) && t.shareOf(from, now).Spend(share, now, 1) && t.unknownTokens.Spend(unknownTokenRate, now, 1) {
		return nil
	}
	return &transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: retry,
		Message: "too many opaque tokens wait for a review of the hub", Hint: "try again later, or use a token of a service account",
	}
}

// shareOf returns the bucket of an address. Full buckets are dropped. The other buckets are few, because
// unknownTokenRate limits all of them together. The caller holds the lock.
func (t *Tokens) shareOf(from netip.Prefix, now time.Time) *fair.Bucket {
	if t.shares[from] == nil {
		maps.DeleteFunc(t.shares, func(_ netip.Prefix, b *fair.Bucket) bool { return b.Full(share, now) })
		t.shares[from] = &fair.Bucket{}
	}
	return t.shares[from]
}

// judge converts a review into a grant, or into the error of a rejected token.
func (t *Tokens) judge(r *hawserv1.TokenReviewResult, a token.Account) (*grant, error) {
	user, groups := r.GetUser(), r.GetGroups()
	switch {
	case !r.GetAuthenticated() || user == "":
		return nil, refused("the hub does not know it any more, or never did")
	case a.User != "" && user != a.User:
		return nil, refused("the hub reports that it belongs to another account")
	case a.User != "" && !slices.ContainsFunc(r.GetAudiences(), func(s string) bool { return slices.Contains(a.Audiences, s) }):
		return nil, refused("the hub reports that it is for another audience")
	}
	id, ok := t.o.identify(user, groups)
	if !ok {
		return nil, unmapped(user)
	}
	return &grant{Identity: id, User: user, Groups: groups, Ends: a.Ends}, nil
}

// notify calls the functions of OnEnd.
func (t *Tokens) notify() {
	t.mu.Lock()
	all := slices.Clone(t.ended)
	t.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// refused is the error of a rejected token.
func refused(why string) *transport.Error {
	return transport.Unauthenticated("the token is rejected: "+why, "get a new one, with: hawser token create")
}

// unmapped is the error of an account without a rule.
func unmapped(user string) *transport.Error {
	return transport.Unauthenticated("the token's account "+clip(user)+" has no role",
		"add a rule for it to tokens.mapping in the broker's configuration, or use the token of another account")
}

func unavailable(message string, cause error) *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: patience, Message: message,
		Hint: "hub-source has to be connected to the broker", Err: cause,
	}
}

// clip limits the length of text from a client or the hub.
func clip(s string) string {
	const most = 256
	return s[:min(len(s), most)]
}
