package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// approve deletes works in the name of their source, which lacks them and did
// not dare to. Nothing is deleted unless every one of them is still withheld at
// the given revision; one that changes at the very moment is left, and named in
// the error. It is the broker's half of what an operator (by) asks for, who is
// authorized already.
func (b *Broker) approve(ctx context.Context, by identity.Identity, p place, source string, works []codec.WithheldDeletion) error {
	if len(works) == 0 {
		return invalid("works", "no work is named", "name works that: hawser get orphans, shows as withheld")
	}
	ops := make([]store.Op, 0, len(works))
	for _, w := range works {
		op, err := b.approved(ctx, p, source, w)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	deleted := 0
	for batch := range slices.Chunk(ops, jobOps) {
		outcomes, err := b.commits.commit(ctx, by, batch...)
		if err != nil {
			return storeError(err)
		}
		for i, o := range outcomes {
			switch o.Verdict {
			case store.Accepted, store.Confirmed, store.Unchanged:
				deleted++
			default:
				return notWithheld(batch[i].Key.ResourceID, batch[i].IfRevision)
			}
		}
		b.ledger.approved(p, source, batch)
	}
	b.log.Info("deletions approved that a source withheld",
		"operator", by.Name, "source", source, "cluster", p.cluster, "count", deleted)
	if !b.ledger.holdsBack(p, source) {
		// All that kept the source from being done was decided.
		o := outcome{ownership: ownership{p.dataType, source}, compared: []string{p.cluster}}
		o.begun = b.comparisons.now(o.ownership)
		return b.concluded(o, func() {})
	}
	return nil
}

// approved is the deletion of one work.
func (b *Broker) approved(ctx context.Context, p place, source string, w codec.WithheldDeletion) (store.Op, error) {
	key := store.Key{DataType: p.dataType, Cluster: p.cluster, ResourceID: w.ResourceID}
	if !b.ledger.withholds(key, source, w.Revision) {
		return store.Op{}, notWithheld(w.ResourceID, w.Revision)
	}
	r, err := b.store.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.Op{}, notWithheld(w.ResourceID, w.Revision)
	case err != nil:
		return store.Op{}, storeError(err)
	}
	now := b.cfg.Now()
	return store.Op{
		Kind: store.PutSpec, Key: key, Owner: source, Name: r.Name, Action: codec.DeleteRequest,
		Version: r.Version, Tag: codec.TagOf(true, r.Version, "", nil),
		Deleting: true, DeletedAt: now, IfRevision: w.Revision, At: now,
	}, nil
}

func notWithheld(id string, revision uint64) *transport.Error {
	return &transport.Error{
		Code: transport.CodeConflict, Next: transport.NextStop,
		Message: fmt.Sprintf("the deletion of work %s at revision %d is not withheld any more", id, revision),
		Hint:    "look again with: hawser get orphans",
	}
}
