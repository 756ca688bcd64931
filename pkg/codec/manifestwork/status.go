package manifestwork

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// statusPayload is the data of a status event. Conditions are always present, null if there are none. Unlike in
// a ManifestWork, resourceStatus is flat.
type statusPayload struct {
	Conditions     []metav1.Condition         `json:"conditions"`
	ResourceStatus []workv1.ManifestCondition `json:"resourceStatus,omitempty"`
}

const (
	// ConditionDeleted is the type of the condition in the last report of a work: none of its objects is left on
	// the cluster.
	ConditionDeleted = codec.ConditionDeleted
	// ReasonDeleted is the reason of the condition Deleted.
	ReasonDeleted = "ManifestsDeleted"
)

// StatusParams holds what an agent adds to a status.
type StatusParams struct {
	ID     string    // of the event
	Now    time.Time // of the event, and of the condition Deleted
	Source string    // agent id
	// OriginalSource is the source of the work.
	OriginalSource string
	// Action is UpdateRequest or ResyncResponse.
	Action codec.Action
	// SequenceID must be newer than that of each earlier status of this agent.
	SequenceID string
	// Deleted adds the condition Deleted. This is the last report of the work.
	Deleted bool
}

// EncodeStatus returns the event with which an agent reports the status of a work. It does not modify status.
func EncodeStatus(ref Ref, status workv1.ManifestWorkStatus, p StatusParams) (codec.Event, error) {
	e, err := encodeStatus(ref, status, p)
	if err != nil {
		return codec.Event{}, fmt.Errorf("encode status: work %s/%s: %w", ref.Cluster, ref.Name, err)
	}
	return e, nil
}

func encodeStatus(ref Ref, status workv1.ManifestWorkStatus, p StatusParams) (codec.Event, error) {
	if p.Action != codec.UpdateRequest && p.Action != codec.ResyncResponse {
		return codec.Event{}, fmt.Errorf("action %q is not one of a status event", p.Action)
	}
	if ref.ResourceID == "" || ref.Cluster == "" || ref.Generation < 0 {
		return codec.Event{}, fmt.Errorf("resource id, cluster and a generation that is not negative are required")
	}
	if p.Deleted {
		status.Conditions = slices.Clone(status.Conditions)
		meta.SetStatusCondition(&status.Conditions, deletedCondition(ref.Cluster, p.Now))
	}
	hash, err := StatusHash(status)
	if err != nil {
		return codec.Event{}, err
	}
	payload := statusPayload{Conditions: status.Conditions, ResourceStatus: status.ResourceStatus.Manifests}
	if len(payload.Conditions) == 0 {
		payload.Conditions = nil
	}
	data, err := json.Marshal(payload)
	if err != nil {
		return codec.Event{}, err
	}
	metadata, err := ref.metadata()
	if err != nil {
		return codec.Event{}, err
	}
	tracing := ref.LogTracing
	if tracing == "" {
		tracing = noLogTracing
	}
	return codec.Builder{
		ID:             p.ID,
		Time:           p.Now,
		Source:         p.Source,
		Type:           codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: p.Action}.String(),
		Cluster:        ref.Cluster,
		OriginalSource: p.OriginalSource,
		Extensions: map[string]any{
			codec.ExtResourceID:      ref.ResourceID,
			codec.ExtResourceVersion: wireVersion(ref.Generation),
			codec.ExtMetadata:        metadata,
			codec.ExtLogTracing:      tracing,
			codec.ExtSequenceID:      p.SequenceID,
			codec.ExtStatusHash:      hash,
		},
		ContentType: codec.ContentTypeJSON,
		Data:        data,
	}.Event()
}

func deletedCondition(cluster string, now time.Time) metav1.Condition {
	return metav1.Condition{
		Type:               ConditionDeleted,
		Status:             metav1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now),
		Reason:             ReasonDeleted,
		Message:            "The manifests are deleted from the cluster " + cluster,
	}
}

// metadata returns the extension as received or, if the source sent none, one built from the known fields.
func (r *Ref) metadata() (string, error) {
	if r.Metadata != "" {
		return r.Metadata, nil
	}
	return metadataJSON(metav1.ObjectMeta{
		Name:       r.Name,
		Namespace:  r.Cluster,
		UID:        types.UID(r.ResourceID),
		Generation: r.Generation,
	})
}

// StatusReport is a decoded status event.
type StatusReport struct {
	ResourceID string
	// Name is the name of the work in the agent's metadata, or the resource id if there is none.
	Name    string
	Cluster string
	// Version is the generation of the work that the agent reports on.
	Version    int64
	SequenceID string // decimal; "" when the event has none
	Hash       string // statushash; "" when the event has none
	Status     workv1.ManifestWorkStatus
	// Deleted: the condition Deleted is True; no object of the work is left on the cluster.
	Deleted        bool
	AgentID        string // source of the event
	OriginalSource string // the source of the work, as reported by the agent
	Action         codec.Action
	// Revision is assigned by the broker; 0 behind a stateless broker.
	Revision uint64
}

// DecodeStatus reads a status event as a source receives it. The error is a *codec.AttributeError; "data" is
// the status itself.
func DecodeStatus(e codec.Event) (StatusReport, error) {
	t, err := eventType(e, codec.Status)
	if err != nil {
		return StatusReport{}, err
	}
	r := StatusReport{AgentID: e.Source(), Action: t.Action}
	if r.ResourceID, err = required(e, codec.ExtResourceID); err != nil {
		return StatusReport{}, err
	}
	if r.Cluster, err = required(e, codec.ExtClusterName); err != nil {
		return StatusReport{}, err
	}
	if r.Version, err = version(e); err != nil {
		return StatusReport{}, err
	}
	if err := r.readOptional(e); err != nil {
		return StatusReport{}, err
	}
	return r, r.readData(e)
}

func (r *StatusReport) readOptional(e codec.Event) (err error) {
	if r.SequenceID, _, err = codec.StringExtension(e, codec.ExtSequenceID); err != nil {
		return err
	}
	if r.Hash, _, err = codec.StringExtension(e, codec.ExtStatusHash); err != nil {
		return err
	}
	if r.OriginalSource, _, err = codec.StringExtension(e, codec.ExtOriginalSource); err != nil {
		return err
	}
	if r.Revision, err = codec.RevisionExtension(e, codec.ExtRevision); err != nil {
		return err
	}
	text, _, err := codec.StringExtension(e, codec.ExtMetadata)
	if err != nil {
		return err
	}
	m, err := parseMetadata(text)
	if err != nil {
		return err
	}
	r.Version = trueVersion(r.Version, m.Generation)
	if r.Name = m.Name; r.Name == "" {
		r.Name = r.ResourceID
	}
	return nil
}

func (r *StatusReport) readData(e codec.Event) error {
	if !isJSON(e.DataContentType()) {
		return &codec.AttributeError{Attribute: "datacontenttype", Value: e.DataContentType(), Problem: "must be " + codec.ContentTypeJSON}
	}
	if _, err := codec.ReportsDeleted(e.Data()); err != nil { // check the size before decoding
		return err
	}
	var p statusPayload
	if err := json.Unmarshal(e.Data(), &p); err != nil {
		return &codec.AttributeError{Attribute: "data", Problem: `must be the JSON object {"conditions":[...],"resourceStatus":[...]}`}
	}
	r.Status = workv1.ManifestWorkStatus{
		Conditions:     p.Conditions,
		ResourceStatus: workv1.ManifestResourceStatus{Manifests: p.ResourceStatus},
	}
	r.Deleted = meta.IsStatusConditionTrue(p.Conditions, ConditionDeleted)
	return nil
}
