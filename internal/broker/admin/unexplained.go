package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/claims"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// ListOrphans sends what does not fit together, sorted by cluster.
func (a *Admin) ListOrphans(ctx context.Context, r *hawserv1.ListOrphansRequest, send func(*hawserv1.ListOrphansResponse) error) error {
	err := a.claims.Findings(r.GetCluster(), func(f claims.Finding) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		o, err := a.explain(ctx, f)
		if err != nil {
			return err
		}
		return send(o)
	})
	if err != nil {
		return err
	}
	return a.listApplied(r.GetCluster(), send)
}

// explain is what is sent of a finding.
func (a *Admin) explain(ctx context.Context, f claims.Finding) (*hawserv1.ListOrphansResponse, error) {
	o := &hawserv1.ListOrphansResponse{
		Cluster: f.Place.Cluster, ResourceId: f.ResourceID, Name: f.Name, Source: f.Source, Revision: f.Revision, Detail: f.Detail,
	}
	switch f.Cause {
	case claims.Unexplained:
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_NO_RECORD
		o.Detail = "the agent holds it, the broker knows nothing of it"
		if f.Omitted > 0 {
			o.Detail = fmt.Sprintf("and %d more, which are counted and not named", f.Omitted)
		}
	case claims.Newer:
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_AHEAD
		o.Detail = "the agent holds a newer version, its source has to publish it again"
		switch r, err := a.cfg.Store.Get(ctx, store.Key{DataType: f.Place.DataType, Cluster: f.Place.Cluster, ResourceID: f.ResourceID}); {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return nil, call.Store(err)
		default:
			o.Name, o.Source, o.Revision = r.Name, r.Owner, r.SpecRevision
		}
	case claims.Withheld:
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_WITHHELD
	case claims.Quarantined:
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_STRANGER
		o.Detail = "cluster " + f.Detail + " comes under this name, which is another cluster's"
	}
	return o, nil
}

// listApplied sends the AppliedManifestWorks that no work explains.
func (a *Admin) listApplied(cluster string, send func(*hawserv1.ListOrphansResponse) error) error {
	type object struct{ cluster, uid string }
	told := map[object]bool{} // several agents of one cluster see the same
	for _, s := range a.agents.Agents(cluster) {
		for _, r := range s.Applied.Records {
			key := object{s.Place.Cluster, r.UID}
			if told[key] {
				continue
			}
			told[key] = true
			if err := send(appliedOf(s.Place.Cluster, r, a.cfg.Now())); err != nil {
				return err
			}
		}
		if s.Applied.More > 0 {
			err := send(&hawserv1.ListOrphansResponse{
				Cluster: s.Place.Cluster, Cause: hawserv1.OrphanCause_ORPHAN_CAUSE_NO_OWNER,
				Detail: fmt.Sprintf("and %d more AppliedManifestWorks, which are counted and not named", s.Applied.More),
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func appliedOf(cluster string, r codec.UnexplainedRecord, now time.Time) *hawserv1.ListOrphansResponse {
	o := &hawserv1.ListOrphansResponse{Cluster: cluster, Cause: hawserv1.OrphanCause_ORPHAN_CAUSE_NO_OWNER, ResourceId: r.UID, Name: r.Name}
	age := "an unknown age"
	if !r.Created.IsZero() {
		age = now.Sub(r.Created).Truncate(time.Second).String()
	}
	o.Detail = fmt.Sprintf("AppliedManifestWork with %d objects, %s old, and no work", r.Objects, age)
	if r.Shared {
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_SHARED
		o.Detail = fmt.Sprintf("AppliedManifestWork of another hub with %d objects, %s old", r.Objects, age)
	}
	if r.Outcome != "" {
		o.Detail += "; " + r.Outcome
	}
	return o
}

// Resolve has the agent of a cluster remove or adopt what no work explains. What became of it
// the agent tells by what it lists next.
func (a *Admin) Resolve(_ context.Context, by identity.Identity, r *hawserv1.ResolveRequest) (*hawserv1.ResolveResponse, error) {
	if err := required("cluster", r.GetCluster(), "uid", r.GetUid()); err != nil {
		return nil, err
	}
	name, err := a.agents.Resolve(r.GetCluster(), r.GetUid(), r.GetAdopt())
	if err == nil {
		a.cfg.Log.Info("an operator resolves an AppliedManifestWork without an owner", "operator", by.Name, "cluster", r.GetCluster(), "uid", r.GetUid(), "name", name, "adopt", r.GetAdopt())
	}
	return &hawserv1.ResolveResponse{Name: name}, err
}
