package core

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Event returns the event to publish. id and now are the event's, source is the
// source id.
func (p Publish) Event(id string, now time.Time, source string) (codec.Event, error) {
	o := p.Work
	if p.Slim || p.Unversioned {
		copied := *o
		if p.Slim {
			copied.Spec.Workload.Manifests = nil
		}
		if p.Unversioned {
			copied.Generation = 0
		}
		o = &copied
	}
	e, err := manifestwork.EncodeSpec(o, manifestwork.SpecParams{
		ID: id, Now: now, Source: source, Action: p.Action, DeletionWithData: p.Action == codec.DeleteRequest,
		Reported: p.Held || isReported(o.Status),
	})
	if err == nil && p.Supersedes != 0 {
		e.SetExtension(codec.ExtSupersedes, codec.FormatRevision(p.Supersedes))
	}
	return ordered(e, p.Order, err)
}

// ordered is the event with its number, if it was built and has one.
func ordered(e codec.Event, order uint64, err error) (codec.Event, error) {
	if err == nil && order != 0 {
		e.SetExtension(codec.ExtOrder, codec.FormatRevision(order))
	}
	return e, err
}

// isReported reports whether an agent made a status.
func isReported(s workv1.ManifestWorkStatus) bool {
	return len(s.ResourceStatus.Manifests) > 0 ||
		slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return !isDelivered(c) })
}

// Event returns the event to publish, as [Publish.Event] does.
func (r Release) Event(id string, now time.Time, source string) (codec.Event, error) {
	e, err := codec.NewRelease(id, now, source, r.Cluster)
	return ordered(e, r.Order, err)
}

// Events returns the events to publish in this order, as [Publish.Event] does.
// The hashes are computed here: they are of what the agent said, without the
// condition Delivered.
func (a Ask) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	hashes := make([]codec.StatusHash, 0, len(a.Held))
	for _, h := range a.Held {
		hash := h.Hash
		if h.Work != nil {
			status := h.Work.Status
			status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), isDelivered)
			var err error
			if hash, err = manifestwork.StatusHash(status); err != nil {
				return nil, err
			}
		}
		hashes = append(hashes, codec.StatusHash{ResourceID: string(h.UID), StatusHash: hash})
	}
	var events []codec.Event
	for chunk := range resync.Chunks(hashes) {
		e, err := codec.NewStatusResyncRequest(codec.ResyncParams{
			ID: newID(), Time: now, Source: source, Cluster: a.Cluster, DataType: codec.ManifestBundles,
		}, chunk)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

// ReportOf reads a status event. The error is an *codec.AttributeError.
func ReportOf(e codec.Event) (*Report, error) {
	s, err := manifestwork.DecodeStatus(e)
	if err != nil {
		return nil, err
	}
	return &Report{
		UID: types.UID(s.ResourceID), Cluster: s.Cluster, Name: s.Name,
		Version: s.Version, Sequence: s.SequenceID, Hash: s.Hash, Deleted: s.Deleted, Status: s.Status, Revision: s.Revision,
	}, nil
}

// Tags returns the tags of the works. One that cannot be encoded has the zero
// tag: it is published, and the broker's answer says what is wrong.
func (t Tag) Tags() []codec.Tag {
	tags := make([]codec.Tag, len(t.Works))
	for i, o := range t.Works {
		if tag, err := manifestwork.SpecTag(o); err == nil {
			tags[i] = tag
		}
	}
	return tags
}

// Event returns the event to publish; see [Publish.Event].
func (a AskInventory) Event(now time.Time, source string) (codec.Event, error) {
	return codec.NewInventoryRequest(syncParams(a.ID, now, source), a.Request)
}

// Event returns the event to publish, as [Publish.Event] does.
func (d Delete) Event(id string, now time.Time, source string) (codec.Event, error) {
	r := d.Record
	o := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.Cluster, Name: r.Name, UID: types.UID(r.ResourceID), Generation: r.Version,
	}}
	e, err := manifestwork.EncodeSpec(o, manifestwork.SpecParams{ID: id, Now: now, Source: source, Action: codec.DeleteRequest})
	if err == nil {
		e.SetExtension(codec.ExtIfRevision, codec.FormatRevision(r.Revision))
	}
	return ordered(e, d.Order, err)
}

// Event returns the event to publish, as [Publish.Event] does.
func (s SendCompared) Event(id string, now time.Time, source string) (codec.Event, error) {
	e, err := codec.NewCompared(syncParams(id, now, source), s.Compared)
	return ordered(e, s.Order, err)
}

// Event returns the event to publish, as [Publish.Event] does.
func (a SendAck) Event(id string, now time.Time, source string) (codec.Event, error) {
	return codec.NewAck(syncParams(id, now, source), codec.Ack{Cursor: a.Cursor})
}

func syncParams(id string, now time.Time, source string) codec.SyncParams {
	return codec.SyncParams{ID: id, Time: now, Source: source, Owner: source}
}
