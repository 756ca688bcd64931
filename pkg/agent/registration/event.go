package registration

import (
	"encoding/json"
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

// dataTypes are those of the streams.
var dataTypes = [kinds]codec.DataType{Clusters: codec.ManagedClusters, Requests: codec.SigningRequests, Leases: codec.Leases}

// subscriptions is how each thing is asked for.
var subscriptions = [whats]struct {
	kind Kind
	sub  codec.Subresource
	act  codec.Action
}{
	CreateCluster: {Clusters, codec.Spec, codec.CreateRequest},
	CreateRequest: {Requests, codec.Spec, codec.CreateRequest},
	ReportStatus:  {Clusters, codec.Status, codec.UpdateRequest},
	RenewLease:    {Leases, codec.Spec, codec.UpdateRequest},
}

// envelope is what an event is made of besides what it says. Stock agents send such events
// under the name of their cluster.
type envelope struct {
	id      string
	time    time.Time
	cluster string
}

// event is what a Publish sends.
func (n envelope) event(p Publish) (codec.Event, error) {
	data, err := json.Marshal(p.Object)
	if err != nil {
		return codec.Event{}, fmt.Errorf("encode what to %s: %w", p.What, err)
	}
	o, err := meta.Accessor(p.Object)
	if err != nil {
		return codec.Event{}, fmt.Errorf("encode what to %s: %w", p.What, err)
	}
	ext := map[string]any{}
	if o.GetUID() != "" {
		ext[codec.ExtResourceID] = string(o.GetUID())
	}
	if o.GetResourceVersion() != "" {
		ext[codec.ExtResourceVersion] = o.GetResourceVersion()
	}
	a := subscriptions[p.What]
	return codec.Builder{
		ID: n.id, Time: n.time, Source: n.cluster, Cluster: n.cluster,
		Type:       codec.EventType{DataType: dataTypes[a.kind], Subresource: a.sub, Action: a.act}.String(),
		Extensions: ext, ContentType: codec.ContentTypeJSON, Data: data,
	}.Event()
}

// list asks for everything that a stream shows. What was shown before is named with version 0,
// so that it comes again too, and that the hub says which of it is gone.
func (n envelope) list(k Kind, held []types.UID) (codec.Event, error) {
	versions := make([]codec.ResourceVersion, 0, len(held))
	for _, uid := range held {
		versions = append(versions, codec.ResourceVersion{ResourceID: string(uid)})
	}
	return codec.NewSpecResyncRequest(codec.ResyncParams{ID: n.id, Time: n.time, Source: n.cluster, Cluster: n.cluster, DataType: dataTypes[k]}, versions)
}

// shown is what an event of a stream says: an object, or that one is gone.
type shown struct {
	object runtime.Object // nil: it is gone
	uid    types.UID
}

// read reads an event of a stream.
func read(k Kind, e codec.Event) (shown, error) {
	t, err := codec.ParseEventType(e.Type())
	if err != nil {
		return shown{}, err
	}
	if t.DataType != dataTypes[k] || t.Subresource != codec.Spec {
		return shown{}, fmt.Errorf("an event of type %s is not one of this stream", e.Type())
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
		return shown{}, fmt.Errorf("the object in an event of type %s cannot be read: %w", e.Type(), err)
	}
	return shown{object: o, uid: o.GetUID()}, nil
}

func readDeletion(e codec.Event) (shown, error) {
	_, deleted, err := codec.TimeExtension(e, codec.ExtDeletionTimestamp)
	if err != nil {
		return shown{}, err
	}
	uid, _, err := codec.StringExtension(e, codec.ExtResourceID)
	if err != nil {
		return shown{}, err
	}
	if !deleted || uid == "" {
		return shown{}, fmt.Errorf("an event of type %s has neither an object nor says that one is gone", e.Type())
	}
	return shown{uid: types.UID(uid)}, nil
}
