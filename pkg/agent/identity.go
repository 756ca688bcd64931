package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	identities "github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/transport"
)

const (
	// While the hub identity is refused, it is looked every refusedPoll whether
	// somebody has handed it over, and every refusedDial whether the broker is
	// another one by now.
	refusedPoll = 10 * time.Second
	refusedDial = 5 * time.Minute
	// admitWithin bounds the wait for the cluster's answer.
	admitWithin = 30 * time.Second
)

// identityGuardDialer keeps events of a broker away that may not use the hub identity. It
// stands between the session and its Dialer: while the identity is refused, the
// broker is not asked for another subscription every few seconds.
type identityGuardDialer struct {
	transport.Dialer
	admit    func(context.Context, transport.Accepted) error
	identity string
	log      *slog.Logger

	mu sync.Mutex
	// refusal is why the broker of last may not use the identity; nil if it may.
	refusal error
	last    transport.Accepted
	// admitted: last may, or might before the cluster stopped answering.
	admitted bool
}

// err returns why the identity may not be used.
func (g *identityGuardDialer) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refusal
}

// pass returns nil if a subscription may begin.
func (g *identityGuardDialer) pass(ctx context.Context, a transport.Accepted) error {
	if g.admit == nil {
		return nil
	}
	requested, cancel := context.WithTimeout(ctx, admitWithin)
	defer cancel()
	err := g.admit(requested, a)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err == nil:
		if g.refusal != nil {
			g.log.InfoContext(ctx, "the hub identity may be used", "hub_identity", g.identity)
		}
		g.last, g.admitted, g.refusal = a, true, nil
	case errors.As(err, new(*identities.RefusedError)):
		if g.refusal == nil || g.refusal.Error() != err.Error() {
			g.log.ErrorContext(ctx, "the hub identity is refused", "hub_identity", g.identity, "error", err)
		}
		g.last, g.admitted, g.refusal = a, false, err
	case g.admitted && a.StoreID == g.last.StoreID && slices.Equal(a.Roots, g.last.Roots):
		// The cluster does not answer, and nothing has changed since it did.
		g.log.WarnContext(ctx, "it cannot be looked up whether the hub identity may still be used", "hub_identity", g.identity, "error", err)
		return nil
	}
	return err
}

// Dial implements transport.Dialer. While the identity is refused it waits.
func (g *identityGuardDialer) Dial(ctx context.Context) (transport.Conn, error) {
	for waited := time.Duration(0); g.err() != nil && waited < refusedDial; waited += refusedPoll {
		if err := jittered(ctx, refusedPoll); err != nil {
			return nil, err
		}
		g.mu.Lock()
		last := g.last
		g.mu.Unlock()
		if err := g.pass(ctx, last); err != nil {
			continue // it was logged if it is news
		}
	}
	return g.Dialer.Dial(ctx)
}
