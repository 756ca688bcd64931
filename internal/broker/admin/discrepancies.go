package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ggrpc "google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/delivery"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// ListDiscrepancies sends a page of discrepancies, sorted by cluster: first of works, then of
// AppliedManifestWorks.
func (a *Admin) ListDiscrepancies(r *hawserv1.ListDiscrepanciesRequest, s ggrpc.ServerStreamingServer[hawserv1.ListDiscrepanciesResponse]) error {
	return list(a, r.GetPageToken(), s, func(p *part[hawserv1.ListDiscrepanciesResponse]) error {
		agents, elsewhere := a.agents.Agents(r.GetCluster()), a.peers.ConnectedElsewhere(r.GetCluster())
		for scope, c := range elsewhere {
			agents = append(agents, delivery.Agent{Scope: scope, Applied: c.Applied})
		}
		for _, at := range behind(a.orphanScopes(r.GetCluster(), agents, elsewhere), p.after) {
			if p.full() {
				return nil
			}
			p.skip(at)
			if at.phase == applied {
				a.addApplied(p, at, agents)
				continue
			}
			for _, f := range withListed(a.sync.Findings(at.scope), at.scope, elsewhere[at.scope].Listed) {
				o, err := a.explain(s.Context(), f)
				switch {
				case err != nil:
					return err
				case o != nil:
					p.add(at, o)
				}
			}
		}
		p.done = true
		return nil
	})
}

// applied is the second phase of the list of discrepancies.
const applied = 1

// withListed adds what agents at other replicas listed to the discrepancies of a cluster.
func withListed(found []syncstate.Discrepancy, at store.Scope, listed []agentstatus.Listed) []syncstate.Discrepancy {
	for _, l := range listed {
		d := syncstate.Discrepancy{Cause: syncstate.Orphan, Scope: at, ResourceID: l.ID, Omitted: l.More}
		if l.Ahead {
			d.Cause = syncstate.Ahead
		}
		if !slices.Contains(found, d) { // another agent of the cluster may be connected here
			found = append(found, d)
		}
	}
	return found
}

// orphanScopes returns the scopes with discrepancies, in the order of the list.
func (a *Admin) orphanScopes(cluster string, agents []delivery.Agent, elsewhere map[store.Scope]agentstatus.Connection) (all []position) {
	for _, at := range a.sync.Scopes() {
		if cluster == "" || at.Cluster == cluster {
			all = append(all, position{scope: at})
		}
	}
	for _, s := range agents {
		if len(elsewhere[s.Scope].Listed) > 0 {
			all = append(all, position{scope: s.Scope})
		}
		if len(s.Applied.Records) > 0 || s.Applied.More > 0 {
			all = append(all, position{phase: applied, scope: store.Scope{Cluster: s.Scope.Cluster}})
		}
	}
	slices.SortFunc(all, position.compare)
	return slices.Compact(all)
}

// explain converts a discrepancy into a row, nil if it is none any more.
func (a *Admin) explain(ctx context.Context, f syncstate.Discrepancy) (*hawserv1.ListDiscrepanciesResponse, error) {
	o := &hawserv1.ListDiscrepanciesResponse{
		Cluster: f.Scope.Cluster, ResourceId: f.ResourceID, Name: f.Name, Source: f.Source, Revision: f.Revision, Detail: f.Detail,
	}
	switch f.Cause {
	case syncstate.Orphan:
		o.Cause = hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_ORPHAN
		o.Detail = "the agent holds it, the broker has no record of it"
		if f.Omitted > 0 {
			o.Detail = fmt.Sprintf("and %d more, which are counted and not named", f.Omitted)
		}
	case syncstate.Ahead:
		o.Cause = hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_AHEAD
		o.Detail = "the agent holds a newer version, its source has to publish it again"
		switch r, err := a.cfg.Store.Get(ctx, store.Key{DataType: f.Scope.DataType, Cluster: f.Scope.Cluster, ResourceID: f.ResourceID}); {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return nil, request.Store(err)
		default:
			o.Name, o.Source, o.Revision = r.Name, r.Owner, r.SpecRevision
		}
	case syncstate.Withheld:
		o.Cause = hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_WITHHELD
		// A broker that has started since does not know which works changed after the report.
		m, err := a.cfg.Store.Meta(ctx, store.Key{DataType: f.Scope.DataType, Cluster: f.Scope.Cluster, ResourceID: f.ResourceID})
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && m.SpecRevision != f.Revision:
			return nil, nil //nolint:nilnil // absent is a value here
		case err != nil:
			return nil, request.Store(err)
		}
	case syncstate.Quarantined:
		o.Cause = hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_QUARANTINED
		o.Detail = "cluster " + f.Detail + " uses this name, which is bound to another cluster"
	}
	return o, nil
}

// addApplied adds the orphan AppliedManifestWorks of a cluster.
func (a *Admin) addApplied(p *part[hawserv1.ListDiscrepanciesResponse], at position, agents []delivery.Agent) {
	reported := map[string]bool{} // several agents of one cluster report the same ones
	for _, s := range agents {
		if s.Scope.Cluster != at.scope.Cluster {
			continue
		}
		for _, r := range s.Applied.Records {
			if !reported[r.UID] {
				reported[r.UID] = true
				p.add(at, appliedOf(s.Scope.Cluster, r, a.cfg.Now()))
			}
		}
		if s.Applied.More > 0 {
			p.add(at, &hawserv1.ListDiscrepanciesResponse{
				Cluster: s.Scope.Cluster, Cause: hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_UNOWNED,
				Detail: fmt.Sprintf("and %d more AppliedManifestWorks, which are counted and not named", s.Applied.More),
			})
		}
	}
}

func appliedOf(cluster string, r codec.OrphanRecord, now time.Time) *hawserv1.ListDiscrepanciesResponse {
	o := &hawserv1.ListDiscrepanciesResponse{Cluster: cluster, Cause: hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_UNOWNED, ResourceId: r.UID, Name: r.Name}
	age := "an unknown age"
	if !r.Created.IsZero() {
		age = now.Sub(r.Created).Truncate(time.Second).String()
	}
	o.Detail = fmt.Sprintf("AppliedManifestWork with %d objects, %s old, and no work", r.Objects, age)
	if r.Shared {
		o.Cause = hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_SHARED
		o.Detail = fmt.Sprintf("AppliedManifestWork of another hub with %d objects, %s old", r.Objects, age)
	}
	if r.Outcome != "" {
		o.Detail += "; " + r.Outcome
	}
	return o
}

// ResolveOrphan sends the agent of a cluster the order to remove or to adopt an orphan AppliedManifestWork. The
// next report of the agent shows the result.
func (a *Admin) ResolveOrphan(ctx context.Context, r *hawserv1.ResolveOrphanRequest) (*hawserv1.ResolveOrphanResponse, error) {
	if err := required("cluster", r.GetCluster(), "uid", r.GetUid()); err != nil {
		return nil, err
	}
	name, err := a.agents.ResolveOrphan(r.GetCluster(), r.GetUid(), r.GetAdopt())
	if err == nil {
		a.cfg.Log.Info("an operator resolves an orphan AppliedManifestWork", "operator", callerOf(ctx).Name, "cluster", r.GetCluster(), "uid", r.GetUid(), "name", name, "adopt", r.GetAdopt())
	}
	return &hawserv1.ResolveOrphanResponse{Name: name}, err
}
