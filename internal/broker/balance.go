package broker

import (
	"context"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

const (
	// balanceEvery is the pause between two decisions of balance, and movesAtOnce the most clients that move after one.
	balanceEvery = 2 * time.Second
	movesAtOnce  = 100
	// balanceFor is the time after the start of a replica in which clients move to it.
	balanceFor = 5 * time.Minute
	// fewClients are not worth a move.
	fewClients = 10
)

// balance moves agents to a replica that has started, until ctx ends. Otherwise the replica that a rolling restart
// reaches last would have no clients for hours, and the others too many.
func (b *Broker) balance(ctx context.Context) error {
	var s spread
	for taskgroup.Sleep(ctx, balanceEvery) {
		if b.moving.Load() {
			continue
		}
		if n := s.surplus(b.cfg.Now(), b.cfg.Replicas.Live(), b.feed.AgentCount(), b.peers.Elsewhere); n > 0 {
			b.cfg.Log.Info("moving agents to a replica that has started", "agents", n)
			b.feed.MoveAgents(request.ErrMoved(), n)
		}
	}
	return nil
}

// spread decides how many agents move to a replica that has started.
type spread struct {
	known []string // the replicas at the last decision; nil before the first one
	// total is the number of agents when a replica started. Until a time the agents above a share of it move, at most
	// left of them.
	total, left int
	until       time.Time
}

// surplus returns how many agents are to move now. live are the live replicas, own is the number of agents at this one,
// elsewhere returns that at the others. A client chooses another replica at random, so some come back, or come from
// others. Because left is limited, a client that reaches only this replica moves few times.
func (s *spread) surplus(now time.Time, live []string, own int, elsewhere func() int) (move int) {
	if len(live) == 0 {
		return 0 // they are unknown yet
	}
	started := s.known != nil && slices.ContainsFunc(live, func(id string) bool { return !slices.Contains(s.known, id) })
	s.known = live
	if started {
		s.total, s.left, s.until = own+elsewhere(), own, now.Add(balanceFor)
	}
	if now.After(s.until) {
		return 0
	}
	mean := s.total / len(live) // the replica that the new one replaces ends soon
	move = max(0, min(own-mean-mean/4-fewClients, s.left, movesAtOnce))
	s.left -= move
	return move
}
