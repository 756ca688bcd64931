package interop

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// versionAnnotation is the annotation in which the caller of an OCM source keeps a work's version.
const versionAnnotation = "cloudevents.open-cluster-management.io/resourceversion"

// configMap returns a manifest of about size bytes, at least the size of an empty one.
func configMap(name, value string, size int) workv1.Manifest {
	head := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"value":%q,"fill":"`, name, value)
	fill := max(0, size-len(head)-len(`"}}`))
	return workv1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(head + strings.Repeat("x", fill) + `"}}`)}}
}

// newWork returns a work with one ConfigMap of the same name. Its value is the version.
func newWork(cluster, name string, version int64) *workv1.ManifestWork {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: cluster, Generation: version}}
	if version != 0 {
		w.Annotations = map[string]string{versionAnnotation: strconv.FormatInt(version, 10)}
	}
	w.Spec.Workload.Manifests = []workv1.Manifest{configMap(name, strconv.FormatInt(version, 10), 0)}
	return w
}

// withID sets the resource id of a work. An OCM source sets it when it creates a work.
func withID(id string, w *workv1.ManifestWork) *workv1.ManifestWork {
	w.UID = types.UID(id)
	return w
}

// deleting marks a work as deleted.
func deleting(w *workv1.ManifestWork) *workv1.ManifestWork {
	now := metav1.Now()
	w.DeletionTimestamp = &now
	return w
}

// specOf returns the event with which an OCM source publishes the work.
func specOf(t testing.TB, source string, action codec.Action, w *workv1.ManifestWork) codec.Event {
	t.Helper()
	e, err := manifestwork.EncodeSpec(w, manifestwork.SpecParams{ID: uuid.NewString(), Now: time.Now(), Source: source, Action: action})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// shown returns an event in the form that the program ocmbroker accepts.
func shown(e codec.Event) *event {
	s := &event{ID: e.ID(), Source: e.Source(), Type: e.Type(), ContentType: e.DataContentType(), Data: string(e.Data()), Extensions: map[string]any{}}
	for name, v := range e.Extensions() {
		if at, ok := v.(fmt.Stringer); ok { // a timestamp
			v = at.String()
		}
		s.Extensions[name] = v
	}
	return s
}

// statusOf returns a status for src1 with one condition, Applied.
func statusOf(t testing.TB, sequence string, w *workv1.ManifestWork, message string) codec.Event {
	t.Helper()
	return encodeStatus(t, sequence, w, workv1.ManifestWorkStatus{Conditions: []metav1.Condition{applied(message)}}, false)
}

// endOf returns the status with which an agent reports that a work is gone.
func endOf(t testing.TB, sequence string, w *workv1.ManifestWork) codec.Event {
	t.Helper()
	return encodeStatus(t, sequence, w, workv1.ManifestWorkStatus{}, true)
}

func encodeStatus(t testing.TB, sequence string, w *workv1.ManifestWork, s workv1.ManifestWorkStatus, deleted bool) codec.Event {
	t.Helper()
	ref := manifestwork.Ref{ResourceID: string(w.UID), Name: w.Name, Cluster: w.Namespace, Generation: w.Generation, Metadata: metadataOf(t, w)}
	e, err := manifestwork.EncodeStatus(ref, s, manifestwork.StatusParams{
		ID: uuid.NewString(), Now: time.Now(), Source: "agent-of-the-test", OriginalSource: src1,
		Action: codec.UpdateRequest, SequenceID: sequence, Deleted: deleted,
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func metadataOf(t testing.TB, w *workv1.ManifestWork) string {
	t.Helper()
	b, err := json.Marshal(w.ObjectMeta)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// applied returns the condition Applied. The message distinguishes statuses.
func applied(message string) metav1.Condition {
	return metav1.Condition{
		Type: workv1.WorkApplied, Status: metav1.ConditionTrue, Reason: "Test", Message: message,
		LastTransitionTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}
}

// appliedMessage returns the message of the condition Applied, "" without the condition.
func appliedMessage(s workv1.ManifestWorkStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, workv1.WorkApplied); c != nil {
		return c.Message
	}
	return ""
}

// valueOf returns the value in the ConfigMap of a work of newWork.
func valueOf(t testing.TB, w workv1.ManifestWork) string {
	t.Helper()
	if len(w.Spec.Workload.Manifests) != 1 {
		t.Fatalf("work %s has %d manifests, want 1", w.Name, len(w.Spec.Workload.Manifests))
	}
	var m struct {
		Data map[string]string `json:"data"`
	}
	if err := json.Unmarshal(w.Spec.Workload.Manifests[0].Raw, &m); err != nil {
		t.Fatal(err)
	}
	return m.Data["value"]
}
