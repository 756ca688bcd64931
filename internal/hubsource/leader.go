package hubsource

import (
	"context"

	"github.com/hawser-io/hawser/internal/leader"
)

// Election is how replicas agree on the one that works. The others keep their
// caches warm.
type Election leader.Election

// errLeaseLost ends a leader.
var errLeaseLost = leader.ErrLost

func (e Election) readable(ctx context.Context) error { return leader.Election(e).Readable(ctx) }

func (e Election) lead(ctx context.Context, observed func(leader string), work func(context.Context) error) error {
	return leader.Election(e).Lead(ctx, observed, work)
}
