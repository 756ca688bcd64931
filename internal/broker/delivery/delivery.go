package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/pkg/codec"
)

// deliver sends the record of a queue entry, in its current form. It skips a record that was removed or is no
// longer for this client.
func (t *stream) deliver(ctx context.Context, e deliveryqueue.Entry) error {
	s := t.sub
	key := store.Key{DataType: s.scope.DataType, Cluster: e.Cluster, ResourceID: e.ResourceID}
	r, err := t.cfg.Store.Get(ctx, key)
	var damaged *store.DamageError
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case errors.As(err, &damaged):
		// A record that cannot be read does not delay the others. The store rejects writes from now on, so operators
		// notice it.
		t.metrics.damaged.Inc()
		t.cfg.Log.Error("record cannot be read and is not delivered", "cluster", e.Cluster, "resource_id", e.ResourceID, "error", err)
		s.locked(func() { s.sync.progress.Block(e.Revision) })
		return nil
	case err != nil:
		return request.Store(err)
	}
	f := form{record: &r, hawser: s.hello.Protocol >= 1, resync: e.Flags&deliveryqueue.Resync != 0}
	if s.part == codec.Spec {
		return t.deliverSpec(f, e)
	}
	if r.Owner != s.scope.Owner {
		return nil
	}
	s.locked(func() { s.mail.Charge(e.Cluster, len(r.Status)) })
	return t.send(f.status)
}

// deliverSpec sends the events for a record to an agent.
func (t *stream) deliverSpec(f form, e deliveryqueue.Entry) error {
	r := f.record
	if r.State != store.ConfirmedTombstone && !f.hawser && t.sub.postpone(e, r.Name, t.cfg.Now()) {
		return nil
	}
	// The agent may hold a newer version of a record that was not in its list, or the record may have changed
	// since.
	if d, w := t.sync.Classify(t.sub.list, &r.Meta); d == syncstate.Force {
		t.recheckAhead(r.ResourceID, w)
		return nil // it is queued again, in a form that the agent accepts
	}
	if e.Flags&deliveryqueue.Force != 0 {
		f.listed = t.forced[e.ResourceID]
		f.force = r.Version < f.listed
		delete(t.forced, e.ResourceID)
	}
	switch {
	case r.State == store.Live && f.hawser:
		return t.timed(r, t.send(f.spec))
	case r.State == store.Live:
		return t.timed(r, t.liveToOCM(f))
	case r.State == store.Tombstone && f.hawser:
		return t.send(f.deletion)
	case r.State == store.Tombstone:
		return t.deletionToOCM(f, e)
	case f.resync && !r.DeletedAt.IsZero(): // a confirmed tombstone
		return t.send(f.deletion)
	}
	return nil
}

// timed measures the time from the commit of a record to its delivery.
func (t *stream) timed(r *store.Record, err error) error {
	if err == nil {
		t.cfg.Times.Sent(&r.Meta)
	}
	return err
}

// send sends the event that render returns, if it returns one.
func (t *stream) send(render func() ([][]byte, error)) error {
	event, err := render()
	if err != nil {
		return request.Internal(err)
	}
	if event == nil {
		return nil
	}
	if err := t.out.Send(event...); err != nil {
		return err
	}
	t.metrics.delivered(t.sub.part, event)
	return nil
}

// form renders a record as the events for one kind of client: the stored bytes, followed by the attributes that
// differ. The last value of an attribute wins, so stored bytes need no decoding or copying.
type form struct {
	record *store.Record
	hawser bool // the client negotiated Hawser's protocol
	resync bool // the event answers a resync request
	// force is true if the agent has a newer version, but this record is right. listed is the newer version. Only
	// the deletion for a Hawser agent uses it, because that agent confirms the version in the event. An OCM agent
	// obeys a deletion of any version.
	force  bool
	listed int64
	// known is true if the client already has this spec, so that the event may have its version.
	known bool
}

// unversioned reports whether a client that orders by version must get the spec without a version.
func (f form) unversioned() bool { return (f.record.SpecSupersedes || f.force) && !f.known }

// spec returns the record's spec as a live work.
func (f form) spec() ([][]byte, error) {
	r := f.record
	if r.Spec == nil {
		return nil, nil
	}
	var add []byte
	if f.resync {
		add = codec.AppendType(add, f.kind(codec.Spec, codec.ResyncResponse))
	}
	if f.unversioned() {
		add = appendVersion(add, 0)
	}
	return f.parts(r.Spec, f.appendOwn(add, r.SpecRevision)), nil
}

// deletion returns the record as a deletion: the last spec, if there is one, with the attributes of a deletion.
func (f form) deletion() ([][]byte, error) {
	r := f.record
	action := codec.DeleteRequest
	if f.resync {
		action = codec.ResyncResponse
	}
	add := codec.AppendType(nil, f.kind(codec.Spec, action))
	add = codec.AppendAttributes(add, codec.TimestampAttr(codec.ExtDeletionTimestamp, r.DeletedAt))
	version := f.version()
	if f.force && f.hawser && f.listed > r.Version && f.listed <= math.MaxInt32 {
		version = int32(f.listed)
	}
	add = appendVersion(add, version)
	add = f.appendOwn(add, r.SpecRevision)
	if r.Spec != nil {
		return f.parts(r.Spec, add), nil
	}
	bare, err := f.bare(codec.Spec, r.Owner, r.DeletedAt, nil, nil)
	if err != nil {
		return nil, err
	}
	return f.parts(bare, add), nil
}

// status returns the record's status for its owner, nil if it has none.
func (f form) status() ([][]byte, error) {
	r := f.record
	event := r.Status
	if event == nil {
		if r.State != store.ConfirmedTombstone {
			return nil, nil
		}
		var err error
		if event, err = f.lastStatus(); err != nil {
			return nil, err
		}
	}
	var add []byte
	if f.resync {
		add = codec.AppendType(add, f.kind(codec.Status, codec.ResyncResponse))
	}
	// The owner in the agent's event may be wrong; the record has the right one.
	add = codec.AppendAttributes(add, codec.StringAttr(codec.ExtOriginalSource, r.Owner))
	return f.parts(event, f.appendOwn(add, r.StatusRevision)), nil
}

// lastStatus returns the status of a deleted work if no agent made one: the deletion needed no confirmation, or
// an operator gave up the work.
func (f form) lastStatus() ([]byte, error) {
	r := f.record
	sequence := cmp.Or(r.Sequence, "0")
	data, err := json.Marshal(map[string]any{"conditions": []map[string]string{{
		"type": codec.ConditionDeleted, "status": "True", "reason": "ManifestsDeleted",
		"message":            "nothing of the work is left for the cluster to delete",
		"lastTransitionTime": r.ConfirmedAt.UTC().Format(time.RFC3339),
	}}})
	if err != nil {
		return nil, err
	}
	return f.bare(codec.Status, request.BrokerSource, r.ConfirmedAt, map[string]any{codec.ExtSequenceID: sequence}, data)
}

// bare builds an event for which the store has no bytes.
func (f form) bare(s codec.Subresource, source string, at time.Time, extensions map[string]any, data []byte) ([]byte, error) {
	r := f.record
	metadata, err := json.Marshal(map[string]any{
		"name": r.Name, "namespace": r.Cluster, "uid": r.ResourceID, "generation": r.Version,
	})
	if err != nil {
		return nil, err
	}
	all := map[string]any{
		codec.ExtResourceID:      r.ResourceID,
		codec.ExtResourceVersion: f.version(),
		codec.ExtMetadata:        string(metadata),
		codec.ExtLogTracing:      "{}",
	}
	maps.Copy(all, extensions)
	e, err := codec.Builder{
		ID:     fmt.Sprintf("%s-%d-%d", r.ResourceID, r.SpecRevision, r.StatusRevision),
		Source: source, Time: at, Cluster: r.Cluster,
		Type:       f.kind(s, codec.UpdateRequest).String(),
		Extensions: all, ContentType: codec.ContentTypeJSON, Data: data,
	}.Event()
	if err != nil {
		return nil, err
	}
	return codec.Marshal(e)
}

func (f form) kind(s codec.Subresource, a codec.Action) codec.EventType {
	return codec.EventType{DataType: f.record.DataType, Subresource: s, Action: a}
}

// version returns the resourceversion of the event. It is 0 (unversioned) if the version is out of range, or if
// the version went backwards. OCM agents order by it, and so do Hawser agents that hold revisions of another
// store.
func (f form) version() int32 {
	v := f.record.Version
	if v < 0 || v > math.MaxInt32 || f.record.SpecSupersedes {
		return 0
	}
	return int32(v)
}

func appendVersion(add []byte, version int32) []byte {
	return codec.AppendAttributes(add, codec.IntegerAttr(codec.ExtResourceVersion, version))
}

// ownBytes is the usual size of the attributes that appendOwn appends.
const ownBytes = 160

// appendOwn appends Hawser's attributes if the client negotiated them.
func (f form) appendOwn(add []byte, revision uint64) []byte {
	if !f.hawser {
		return add
	}
	return codec.AppendAttributes(slices.Grow(add, ownBytes),
		codec.StringAttr(codec.ExtRevision, codec.FormatRevision(revision)),
		codec.StringAttr(codec.ExtTag, f.record.Tag.String()))
}

func (f form) parts(event, add []byte) [][]byte {
	if add == nil {
		return [][]byte{event}
	}
	return [][]byte{event, add}
}
