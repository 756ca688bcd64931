package tokens

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/identity/token"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/transport"
)

// grant is what a token means as long as the hub stands by it.
type grant struct {
	Identity identity.Identity
	User     string
	Groups   []string
	// Ends is when the token does; zero: the hub alone knows.
	Ends time.Time

	gone atomic.Bool
}

// Gone reports whether the token ended before its time.
func (g *grant) Gone() bool { return g.gone.Load() }

// same reports whether two grants mean the same to who has them.
func (g *grant) same(o *grant) bool {
	return g.Identity == o.Identity && g.User == o.User && slices.Equal(g.Groups, o.Groups)
}

// entry is what is known of one token.
type entry struct {
	hash [sha256.Size]byte
	lock chan struct{} // has room for who asks the hub

	// What follows is guarded by Tokens.mu. grant is nil where the token does not count, for why.
	grant *grant
	why   error
	// until is how long that counts for who comes, before somebody has to ask again; zero before the
	// first time. next is when somebody asks again for who is connected.
	until, next time.Time
	// failures counts the questions that the hub did not answer, failure is the last one's error.
	failures int
	failure  error
	// users are passes, and those who wait for one.
	users, passes int
	text          string // while there are passes
}

// TokenRef is a token that counts, as long as its holder keeps it.
type TokenRef struct {
	*grant
	of   *Tokens
	e    *entry
	once sync.Once
}

// Is reports whether the pass is for a token.
func (p *TokenRef) Is(text string) bool { return sha256.Sum256([]byte(text)) == p.e.hash }

// Release ends the use of the pass; it may be called again.
func (p *TokenRef) Release() {
	p.once.Do(func() {
		p.of.mu.Lock()
		p.e.passes--
		if p.e.passes == 0 {
			p.e.text = ""
		}
		p.of.mu.Unlock()
		p.of.leave(p.e)
	})
}

// entry returns that of a token, which the caller has to leave, and how often the hub did not answer
// about it.
func (t *Tokens) entry(text string) (e *entry, failures int) {
	hash := sha256.Sum256([]byte(text))
	t.mu.Lock()
	defer t.mu.Unlock()
	e = t.known[hash]
	if e == nil {
		t.sweep()
		e = &entry{hash: hash, lock: make(chan struct{}, 1)}
		t.known[hash] = e
	}
	e.users++
	return e, e.failures
}

// fail notes that the hub did not answer a question about a token, and returns why.
func (t *Tokens) fail(e *entry, why error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.failures++
	e.failure = why
	return why
}

// failedSince returns why the hub did not answer since there were so many failures, nil if it was not asked.
func (t *Tokens) failedSince(e *entry, failures int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.failures == failures {
		return nil
	}
	return e.failure
}

// leave ends the use of an entry. One of which the hub said nothing is forgotten.
func (t *Tokens) leave(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.users--
	if e.users == 0 && e.until.IsZero() {
		delete(t.known, e.hash)
	}
}

// sweep makes room for one more where too many are known: for what says least first.
func (t *Tokens) sweep() {
	if len(t.known) < remembered {
		return
	}
	now := t.o.Now()
	for _, least := range []func(*entry) bool{
		func(e *entry) bool { return e.grant == nil || !e.grant.lasts(now) },
		func(e *entry) bool { return now.After(e.until) },
		func(*entry) bool { return true },
	} {
		for hash, e := range t.known {
			if len(t.known) < remembered*3/4 {
				return
			}
			if e.users == 0 && least(e) {
				delete(t.known, hash)
			}
		}
	}
}

// lasts reports whether the time of the token is not over.
func (g *grant) lasts(now time.Time) bool { return g.Ends.IsZero() || now.Before(g.Ends) }

// passOf is pass for who has no lock.
func (t *Tokens) passOf(e *entry, text string) (*TokenRef, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.pass(t, text, t.o.Now())
}

// pass returns a pass, or why there is none; neither, where the hub has to be asked.
func (e *entry) pass(t *Tokens, text string, now time.Time) (*TokenRef, error) {
	switch {
	case !now.Before(e.until):
		return nil, nil
	case e.grant == nil:
		return nil, e.why
	case !e.grant.lasts(now):
		return nil, refused(token.ErrExpired.Error())
	}
	e.users++
	e.passes++
	e.text = text
	return &TokenRef{grant: e.grant, of: t, e: e}, nil
}

// note takes over what the hub said; ended: what it said before does not count any more.
func (t *Tokens) note(e *entry, g *grant, why error) (ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	before := e.grant
	if g == nil {
		e.until = now.Add(keptFor)
	} else {
		e.until = now.Add(freshFor)
	}
	e.next = e.until
	if g != nil && before != nil && before.same(g) {
		return false
	}
	e.grant, e.why = g, why
	if before == nil {
		return false
	}
	before.gone.Store(true)
	return true
}

// Run asks the hub again about the tokens that somebody is connected by, until ctx ends.
func (t *Tokens) Run(ctx context.Context) error {
	defer t.end()
	taskgroup.Every(ctx, time.Second, func() { t.reviewConnected(ctx) })
	return nil
}

// reviewConnected asks about those whose time has come, some at a time.
func (t *Tokens) reviewConnected(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, e := range t.due() {
		all.Go(func() {
			defer t.leave(e)
			select {
			case e.lock <- struct{}{}:
				defer func() { <-e.lock }()
			case <-ctx.Done():
				return
			}
			t.remind(ctx, e)
		})
	}
}

// remind asks about one token whose turn the caller has.
func (t *Tokens) remind(ctx context.Context, e *entry) {
	t.mu.Lock()
	g, text := e.grant, e.text
	over := e.passes == 0 || g == nil || t.o.Now().Before(e.next)
	t.mu.Unlock()
	if over {
		return // nobody is connected any more, or somebody was faster
	}
	a, err := t.verify(text, t.o.Now())
	if err == nil {
		err = t.review(ctx, e, text, a)
	}
	switch {
	case transport.CodeOf(err) == transport.CodeUnauthenticated: // as when the hub has taken its key back
		if t.note(e, nil, err) {
			t.notify()
		}
	case err != nil:
		t.o.Log.Debug("the hub cannot be asked about an account that is connected", "user", clip(g.User), "error", err)
		t.mu.Lock()
		e.next = t.o.Now().Add(retry)
		t.mu.Unlock()
	}
}

// due are tokens that somebody is connected by, and whose minute is over; so many that asking
// takes no longer than it may.
func (t *Tokens) due() (all []*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	for _, e := range t.known {
		if len(all) == reviewsPerSecond/2 {
			break // the rest is next
		}
		if e.passes > 0 && e.grant != nil && !now.Before(e.next) {
			e.users++
			all = append(all, e)
		}
	}
	return all
}
