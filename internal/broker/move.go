package broker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// movePause is the longest time between two clients that move: 100 clients have moved within a second.
const movePause = 10 * time.Millisecond

// MoveClients moves the clients to other replicas before Run ends, so that they do not all connect there at the same
// moment. It ends the subscriptions one after the other within a time, in random order, with the advice to use another
// server. Meanwhile it accepts the publishes of the others, and no new subscriptions. It returns after the last one,
// or when ctx ends.
//
// Without another replica it does nothing. The clients then come back only after the restart, and a slow end would
// delay all of them.
func (b *Broker) MoveClients(ctx context.Context, within time.Duration) {
	if !b.hasReplicas(ctx) {
		return
	}
	b.moving.Store(true)
	why := request.ErrMoved()
	ends := b.feed.Move(why)
	if b.registration != nil {
		ends = append(ends, b.registration.Move(why)...)
	}
	rand.Shuffle(len(ends), func(i, j int) { ends[i], ends[j] = ends[j], ends[i] })
	within = min(within, time.Duration(len(ends))*movePause)
	b.cfg.Log.Info("moving the clients to other replicas", "subscriptions", len(ends), "within", within.String())
	begun := b.cfg.Now()
	for moved := 0; moved < len(ends); {
		if !taskgroup.Sleep(ctx, movePause) {
			return
		}
		for due := dueMoves(len(ends), b.cfg.Now().Sub(begun), within); moved < due; moved++ {
			ends[moved]()
		}
	}
}

// hasReplicas reports whether another broker serves the store. It returns false if the database does not answer: then
// the others cannot serve the clients either.
func (b *Broker) hasReplicas(ctx context.Context) bool {
	const patience = time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ids, err := b.cfg.Store.Replicas(ctx)
	if err != nil {
		b.cfg.Log.Warn("clients do not move to other replicas before the end", "error", err)
	}
	return err == nil && len(ids) > 1
}

// dueMoves returns how many of n clients have moved at a time after the begin.
func dueMoves(n int, elapsed, within time.Duration) int {
	if elapsed >= within {
		return n
	}
	return int(float64(n) * elapsed.Seconds() / within.Seconds())
}
