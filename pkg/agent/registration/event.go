package registration

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// dataTypes are the data types of the streams.
var dataTypes = [numKinds]codec.DataType{Clusters: codec.ManagedClusters, Requests: codec.SigningRequests, Leases: codec.Leases}

// subscriptions has the event type of each request.
var subscriptions = [numRequestKinds]struct {
	kind Kind
	sub  codec.Subresource
	act  codec.Action
}{
	CreateCluster: {Clusters, codec.Spec, codec.CreateRequest},
	CreateRequest: {Requests, codec.Spec, codec.CreateRequest},
	ReportStatus:  {Clusters, codec.Status, codec.UpdateRequest},
	RenewLease:    {Leases, codec.Spec, codec.UpdateRequest},
}

// envelope has the context attributes of events. OCM agents send such events with the name of their cluster as
// source.
type envelope struct {
	id      string
	time    time.Time
	cluster string
}

// event returns the event of a Publish.
func (n envelope) event(p Publish) (codec.Event, error) {
	data, err := json.Marshal(p.Object)
	o, err2 := meta.Accessor(p.Object)
	if err := errors.Join(err, err2); err != nil {
		return codec.Event{}, fmt.Errorf("encode the request to %s: %w", p.Request, err)
	}
	ext := map[string]any{}
	if o.GetUID() != "" {
		ext[codec.ExtResourceID] = string(o.GetUID())
	}
	if o.GetResourceVersion() != "" {
		ext[codec.ExtResourceVersion] = o.GetResourceVersion()
	}
	a := subscriptions[p.Request]
	return codec.Builder{
		ID: n.id, Time: n.time, Source: n.cluster, Cluster: n.cluster,
		Type:       codec.EventType{DataType: dataTypes[a.kind], Subresource: a.sub, Action: a.act}.String(),
		Extensions: ext, ContentType: codec.ContentTypeJSON, Data: data,
	}.Event()
}

// list requests all objects of a stream. Objects that were shown before are listed with version 0, so that the
// hub sends them again or reports them as deleted.
func (n envelope) list(k Kind, held []types.UID) (codec.Event, error) {
	versions := make([]codec.ResourceVersion, 0, len(held))
	for _, uid := range held {
		versions = append(versions, codec.ResourceVersion{ResourceID: string(uid)})
	}
	return codec.NewSpecResyncRequest(codec.ResyncParams{ID: n.id, Time: n.time, Source: n.cluster, Cluster: n.cluster, DataType: dataTypes[k]}, versions)
}

// streamEvent is the content of a stream event: an object, or the deletion of one.
type streamEvent struct {
	object runtime.Object // nil: it was deleted
	uid    types.UID
}

// read parses an event of a stream.
func read(k Kind, e codec.Event) (streamEvent, error) {
	t, err := codec.ParseEventType(e.Type())
	if err != nil {
		return streamEvent{}, err
	}
	if t.DataType != dataTypes[k] || t.Subresource != codec.Spec {
		return streamEvent{}, fmt.Errorf("an event of type %s is not one of this stream", e.Type())
	}
	if len(e.Data()) == 0 {
		return readDeletion(e)
	}
	var o interface {
		runtime.Object
		GetUID() types.UID
	}
	switch k {
	case Clusters:
		o = &clusterv1.ManagedCluster{}
	case Requests:
		o = &certificatesv1.CertificateSigningRequest{}
	default:
		o = &coordinationv1.Lease{}
	}
	if err := json.Unmarshal(e.Data(), o); err != nil {
		return streamEvent{}, fmt.Errorf("the object in an event of type %s cannot be read: %w", e.Type(), err)
	}
	return streamEvent{object: o, uid: o.GetUID()}, nil
}

func readDeletion(e codec.Event) (streamEvent, error) {
	_, deleted, err := codec.TimeExtension(e, codec.ExtDeletionTimestamp)
	uid, _, err2 := codec.StringExtension(e, codec.ExtResourceID)
	if err := errors.Join(err, err2); err != nil {
		return streamEvent{}, err
	}
	if !deleted || uid == "" {
		return streamEvent{}, fmt.Errorf("an event of type %s has neither an object nor a deletion", e.Type())
	}
	return streamEvent{uid: types.UID(uid)}, nil
}
