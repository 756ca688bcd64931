// Package admin is what operators and viewers ask of a broker: what there is (clusters, works,
// what does not fit together), and what only a person may decide (approve, forget, adopt,
// resolve), who is kept out, and a backup. Who calls is authorized already.
package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/delivery"
	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/registration"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/identity"
)

// Agents are the running subscriptions of agents.
type Agents interface {
	// Agents returns those of a cluster, or all where it is "", by cluster.
	Agents(cluster string) []delivery.Agent
	// Sources returns the names of the sources that are connected.
	Sources() []string
	// ResolveOrphan hands an order to the agents of a cluster that named an AppliedManifestWork.
	ResolveOrphan(cluster, uid string, adopt bool) (name string, err error)
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
	cfg     *settings.Config
	sync    *syncstate.State
	agents  Agents
	writer  syncstate.Writer
	denials *denylist.List
	peers   *agentstatus.Peers
	limiter scanLimiter
	// hub is nil where no source serves registration.
	hub Hub
}

// New returns an admin, which writes through w. The error says what in the store
// cannot be read.
func New(cfg *settings.Config, c *syncstate.State, a Agents, w syncstate.Writer, p *agentstatus.Peers) (*Admin, error) {
	d, err := denylist.New(cfg.Store)
	if err != nil {
		return nil, err
	}
	return &Admin{cfg: cfg, sync: c, agents: a, writer: w, denials: d, peers: p, limiter: newScanLimiter(cfg)}, nil
}

// Show has the lists show what the hub says of clusters. It is called once, before anybody asks.
func (a *Admin) Show(h Hub) { a.hub = h }

// Warnings are what keeps the broker, or the sources behind it, from their work: one line each,
// with what to do. Whoever asks for anything is told, since an answer may be out of date then.
func (a *Admin) Warnings() (all []string) {
	if err := a.cfg.Store.Err(); err != nil {
		all = append(all, fmt.Sprintf("the broker takes no specs and statuses: %v; give its volume more room, and where the store is damaged restore a backup", err))
	}
	for _, row := range a.cfg.Store.Rows(quota.Source, "", partRows) {
		if hub, err := a.sync.Sources.LastPosition(row.Name); (hub != nil || err != nil) && !slices.Contains(a.agents.Sources(), row.Name) {
			all = append(all, fmt.Sprintf("the hub-source of source %s is not connected: changes of its %d works reach no cluster, and their statuses do not reach the hub; see kubectl -n hawser get pods on the hub", row.Name, row.Works))
		}
	}
	return all
}

// commit writes what an operator wants done.
func (a *Admin) commit(ctx context.Context, by identity.Identity, ops []store.Op) ([]store.Outcome, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	outcomes, err := a.writer.Commit(ctx, by, ops...)
	if err != nil {
		return outcomes, request.Store(err)
	}
	return outcomes, nil
}

// required is the error for the first of the named values that is empty.
func required(namesAndValues ...string) error {
	for i := 0; i < len(namesAndValues); i += 2 {
		if namesAndValues[i+1] == "" {
			return request.Invalid("", "field "+namesAndValues[i]+" is empty", "set it")
		}
	}
	return nil
}
