package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// PutSpec commits a spec or a deletion.
func (i *Intake) PutSpec(ctx context.Context, e *request.Event) (transport.Receipt, error) {
	env := e.Env
	if err := check(e); err != nil {
		return transport.Receipt{}, err
	}
	if err := checkSpec(env); err != nil {
		return transport.Receipt{}, err
	}
	event, err := e.Stored(i.cfg.MaxEventBytes)
	if err != nil {
		return transport.Receipt{}, err
	}
	terms := i.cfg.Quotas.Of(env.Source)
	op := store.Op{
		Kind: store.PutSpec, Key: keyOf(env), Owner: env.Source, Name: env.ObjectName,
		Action: env.Type.Action, Version: trueVersion(env),
		Tag:      codec.TagOf(env.Deleting, env.Version, env.RawMetadata, env.Data),
		Deleting: env.Deleting, DeletedAt: env.DeletedAt,
		Supersedes: env.Supersedes, IfRevision: env.IfRevision, Reported: env.NeedsConfirm,
		Quota: &terms.Quota, OutOfScope: !terms.AllowedClusters.Covers(env.Cluster),
		Event: event, At: i.cfg.Now(),
	}
	if env.Deleting {
		// The stored event is the last spec; the record has the deletion and its time.
		op.Event = nil
		if len(env.Data) > 0 {
			live := env.Type
			live.Action = codec.UpdateRequest
			op.Event = codec.AppendType(codec.WithoutAttribute(event, codec.ExtDeletionTimestamp), live)
		}
	}
	r, err := i.put(ctx, e, op)
	if op.OutOfScope && r.Outcome == codec.OutcomeIgnored {
		r.Outcome = codec.OutcomeConfirmed // the source has no record on this cluster
	}
	return r, err
}

// PutStatus commits a status from an agent.
func (i *Intake) PutStatus(ctx context.Context, e *request.Event) (transport.Receipt, error) {
	env := e.Env
	if err := check(e); err != nil {
		return transport.Receipt{}, err
	}
	if env.SequenceID == "" {
		return transport.Receipt{}, request.Missing(codec.ExtSequenceID)
	}
	// Of the status of an unknown work only the condition Deleted matters: with it, an OCM agent also forgets the
	// name of the work.
	head := i.cfg.Store.Head().Revision // not after the record, see repeated
	m, err := i.cfg.Store.Meta(ctx, keyOf(env))
	unknown := errors.Is(err, store.ErrNotFound) || m.State == store.ConfirmedTombstone
	if err != nil && !unknown {
		return transport.Receipt{}, request.Store(err)
	}
	reported, err := codec.SummaryOf(env.Data)
	if err != nil {
		return transport.Receipt{}, transport.Undecodable(err)
	}
	if unknown && !reported.Deleted {
		return transport.Receipt{Outcome: codec.OutcomeIgnored}, nil
	}
	op := store.Op{
		Kind: store.PutStatus, Key: keyOf(env), Action: env.Type.Action, Version: trueVersion(env),
		Sequence: env.SequenceID, StatusHash: env.StatusHash, Deleted: reported.Deleted, Failing: reported.Fails(),
		Quota: &i.cfg.Quotas.Of("").Quota, At: i.cfg.Now(),
	}
	if store.Repeats(&m, &op) && codec.CheckSequence(op.Sequence, op.At) == nil {
		return i.repeated(e, head)
	}
	if op.Event, err = e.Stored(i.cfg.MaxEventBytes); err != nil {
		return transport.Receipt{}, err
	}
	r, err := i.put(ctx, e, op)
	if err == nil && r.Outcome == codec.OutcomeAccepted {
		i.cfg.Times.Confirmed(&m, trueVersion(env))
	}
	return r, err
}

// repeated answers a status that is stored already, without a commit. The stored status is durable, and no op in
// the queue is acknowledged yet, so the answer is that of a commit before them. head was read before the record:
// the receipt of a later commit of the record never has a lower revision.
func (i *Intake) repeated(e *request.Event, head uint64) (transport.Receipt, error) {
	if _, _, err := i.guard(e); err != nil {
		return transport.Receipt{}, err
	}
	return transport.Receipt{Outcome: codec.OutcomeUnchanged, Revision: head}, nil
}

func keyOf(env *codec.Envelope) store.Key {
	return store.Key{DataType: env.Type.DataType, Cluster: env.Cluster, ResourceID: env.ResourceID}
}

// check returns an error if an event of a work lacks a required attribute.
func check(e *request.Event) error {
	switch {
	case e.Env.Cluster == "":
		return request.Missing(codec.ExtClusterName)
	case e.Env.ResourceID == "":
		return request.Missing(codec.ExtResourceID)
	case !e.Env.HasVersion:
		return request.Missing(codec.ExtResourceVersion)
	}
	return nil
}

// checkSpec returns an error if a spec event lacks another attribute or the data that it needs.
func checkSpec(env *codec.Envelope) error {
	switch {
	case env.ObjectName == "":
		return request.Invalid(codec.ExtMetadata, "the object in attribute \"metadata\" has no name", "send the work's metadata with its name")
	case env.Type.Action == codec.DeleteRequest && !env.Deleting:
		return request.Missing(codec.ExtDeletionTimestamp)
	case !env.Deleting && len(env.Data) == 0:
		return request.Invalid("data", "a work without data", "send the work's spec as data, or a deletion with a deletiontimestamp")
	}
	return nil
}

// trueVersion returns the version that orders specs. If the generation in the metadata is too large for the
// attribute, the attribute is 0 and the generation is used.
func trueVersion(env *codec.Envelope) int64 {
	if env.Version == 0 && env.ObjectGen > math.MaxInt32 {
		return env.ObjectGen
	}
	return env.Version
}

// outcomes maps the results that are no errors to the outcomes in the receipt.
var outcomes = map[store.ResultCode]string{
	store.Accepted:   codec.OutcomeAccepted,
	store.Confirmed:  codec.OutcomeConfirmed,
	store.Queued:     codec.OutcomeQueued,
	store.Unchanged:  codec.OutcomeUnchanged,
	store.Stale:      codec.OutcomeStale,
	store.Ignored:    codec.OutcomeIgnored,
	store.ResendSpec: codec.OutcomeIgnored,
}

// receiptOf returns the receipt, or the error, for the publisher.
func receiptOf(o store.Outcome, env *codec.Envelope) (transport.Receipt, error) {
	r := transport.Receipt{Outcome: outcomes[o.Result], Revision: o.Head}
	if r.Outcome == "" {
		return r, refusalOf(o, env)
	}
	return r, nil
}

func refusalOf(o store.Outcome, env *codec.Envelope) *transport.Error {
	switch o.Result {
	case store.OwnedByOther:
		return transport.Refused(transport.CodeDenied, codec.ExtResourceID,
			fmt.Sprintf("work %s of cluster %s belongs to another source", env.ResourceID, env.Cluster),
			"use another resource id, or let an operator move the work with: hawser transfer work")
	case store.NameConflict:
		return transport.Refused(transport.CodeAlreadyExists, codec.ExtMetadata,
			fmt.Sprintf("the name %q is taken on cluster %s by another work", env.ObjectName, env.Cluster), "choose another name, or delete the other work first")
	case store.ConditionFailed:
		return &transport.Error{
			Code: transport.CodeConflict, Next: transport.NextResync,
			Message: fmt.Sprintf("the condition does not hold: the record is at revision %d (0: there is no record, or another work has its name)", o.Revision),
			Hint:    "compare with the broker's inventory and try again with that revision",
		}
	case store.Fenced:
		return request.SubscriptionOver()
	case store.QuotaExceeded:
		return overQuota(o.Excess, env)
	case store.Invalid:
		return request.Invalid("", o.Detail, "")
	}
	return request.Internal(fmt.Errorf("no answer to result %d", o.Result))
}

// Release drops all records of the source on one cluster. The agent is not notified and keeps its objects.
// Release is idempotent.
func (i *Intake) Release(ctx context.Context, e *request.Event) (r transport.Receipt, err error) {
	owner, cluster := e.Env.Source, e.Env.Cluster
	if cluster == "" {
		return r, request.Missing(codec.ExtClusterName)
	}
	if slices.ContainsFunc(codec.DataTypes(), func(d codec.DataType) bool { return store.CheckScope(d, cluster) != nil }) {
		return r, request.Invalid(codec.ExtClusterName, "the released cluster has an invalid name", "name it as in its works")
	}
	f, checkValid, err := i.guard(e)
	if err != nil {
		return r, err
	}
	drop := store.Op{Kind: store.Drop, Owner: owner, At: i.cfg.Now()}
	if f != nil {
		if err := f.release(cluster, e.Env.Fence); err != nil {
			return r, err
		}
		drop.Fence = f.shared
	}
	// Earlier publishes of the source may still be queued. Their records would stay in the store.
	if err := i.takeOver(ctx, e.From, f, checkValid); err != nil {
		return r, err
	}
	drops, err := i.drops(ctx, cluster, drop)
	if err != nil {
		return r, request.Store(err)
	}
	// A record that a release removes is not deleted by the source, so no agent may evict its work. The first write
	// drops all sync reports of the source about the cluster, also those in flight.
	ops := i.invalidator.Release(owner, cluster)
	for n := range ops {
		ops[n].Fence = drop.Fence
	}
	outcomes, err := i.commits.commit(ctx, e.From, checkValid, append(ops, drops...)...)
	switch {
	case err != nil:
		return r, request.Store(err)
	case slices.ContainsFunc(outcomes, func(o store.Outcome) bool { return o.Result == store.Fenced }):
		return r, request.SubscriptionOver()
	}
	r.Outcome = codec.OutcomeAccepted
	if len(drops) == 0 {
		r.Outcome = codec.OutcomeIgnored
	}
	return r, nil
}

// drops returns copies of the op drop, one for each record and each queued spec of its owner on a cluster. A queued
// spec may have become a record before its op runs.
func (i *Intake) drops(ctx context.Context, cluster string, drop store.Op) (ops []store.Op, err error) {
	add := func(k store.Key) {
		drop.Key = k
		ops = append(ops, drop)
	}
	for _, d := range codec.DataTypes() {
		err := i.cfg.Store.Scan(ctx, store.Scope{DataType: d, Cluster: cluster, Owner: drop.Owner}, func(m store.Meta) error {
			add(m.Key)
			if w := m.Queued; w != nil && w.ResourceID != m.ResourceID {
				add(store.Key{DataType: d, Cluster: cluster, ResourceID: w.ResourceID})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return ops, nil
}
