package manifestwork

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// specPayload is the data of a spec event. The member names are those of the protocol, "executer" included.
type specPayload struct {
	Manifests       []workv1.Manifest             `json:"manifests"`
	DeleteOption    *workv1.DeleteOption          `json:"deleteOption,omitempty"`
	ManifestConfigs []workv1.ManifestConfigOption `json:"manifestConfigs,omitempty"`
	Executor        *workv1.ManifestWorkExecutor  `json:"executer,omitempty"`
}

// SpecParams holds what a source adds to a work.
type SpecParams struct {
	ID     string    // of the event
	Now    time.Time // of the event
	Source string    // source id
	// Action is CreateRequest, UpdateRequest, DeleteRequest or ResyncResponse. Receivers ignore it: a work with a
	// deletion timestamp is a deletion with any action.
	Action codec.Action
	// DeletionWithData makes a deletion carry the spec too, so that delete options which the agent has not seen yet
	// are kept. Hawser sources set it; OCM sources send no data.
	DeletionWithData bool
	// Reported marks that the cluster has reported on the deleted work. The cluster must then confirm the deletion
	// in any case.
	Reported bool
}

// EncodeSpec returns the event with which a source publishes a work. It is a deletion if the work has a
// deletion timestamp or the action is DeleteRequest. The work needs a UID, which becomes the resource id, and a
// namespace, which names the cluster. EncodeSpec does not check MaxManifestsSize: a source checks ManifestsSize
// and reports to its user.
func EncodeSpec(work *workv1.ManifestWork, p SpecParams) (codec.Event, error) {
	switch p.Action {
	case codec.CreateRequest, codec.UpdateRequest, codec.DeleteRequest, codec.ResyncResponse:
	default:
		return codec.Event{}, fmt.Errorf("encode spec: action %q is not one of a spec event", p.Action)
	}
	meta := work.ObjectMeta
	if meta.UID == "" || meta.Namespace == "" || meta.Generation < 0 {
		return codec.Event{}, fmt.Errorf("encode spec: work %s/%s needs a UID, a namespace and a generation that is not negative", meta.Namespace, meta.Name)
	}
	if meta.DeletionTimestamp == nil && p.Action == codec.DeleteRequest {
		now := metav1.NewTime(p.Now)
		meta.DeletionTimestamp = &now
	}
	extensions, err := workExtensions(meta)
	if err != nil {
		return codec.Event{}, fmt.Errorf("encode spec: work %s/%s: %w", meta.Namespace, meta.Name, err)
	}
	var data []byte
	if meta.DeletionTimestamp != nil {
		extensions[codec.ExtDeletionTimestamp] = meta.DeletionTimestamp.Time
		if p.Reported {
			extensions[codec.ExtNeedsConfirm] = "true"
		}
	}
	if meta.DeletionTimestamp == nil || p.DeletionWithData {
		if data, err = json.Marshal(payloadOf(&work.Spec)); err != nil {
			return codec.Event{}, fmt.Errorf("encode spec: work %s/%s: %w", meta.Namespace, meta.Name, err)
		}
	}
	e, err := codec.Builder{
		ID:          p.ID,
		Time:        p.Now,
		Source:      p.Source,
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: p.Action}.String(),
		Cluster:     meta.Namespace,
		Extensions:  extensions,
		ContentType: codec.ContentTypeJSON,
		Data:        data,
	}.Event()
	if err != nil {
		return codec.Event{}, fmt.Errorf("encode spec: work %s/%s: %w", meta.Namespace, meta.Name, err)
	}
	return e, nil
}

func payloadOf(spec *workv1.ManifestWorkSpec) specPayload {
	return specPayload{
		Manifests:       spec.Workload.Manifests,
		DeleteOption:    spec.DeleteOption,
		ManifestConfigs: spec.ManifestConfigs,
		Executor:        spec.Executor,
	}
}

func workExtensions(meta metav1.ObjectMeta) (map[string]any, error) {
	metadata, err := metadataJSON(meta)
	if err != nil {
		return nil, err
	}
	tracing, err := logTracing(meta.Annotations)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		codec.ExtResourceID:      string(meta.UID),
		codec.ExtResourceVersion: wireVersion(meta.Generation),
		codec.ExtMetadata:        metadata,
		codec.ExtLogTracing:      tracing,
	}, nil
}
