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
	// While the hub identity is refused, the agent checks every refusedPoll whether an operator has handed it over.
	// Every refusedDial it checks whether the broker is another one.
	refusedPoll = 10 * time.Second
	refusedDial = 5 * time.Minute
	// admitWithin bounds the wait for the cluster's answer.
	admitWithin = 30 * time.Second
)

// identityGuardDialer rejects events of a broker that may not use the hub identity. It wraps the Dialer of the
// session. While the identity is refused, it waits instead of subscribing again every few seconds.
type identityGuardDialer struct {
	transport.Dialer
	admit    func(context.Context, transport.Accepted) error
	identity string
	log      *slog.Logger

	mu sync.Mutex
	// refusal is why the broker of last may not use the identity; nil if it may.
	refusal error
	last    transport.Accepted
	// admitted: the broker of last may use the identity, or might before the cluster stopped answering.
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
			g.log.ErrorContext(ctx, "the hub identity is rejected", "hub_identity", g.identity, "error", err)
		}
		g.last, g.admitted, g.refusal = a, false, err
	case g.admitted && a.StoreID == g.last.StoreID && slices.Equal(a.Roots, g.last.Roots):
		// The cluster does not answer, but the broker is the one that was admitted last.
		g.log.WarnContext(ctx, "cannot check whether the hub identity may still be used", "hub_identity", g.identity, "error", err)
		return nil
	}
	return err
}

// Dial implements transport.Dialer. It waits while the identity is refused.
func (g *identityGuardDialer) Dial(ctx context.Context) (transport.Conn, error) {
	for waited := time.Duration(0); g.err() != nil && waited < refusedDial; waited += refusedPoll {
		if err := jittered(ctx, refusedPoll); err != nil {
			return nil, err
		}
		g.mu.Lock()
		last := g.last
		g.mu.Unlock()
		if err := g.pass(ctx, last); err != nil {
			continue // a new error was logged
		}
	}
	return g.Dialer.Dial(ctx)
}
