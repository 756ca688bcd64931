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

// grant is the identity that a token gives, until the hub revokes it.
type grant struct {
	Identity identity.Identity
	User     string
	Groups   []string
	// Ends is the expiry of the token; zero: only the hub knows it.
	Ends time.Time

	gone atomic.Bool
}

// Revoked reports whether the token was revoked before its expiry.
func (g *grant) Revoked() bool { return g.gone.Load() }

// same reports whether two grants give the same identity.
func (g *grant) same(o *grant) bool {
	return g.Identity == o.Identity && g.User == o.User && slices.Equal(g.Groups, o.Groups)
}

// entry is the state of one token.
type entry struct {
	hash [sha256.Size]byte
	lock taskgroup.Semaphore // has one slot, for the caller that asks the hub

	// The fields below are guarded by Tokens.mu. grant is nil if the token is rejected; why is then the error.
	grant *grant
	why   error
	// until is the time up to which the result is valid for new connections; zero before the first review. next is
	// the time of the next review while connections use the token.
	until, next time.Time
	// failures is the number of reviews that the hub did not answer, failure the last error.
	failures int
	failure  error
	// passes is the number of references. users adds the callers that wait for a reference.
	users, passes int
	text          string // only while there are passes
}

// TokenRef is a reference to a valid token. Its holder releases it.
type TokenRef struct {
	*grant
	of   *Tokens
	e    *entry
	once sync.Once
}

// Is reports whether text is the token of the reference.
func (p *TokenRef) Is(text string) bool { return sha256.Sum256([]byte(text)) == p.e.hash }

// Release ends the use of the reference. It may be called again.
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

// entry returns the entry of a token, and its number of failed reviews. The caller has to call leave.
func (t *Tokens) entry(text string) (e *entry, failures int) {
	hash := sha256.Sum256([]byte(text))
	t.mu.Lock()
	defer t.mu.Unlock()
	e = t.known[hash]
	if e == nil {
		t.sweep()
		e = &entry{hash: hash, lock: taskgroup.NewSemaphore(1)}
		t.known[hash] = e
	}
	e.users++
	return e, e.failures
}

// fail records that the hub did not answer a review because of the error why, and returns why.
func (t *Tokens) fail(e *entry, why error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.failures++
	e.failure = why
	return why
}

// failedSince returns the last review error, nil if the number of failed reviews is still failures.
func (t *Tokens) failedSince(e *entry, failures int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.failures == failures {
		return nil
	}
	return e.failure
}

// leave ends the use of an entry. An entry without a review is dropped.
func (t *Tokens) leave(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.users--
	if e.users == 0 && e.until.IsZero() {
		delete(t.known, e.hash)
	}
}

// sweep drops entries if there are too many, those without a valid grant first.
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

// lasts reports whether the token has not expired.
func (g *grant) lasts(now time.Time) bool { return g.Ends.IsZero() || now.Before(g.Ends) }

// passOf is pass for a caller that does not hold the lock.
func (t *Tokens) passOf(e *entry, text string) (*TokenRef, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.pass(t, text, t.o.Now())
}

// pass returns a reference, or the error of a rejected token. It returns nil and nil if the hub must review the
// token. The caller holds the lock.
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

// note records the result of a review. ended is true if the result revokes an earlier grant of the token.
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

// Run repeats the reviews of tokens with connections, until ctx ends.
func (t *Tokens) Run(ctx context.Context) error {
	defer t.end()
	taskgroup.Every(ctx, time.Second, func() { t.reviewConnected(ctx) })
	return nil
}

// reviewConnected repeats the reviews that are due, concurrently.
func (t *Tokens) reviewConnected(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, e := range t.due() {
		all.Go(func() {
			defer t.leave(e)
			if e.lock.Acquire(ctx) {
				defer e.lock.Release()
				t.remind(ctx, e)
			}
		})
	}
}

// remind repeats the review of one token. The caller holds e.lock.
func (t *Tokens) remind(ctx context.Context, e *entry) {
	t.mu.Lock()
	g, text := e.grant, e.text
	over := e.passes == 0 || g == nil || t.o.Now().Before(e.next)
	t.mu.Unlock()
	if over {
		return // no connection uses the token any more, or another caller has reviewed it
	}
	a, err := t.verify(text, t.o.Now())
	if err == nil {
		err = t.review(ctx, e, text, a)
	}
	switch {
	case transport.CodeOf(err) == transport.CodeUnauthenticated: // for example the hub has withdrawn its key
		if t.note(e, nil, err) {
			t.notify()
		}
	case err != nil:
		t.o.Log.Debug("the hub cannot review a connected account", "user", clip(g.User), "error", err)
		t.mu.Lock()
		e.next = t.o.Now().Add(retry)
		t.mu.Unlock()
	}
}

// due returns tokens with connections whose next review is due. It returns at most maxReviews/2 of them,
// so that a round of reviews stays short.
func (t *Tokens) due() (all []*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	for _, e := range t.known {
		if len(all) == maxReviews/2 {
			break // the next call returns the others
		}
		if e.passes > 0 && e.grant != nil && !now.Before(e.next) {
			e.users++
			all = append(all, e)
		}
	}
	return all
}
