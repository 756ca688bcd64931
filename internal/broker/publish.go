package broker

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Publish implements [transport.Server]. It returns nil once the event is on
// disk, or, for a resync request, once it is noted: the answer comes over the
// stream afterwards.
func (b *Broker) Publish(ctx context.Context, p transport.Peer, event []byte, subscriptionID string) (r transport.Receipt, err error) {
	start := b.cfg.Now()
	kind := kindUnknown
	defer func() { b.metrics.published(kind, r.Outcome, err, b.cfg.Now().Sub(start)) }()
	defer b.recovered(&err)
	if err := b.hub.closing(); err != nil {
		return r, err
	}
	if ctx.Err() != nil { // it was held up until nobody waits for it any more
		return r, callerGone(ctx)
	}
	env, normal, err := codec.Ingest(event)
	if err != nil {
		return r, undecodable(err)
	}
	kind = kindOf(env)
	from, err := b.admit(p, env)
	if err != nil {
		return r, err
	}
	defer b.noteRevision(&r)
	var s session
	if kind == kindRelease || kind == kindSpec || kind == kindStatus {
		if s, err = b.sessionOf(from, subscriptionID, env); err != nil {
			return r, err
		}
	}
	switch kind {
	case kindResync:
		r.Outcome = codec.OutcomeAccepted
		err = b.requestResync(p, from, env, subscriptionID, len(event))
	case kindAck, kindInventory, kindCompared, kindUnexplained:
		r.Outcome, err = b.publishSync(ctx, from, env, normal, subscriptionID)
	case kindRelease:
		r.Outcome, err = b.releaseCluster(ctx, s, env)
	case kindSpec:
		r, err = b.publishSpec(ctx, s, env, normal)
	case kindStatus:
		r, err = b.publishStatus(ctx, s, env, normal)
	default:
		err = invalid("type", "events of type "+env.RawType+" are not taken", "")
	}
	return r, err
}

// noteRevision gives a receipt the revision that it lacks when it was not the store
// that decided.
func (b *Broker) noteRevision(r *transport.Receipt) {
	if r.Revision == 0 {
		r.Revision = b.store.Head().Revision
	}
}

// What an event is to the broker; also the values of a metric's label.
const (
	kindUnknown   = "unknown"
	kindSpec      = "spec"
	kindStatus    = "status"
	kindResync    = "resync"
	kindRelease   = "release"
	kindAck       = "ack"
	kindInventory = "inventory"
	kindCompared  = "compared"

	kindUnexplained = "unexplained"
)

func kindOf(env *codec.Envelope) string {
	switch env.RawType {
	case codec.TypeRelease:
		return kindRelease
	case codec.TypeAck:
		return kindAck
	case codec.TypeInventoryRequest:
		return kindInventory
	case codec.TypeCompared:
		return kindCompared
	case codec.TypeUnexplained:
		return kindUnexplained
	}
	switch {
	case env.Type.Action == codec.ResyncRequest:
		return kindResync
	case env.Type.Subresource == codec.Status:
		return kindStatus
	case env.Type.Subresource == codec.Spec:
		return kindSpec
	}
	return kindUnknown
}

// admit checks that the type is served and that the peer may publish the event.
func (b *Broker) admit(p transport.Peer, env *codec.Envelope) (identity.Identity, error) {
	call := authz.Call{
		Method: authz.Publish, Type: env.Type,
		Source: env.Source, Cluster: env.Cluster, Namespace: env.ObjectNS,
	}
	if env.Type == (codec.EventType{}) {
		call.RawType = env.RawType
	} else if _, ok := codec.Lookup(env.Type.DataType); !ok {
		return identity.Identity{}, invalid("type", "data type "+env.Type.DataType.String()+" is not served",
			"use "+codec.ManifestBundles.String())
	}
	id := b.identify(p, call)
	return id, authz.Authorize(id, call)
}

// publishSpec commits a spec or a deletion.
func (b *Broker) publishSpec(ctx context.Context, s session, env *codec.Envelope, normal []byte) (r transport.Receipt, err error) {
	if err := b.checkSpec(env, len(normal)); err != nil {
		return r, err
	}
	op := store.Op{
		Kind:  store.PutSpec,
		Key:   store.Key{DataType: env.Type.DataType, Cluster: env.Cluster, ResourceID: env.ResourceID},
		Owner: env.Source, Name: env.ObjectName,
		Action: env.Type.Action, Version: trueVersion(env),
		Tag:      codec.TagOf(env.Deleting, env.Version, env.RawMetadata, env.Data),
		Deleting: env.Deleting, DeletedAt: env.DeletedAt,
		Supersedes: env.Supersedes, IfRevision: env.IfRevision, Reported: env.Reported,
		Event: normal, At: b.cfg.Now(),
	}
	if env.Deleting {
		// What is stored is the last spec; that it is deleted, and when, is in
		// the record.
		op.Event = nil
		if len(env.Data) > 0 {
			live := env.Type
			live.Action = codec.UpdateRequest
			op.Event = codec.AppendType(codec.WithoutAttribute(normal, codec.ExtDeletionTimestamp), live)
		}
	}
	met, err := b.meets(ctx, &op, env)
	if err != nil {
		return r, storeError(err)
	}
	outcomes, err := b.commit(ctx, s, op)
	if err != nil {
		return r, storeError(err)
	}
	b.hub.noteUnheard(op.Key, outcomes[0], met)
	if outcomes[0].Verdict == store.Accepted && !op.Deleting {
		b.hub.accepted(op.Key, outcomes[0].Revision)
	}
	if err := b.noteRepeated(ctx, &op, outcomes[0]); err != nil {
		return r, storeError(err)
	}
	return outcomeOf(outcomes[0], env)
}

// checkSpec says what a spec event lacks.
func (b *Broker) checkSpec(env *codec.Envelope, size int) error {
	switch {
	case size > b.cfg.MaxEventBytes:
		return tooLarge(size, b.cfg.MaxEventBytes)
	case env.Cluster == "":
		return missing(codec.ExtClusterName)
	case env.ResourceID == "":
		return missing(codec.ExtResourceID)
	case !env.HasVersion:
		return missing(codec.ExtResourceVersion)
	case env.ObjectName == "":
		return invalid(codec.ExtMetadata, "the object in attribute \"metadata\" has no name", "send the work's metadata with its name")
	case env.Type.Action == codec.DeleteRequest && !env.Deleting:
		return missing(codec.ExtDeletionTimestamp)
	case !env.Deleting && len(env.Data) == 0:
		return invalid("data", "a work without data", "send the work's spec as data, or a deletion with a deletiontimestamp")
	}
	return nil
}

// trueVersion is the version by which specs are ordered: the generation in the
// metadata where that is too large for the attribute, which is then 0.
func trueVersion(env *codec.Envelope) int64 {
	if env.Version == 0 && env.ObjectGen > math.MaxInt32 {
		return env.ObjectGen
	}
	return env.Version
}

// publishStatus commits what an agent reports.
func (b *Broker) publishStatus(ctx context.Context, s session, env *codec.Envelope, normal []byte) (r transport.Receipt, err error) {
	switch {
	case len(normal) > b.cfg.MaxEventBytes:
		return r, tooLarge(len(normal), b.cfg.MaxEventBytes)
	case env.Cluster == "":
		return r, missing(codec.ExtClusterName)
	case env.ResourceID == "":
		return r, missing(codec.ExtResourceID)
	case !env.HasVersion:
		return r, missing(codec.ExtResourceVersion)
	case env.SequenceID == "":
		return r, missing(codec.ExtSequenceID)
	}
	deleted, err := codec.ReportsDeleted(env.Data)
	if err != nil {
		return r, undecodable(err)
	}
	key := store.Key{DataType: env.Type.DataType, Cluster: env.Cluster, ResourceID: env.ResourceID}
	if deleted {
		b.hub.rest(key, env.ObjectName, unanswered)
		defer func() { b.hub.rest(key, env.ObjectName, b.cfg.Now().Add(b.cfg.Rest)) }()
	}
	outcomes, err := b.commit(ctx, s, store.Op{
		Kind: store.PutStatus, Key: key, Action: env.Type.Action, Version: trueVersion(env),
		Sequence: env.SequenceID, StatusHash: env.StatusHash, Deleted: deleted,
		Event: normal, At: b.cfg.Now(),
	})
	if err != nil {
		return r, storeError(err)
	}
	switch outcomes[0].Verdict {
	case store.SpecAgain:
		b.hub.again(key, outcomes[0].Revision)
	case store.Stale:
		b.hub.outrun(key)
	}
	return outcomeOf(outcomes[0], env)
}

// outcomeOf is what the publisher is told.
func outcomeOf(o store.Outcome, env *codec.Envelope) (transport.Receipt, error) {
	r := transport.Receipt{Revision: o.Head}
	switch o.Verdict {
	case store.Accepted:
		r.Outcome = codec.OutcomeAccepted
	case store.Confirmed:
		r.Outcome = codec.OutcomeConfirmed
	case store.Waits:
		r.Outcome = codec.OutcomeWaits
	case store.Unchanged:
		r.Outcome = codec.OutcomeUnchanged
	case store.Stale:
		r.Outcome = codec.OutcomeStale
	case store.Ignored, store.SpecAgain:
		r.Outcome = codec.OutcomeIgnored
	default:
		return r, refusalOf(o, env)
	}
	return r, nil
}

func refusalOf(o store.Outcome, env *codec.Envelope) *transport.Error {
	switch o.Verdict {
	case store.OwnedByOther:
		return &transport.Error{
			Code: transport.CodeDenied, Next: transport.NextStop, Attribute: codec.ExtResourceID,
			Message: fmt.Sprintf("work %s of cluster %s belongs to another source", env.ResourceID, env.Cluster),
			Hint:    "use another resource id, or let an operator move the work with: hawser adopt",
		}
	case store.NameTaken:
		return &transport.Error{
			Code: transport.CodeAlreadyExists, Next: transport.NextStop, Attribute: codec.ExtMetadata,
			Message: fmt.Sprintf("the name %q is taken on cluster %s by another work", env.ObjectName, env.Cluster),
			Hint:    "choose another name, or delete the other work first",
		}
	case store.ConditionFailed:
		return &transport.Error{
			Code: transport.CodeConflict, Next: transport.NextResync,
			Message: fmt.Sprintf("the condition does not hold: the record is at revision %d (0: there is none, and its name may be another's)", o.Revision),
			Hint:    "compare with the broker's inventory and try again with that revision",
		}
	case store.Invalid:
		return invalid("", o.Detail, "")
	}
	return internalError(fmt.Errorf("no answer to verdict %d", o.Verdict))
}

// requestResync notes what a party says it holds, for the streams that are to
// answer. A party that is not subscribed gets no answer; when it subscribes and
// does not ask again, it is taken to hold nothing.
func (b *Broker) requestResync(p transport.Peer, from identity.Identity, env *codec.Envelope, subscriptionID string, size int) error {
	l := list{}
	scope := route.Scope{DataType: env.Type.DataType}
	var err error
	if env.Type.Subresource == codec.Spec {
		if env.Cluster == "" {
			return missing(codec.ExtClusterName)
		}
		scope.Cluster = env.Cluster
		l.versions, err = codec.DecodeVersions(env.Data)
	} else {
		scope.Owner, l.cluster = env.Source, env.Cluster
		l.hashes, err = codec.DecodeHashes(env.Data)
	}
	if err != nil {
		e := undecodable(err)
		e.Attribute = "data"
		return e
	}
	for _, s := range b.hub.askers(scope, subscriptionID, p.Conn) {
		if !b.lists.take(from, size) {
			return overloaded("too many lists wait to be compared", comeBack)
		}
		mine := l
		mine.settle = func() { b.lists.give(from, size) }
		if !s.request(&mine) {
			mine.settle()
			return overloaded("too many lists of this subscription wait to be compared", comeBack)
		}
	}
	return nil
}

// releaseCluster drops all records of the source on one cluster, without a word
// to the cluster. Repeating it does no harm.
func (b *Broker) releaseCluster(ctx context.Context, s session, env *codec.Envelope) (string, error) {
	if env.Cluster == "" {
		return "", missing(codec.ExtClusterName)
	}
	for _, d := range codec.DataTypes() {
		if err := store.CheckPlace(d, env.Cluster); err != nil {
			return "", invalid(codec.ExtClusterName, "the released cluster has an impossible name", "name it as in its works")
		}
	}
	// First of all: what vanishes from the store is not the source's word that
	// it does not exist.
	if err := b.beginRelease(s, env); err != nil {
		return "", err
	}
	// What the source published before may still be queued: a publish whose
	// answer it did not wait for would be left behind. Commits of one party keep
	// their order, so an empty one says that it is no longer.
	if _, err := b.commit(ctx, s); err != nil {
		return "", storeError(err)
	}
	var ops []store.Op
	for _, d := range codec.DataTypes() {
		scope := store.Scope{DataType: d, Cluster: env.Cluster, Owner: env.Source}
		err := b.store.Scan(ctx, scope, func(m store.Meta) error {
			ops = append(ops, store.Op{Kind: store.Drop, Key: m.Key, Owner: env.Source, At: b.cfg.Now()})
			return nil
		})
		if err != nil {
			return "", storeError(err)
		}
	}
	if len(ops) == 0 {
		return codec.OutcomeIgnored, nil
	}
	for batch := range slices.Chunk(ops, jobOps) {
		if _, err := b.commit(ctx, s, batch...); err != nil {
			return "", storeError(err)
		}
	}
	return codec.OutcomeAccepted, nil
}

// beginRelease takes it that what the source said of the cluster before counts no
// longer, whether it has arrived yet or not.
func (b *Broker) beginRelease(s session, env *codec.Envelope) error {
	var changed []place
	revoke := func() {
		for _, d := range codec.DataTypes() {
			p := place{d, env.Cluster}
			b.ledger.withhold(p, env.Source, "", "", nil)
			if b.comparisons.revoke(ownership{d, env.Source}, env.Cluster) {
				changed = append(changed, p)
			}
		}
	}
	if s.sub == nil {
		revoke()
	} else {
		b.endBefore(s.sub)
		if err := s.sub.releases(env.Cluster, env.Order, revoke); err != nil {
			return err
		}
	}
	for _, p := range changed {
		b.hub.recheck(p.dataType, changes{clusters: []string{p.cluster}})
	}
	return nil
}
