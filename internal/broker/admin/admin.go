// Package admin is what operators and viewers ask of a broker: what there is (clusters, works,
// what does not fit together), and what only a person may decide (approve, forget, adopt,
// resolve), who is kept out, and a backup. Who calls is authorized already.
package admin

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/claims"
	"github.com/hawser-io/hawser/internal/broker/denials"
	"github.com/hawser-io/hawser/internal/broker/feed"
	"github.com/hawser-io/hawser/internal/broker/peers"
	"github.com/hawser-io/hawser/internal/broker/registration"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
)

// Agents are the running subscriptions of agents.
type Agents interface {
	// Agents returns those of a cluster, or all where it is "", by cluster.
	Agents(cluster string) []feed.Agent
	// Resolve hands an order to the agents of a cluster that named an AppliedManifestWork.
	Resolve(cluster, uid string, adopt bool) (name string, err error)
	// Closing returns the error that calls are refused with, nil while they are not.
	Closing() error
}

// Hub is what the hub says of clusters.
type Hub interface {
	// Clusters returns those that it knows, sorted.
	Clusters() []string
	Facts(cluster string) registration.Facts
}

// Admin answers operators and viewers. Its methods may be called concurrently.
type Admin struct {
	cfg     *call.Config
	claims  *claims.Claims
	agents  Agents
	writer  claims.Writer
	denials *denials.List
	peers   *peers.Peers
	turns   turns
	// hub is nil where no source serves registration.
	hub Hub
}

// New returns an admin, which writes through w. The error says what in the store
// cannot be read.
func New(cfg *call.Config, c *claims.Claims, a Agents, w claims.Writer, p *peers.Peers) (*Admin, error) {
	d, err := denials.New(cfg.Store)
	if err != nil {
		return nil, err
	}
	return &Admin{cfg: cfg, claims: c, agents: a, writer: w, denials: d, peers: p, turns: newTurns(cfg)}, nil
}

// Show has the lists show what the hub says of clusters. It is called once, before anybody asks.
func (a *Admin) Show(h Hub) { a.hub = h }

// commit writes what an operator wants done.
func (a *Admin) commit(ctx context.Context, by identity.Identity, ops []store.Op) ([]store.Outcome, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	outcomes, err := a.writer.Commit(ctx, by, ops...)
	if err != nil {
		return outcomes, call.Store(err)
	}
	return outcomes, nil
}

// required is the error for the first of the named values that is empty.
func required(namesAndValues ...string) error {
	for i := 0; i < len(namesAndValues); i += 2 {
		if namesAndValues[i+1] == "" {
			return call.Invalid("", "field "+namesAndValues[i]+" is empty", "set it")
		}
	}
	return nil
}
