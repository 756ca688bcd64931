// Package admin is the admin service: it serves operators and viewers. It lists clusters, works and discrepancies. It executes the
// decisions of operators: approve, force-delete, unbind, transfer, resolve and deny. It also sends backups. Its
// callers are already authorized.
package admin

import (
	"context"
	"fmt"
	"slices"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

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
	"github.com/hawser-io/hawser/internal/taskgroup"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// Agents gives access to the running subscriptions of agents and sources.
type Agents interface {
	// Agents returns the subscriptions of a cluster, or all if cluster is "", sorted by cluster.
	Agents(cluster string) []delivery.Agent
	// Sources returns the names of the connected sources.
	Sources() []string
	// ResolveOrphan sends a decision to the agents of a cluster that reported an AppliedManifestWork.
	ResolveOrphan(cluster, uid string, adopt bool) (name string, err error)
	// Closing returns the error of rejected calls while the broker drains, else nil.
	Closing() error
}

// Hub returns what the hub reports about clusters.
type Hub interface {
	// Clusters returns the known clusters, sorted.
	Clusters() []string
	Facts(cluster string) registration.Facts
}

// Admin implements the generated service for operators and viewers. Its methods may be called concurrently. Errors
// are *transport.Error.
type Admin struct {
	hawserv1.UnimplementedAdminServiceServer
	cfg     *settings.Config
	sync    *syncstate.State
	agents  Agents
	writer  syncstate.Writer
	denials *denylist.List
	peers   *agentstatus.Peers
	limiter scanLimiter
	// hub is nil if no source serves registration.
	hub Hub
}

// Parts are the parts of the broker that operators inspect and change.
type Parts struct {
	Sync    *syncstate.State
	Agents  Agents
	Writer  syncstate.Writer
	Peers   *agentstatus.Peers
	Denials *denylist.List
}

// New returns an Admin.
func New(cfg *settings.Config, p Parts) *Admin {
	return &Admin{cfg: cfg, sync: p.Sync, agents: p.Agents, writer: p.Writer, denials: p.Denials, peers: p.Peers, limiter: scanLimiter{cfg: cfg, slot: taskgroup.NewSemaphore(1)}}
}

// Show adds the hub's view of clusters to the lists. It is called once, before the first call.
func (a *Admin) Show(h Hub) { a.hub = h }

// Warnings returns one line for each problem that stops the broker or its sources, with the next step. Every
// caller gets them, because during such a problem an answer may be out of date.
func (a *Admin) Warnings() (all []string) {
	if err := a.cfg.Store.Err(); err != nil {
		all = append(all, fmt.Sprintf("the broker accepts no specs and statuses: %v; enlarge its volume, or restore a backup if the store is damaged", err))
	}
	for _, row := range a.cfg.Store.Rows(quota.Source, "", partRows) {
		if hub, err := a.sync.Sources.LastPosition(row.Name); (hub != nil || err != nil) && !slices.Contains(a.agents.Sources(), row.Name) {
			all = append(all, fmt.Sprintf("the hub-source of source %s is not connected: changes of its %d works reach no cluster, and statuses do not reach the hub. Run kubectl -n hawser get pods on the hub", row.Name, row.Works))
		}
	}
	return all
}

// warn sends the warnings in the header of a list.
func (a *Admin) warn(s ggrpc.ServerStream) {
	_ = s.SetHeader(metadata.MD{transportgrpc.WarningHeader: a.Warnings()}) // fails only after the first message
}

// callerOf returns the identity of the caller, the zero Identity without authentication.
func callerOf(ctx context.Context) (id identity.Identity) {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(interface{ Caller() identity.Identity }); ok {
			id = c.Caller()
		}
	}
	return id
}

// commit writes the changes of an operator.
func (a *Admin) commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	outcomes, err := a.writer.Commit(ctx, callerOf(ctx), ops...)
	if err != nil {
		return outcomes, request.Store(err)
	}
	return outcomes, nil
}

// required returns an error for the first empty value.
func required(namesAndValues ...string) error {
	for i := 0; i < len(namesAndValues); i += 2 {
		if namesAndValues[i+1] == "" {
			return request.Invalid("", "field "+namesAndValues[i]+" is empty", "set it")
		}
	}
	return nil
}
