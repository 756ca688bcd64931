package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// Approve deletes works in the name of their source, which lacks them and did not dare to.
// Nothing is deleted unless every one of them is still withheld at the given revision; one that
// changes at the very moment is left, and named in the error.
func (a *Admin) Approve(ctx context.Context, by identity.Identity, r *hawserv1.ApproveRequest) (*hawserv1.ApproveResponse, error) {
	if err := required("source", r.GetSource(), "cluster", r.GetCluster()); err != nil {
		return nil, err
	}
	if len(r.GetWorks()) == 0 {
		return nil, call.Invalid("works", "no work is named", "name works that: hawser get orphans, shows as withheld")
	}
	place := store.Scope{DataType: codec.ManifestBundles, Cluster: r.GetCluster()}
	ops := make([]store.Op, 0, len(r.GetWorks()))
	for _, w := range r.GetWorks() {
		op, err := a.deletionOf(ctx, place, r.GetSource(), w)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	outcomes, err := a.commit(ctx, by, ops)
	var deleted []string
	for i, o := range outcomes {
		switch o.Verdict {
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
	a.log.Info("deletions approved that a source withheld",
		"operator", by.Name, "source", r.GetSource(), "cluster", r.GetCluster(), "count", len(deleted))
	a.claims.Sources.Approved(place, r.GetSource(), deleted)
	return &hawserv1.ApproveResponse{}, nil
}

// deletionOf is the deletion of one work that is withheld.
func (a *Admin) deletionOf(ctx context.Context, place store.Scope, source string, w *hawserv1.WithheldDeletion) (store.Op, error) {
	key := store.Key{DataType: place.DataType, Cluster: place.Cluster, ResourceID: w.GetResourceId()}
	if !a.claims.Sources.Withholds(key, source, w.GetRevision()) {
		return store.Op{}, notWithheld(w.GetResourceId(), w.GetRevision())
	}
	r, err := a.store.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.Op{}, notWithheld(w.GetResourceId(), w.GetRevision())
	case err != nil:
		return store.Op{}, call.Store(err)
	}
	now := a.now()
	return store.Op{
		Kind: store.PutSpec, Key: key, Owner: source, Name: r.Name, Action: codec.DeleteRequest,
		Version: r.Version, Tag: codec.TagOf(true, r.Version, "", nil),
		Deleting: true, DeletedAt: now, IfRevision: w.GetRevision(), At: now,
	}, nil
}

func notWithheld(id string, revision uint64) *transport.Error {
	return &transport.Error{
		Code: transport.CodeConflict, Next: transport.NextStop,
		Message: fmt.Sprintf("the deletion of work %s at revision %d is not withheld any more", id, revision),
		Hint:    "look again with: hawser get orphans",
	}
}
