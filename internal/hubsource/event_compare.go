package hubsource

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

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
