package admin

import (
	"context"
	"errors"
	"fmt"

	ggrpc "google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// ListWorks sends a page of the records of a cluster, a source, or both, sorted by cluster and id. It omits
// confirmed tombstones that their source has acknowledged: they are kept only for an agent that may connect.
func (a *Admin) ListWorks(r *hawserv1.ListWorksRequest, s ggrpc.ServerStreamingServer[hawserv1.ListWorksResponse]) error {
	var places []position
	return list(a, r.GetPageToken(), s, func(p *part[hawserv1.ListWorksResponse]) error {
		var metas []store.Meta // of the rows
		defer func() { a.judge(s.Context(), p.rows, metas) }()
		if places == nil {
			places = a.scopes(r.GetCluster())
		}
		from := p.after
		from.id = ""
		for i, at := range append(from.within(places), behind(places, from)...) {
			if i == 0 && at == from {
				at.id = p.after.id
			}
			err := a.cfg.Store.ScanAfter(s.Context(), at.scope, at.id, func(m store.Meta) error {
				if p.full() {
					return errPageFull
				}
				at.id = m.ResourceID
				if owner := r.GetSource(); owner != "" && m.Owner != owner || m.State == store.ConfirmedTombstone && !m.CollectableWhenAcked() {
					p.skip(at)
				} else {
					p.add(at, workOf(&m))
					metas = append(metas, m)
				}
				return nil
			})
			switch {
			case errors.Is(err, errPageFull):
				return nil
			case err != nil:
				return request.Store(err)
			}
			p.skip(at) // there may be many clusters without works
			if p.full() {
				return nil
			}
		}
		p.done = true
		return nil
	})
}

// errPageFull ends a scan.
var errPageFull = errors.New("the page is full")

var states = map[store.State]hawserv1.WorkState{
	store.Live: hawserv1.WorkState_WORK_STATE_LIVE, store.Tombstone: hawserv1.WorkState_WORK_STATE_DELETING, store.ConfirmedTombstone: hawserv1.WorkState_WORK_STATE_DELETED,
}

func workOf(m *store.Meta) *hawserv1.ListWorksResponse {
	w := &hawserv1.ListWorksResponse{
		Cluster: m.Cluster, ResourceId: m.ResourceID, Name: m.Name, Source: m.Owner, State: states[m.State],
		Version: m.Version, Revision: m.SpecRevision,
		Reported: m.StatusRevision != 0, ReportedVersion: m.StatusVersion, DeletedAt: timeOf(m.DeletedAt),
	}
	if m.Queued != nil {
		w.QueuedResourceId = m.Queued.ResourceID
	}
	return w
}

// judge adds the health from the statuses to the rows. A record that cannot be read has none; the store reports
// the damage.
func (a *Admin) judge(ctx context.Context, rows []*hawserv1.ListWorksResponse, metas []store.Meta) {
	for i, m := range metas {
		if m.State == store.ConfirmedTombstone || m.StatusRevision == 0 {
			continue
		}
		if r, err := a.cfg.Store.Get(ctx, m.Key); err == nil {
			rows[i].Health, rows[i].Message = healthOf(r.Status)
		}
	}
}

// healthOf returns the health in a status event. An unreadable event has none.
func healthOf(event []byte) (hawserv1.WorkHealth, string) {
	env, err := codec.ParseEnvelope(event)
	if err != nil {
		return hawserv1.WorkHealth_WORK_HEALTH_UNSPECIFIED, ""
	}
	v, err := codec.SummaryOf(env.Data)
	switch {
	case err != nil:
	case v.Applied == "False":
		return hawserv1.WorkHealth_WORK_HEALTH_NOT_APPLIED, v.Message
	case v.Available == "False":
		return hawserv1.WorkHealth_WORK_HEALTH_NOT_AVAILABLE, v.Message
	case v.Applied == "True" && v.Available == "True":
		return hawserv1.WorkHealth_WORK_HEALTH_AVAILABLE, v.Message
	case v.Applied == "True":
		return hawserv1.WorkHealth_WORK_HEALTH_APPLIED, v.Message
	}
	return hawserv1.WorkHealth_WORK_HEALTH_UNSPECIFIED, v.Message
}

// ForceDeleteWork removes a record without the confirmation of its cluster.
func (a *Admin) ForceDeleteWork(ctx context.Context, r *hawserv1.ForceDeleteWorkRequest) (*hawserv1.ForceDeleteWorkResponse, error) {
	if err := required("cluster", r.GetCluster(), "resource_id", r.GetResourceId()); err != nil {
		return nil, err
	}
	return &hawserv1.ForceDeleteWorkResponse{}, a.operate(ctx, "forget", store.Op{
		Kind: store.Forget, Key: store.Key{Cluster: r.GetCluster(), ResourceID: r.GetResourceId()},
	})
}

// TransferWork transfers a record to another source.
func (a *Admin) TransferWork(ctx context.Context, r *hawserv1.TransferWorkRequest) (*hawserv1.TransferWorkResponse, error) {
	if err := required("cluster", r.GetCluster(), "resource_id", r.GetResourceId(), "source", r.GetSource()); err != nil {
		return nil, err
	}
	return &hawserv1.TransferWorkResponse{}, a.operate(ctx, "adopt", store.Op{
		Kind: store.Transfer, Owner: r.GetSource(), Key: store.Key{Cluster: r.GetCluster(), ResourceID: r.GetResourceId()},
	})
}

// operate commits an operator's change of a work. If several data types have a record with the id, all are
// changed.
func (a *Admin) operate(ctx context.Context, change string, op store.Op) error {
	if err := a.agents.Closing(); err != nil {
		return err
	}
	op.At = a.cfg.Now()
	cluster, id := op.Key.Cluster, op.Key.ResourceID
	found := false
	for _, d := range codec.DataTypes() {
		op.Key.DataType = d
		before, err := a.cfg.Store.Get(ctx, op.Key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return request.Store(err)
		}
		var ops []store.Op
		if before.Owner != "" && before.Owner != op.Owner {
			ops = a.sync.Sources.Revoke(store.Scope{DataType: d, Cluster: cluster}, before.Owner)
		}
		outcomes, err := a.commit(ctx, append(ops, op))
		if err != nil {
			return err
		}
		switch o := outcomes[len(ops)]; o.Result {
		case store.Accepted, store.Confirmed:
			found = true
			a.cfg.Log.Info("an operator changed a work", "operator", callerOf(ctx).Name, "cluster", cluster, "resource_id", id, "change", change, "revision", o.Revision)
		case store.Unchanged:
			found = true
		case store.Ignored:
		case store.Invalid:
			return request.Invalid("", o.Detail, "")
		default:
			return request.Internal(errors.New("unexpected result"))
		}
	}
	if !found {
		return request.NotFound("cluster "+cluster+" has no work "+id, "hawser get works --cluster "+cluster+" shows its works")
	}
	return nil
}

// Approve deletes works on behalf of their source, which withholds the deletions. Nothing is deleted unless all
// of them are still withheld at the given revision. A work that changes at the same moment is kept, and named
// in the error.
func (a *Admin) Approve(ctx context.Context, r *hawserv1.ApproveRequest) (*hawserv1.ApproveResponse, error) {
	if err := required("source", r.GetSource(), "cluster", r.GetCluster()); err != nil {
		return nil, err
	}
	if len(r.GetWorks()) == 0 {
		return nil, request.Invalid("works", "no work is named", "name the works; list the withheld ones with: hawser get discrepancies")
	}
	scope := store.Scope{DataType: codec.ManifestBundles, Cluster: r.GetCluster()}
	ops := make([]store.Op, 0, len(r.GetWorks()))
	for _, w := range r.GetWorks() {
		op, err := a.deletionOf(ctx, scope, r.GetSource(), w)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	outcomes, err := a.commit(ctx, ops)
	var deleted []string
	for i, o := range outcomes {
		switch o.Result {
		case store.Accepted, store.Confirmed, store.Unchanged:
			deleted = append(deleted, ops[i].Key.ResourceID)
		default:
			if err == nil {
				err = notWithheld(ops[i].Key.ResourceID, ops[i].IfRevision)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	a.cfg.Log.Info("an operator approved withheld deletions",
		"operator", callerOf(ctx).Name, "source", r.GetSource(), "cluster", r.GetCluster(), "count", len(deleted))
	return &hawserv1.ApproveResponse{}, a.sync.Sources.Approved(ctx, scope, r.GetSource(), deleted)
}

// deletionOf returns the deletion of one work that is withheld.
func (a *Admin) deletionOf(ctx context.Context, scope store.Scope, source string, w *hawserv1.WithheldDeletion) (store.Op, error) {
	key := store.Key{DataType: scope.DataType, Cluster: scope.Cluster, ResourceID: w.GetResourceId()}
	if !a.sync.Sources.Withholds(key, source, w.GetRevision()) {
		return store.Op{}, notWithheld(w.GetResourceId(), w.GetRevision())
	}
	r, err := a.cfg.Store.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.Op{}, notWithheld(w.GetResourceId(), w.GetRevision())
	case err != nil:
		return store.Op{}, request.Store(err)
	}
	now := a.cfg.Now()
	return store.Op{
		Kind: store.PutSpec, Key: key, Owner: source, Name: r.Name, Action: codec.DeleteRequest,
		Version: r.Version, Tag: codec.TagOf(true, r.Version, "", nil),
		Deleting: true, DeletedAt: now, IfRevision: w.GetRevision(), At: now,
	}, nil
}

func notWithheld(id string, revision uint64) *transport.Error {
	return transport.Refused(transport.CodeConflict, "",
		fmt.Sprintf("the deletion of work %s at revision %d is not withheld any more", id, revision), "look again with: hawser get discrepancies")
}
