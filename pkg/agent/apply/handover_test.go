package apply

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// updated puts a ConfigMap as Update left it, with managedFields.
func (b *bench) updated(fields string, owners ...Owner) {
	o := clustertest.Object("v1", "ConfigMap", "default", "a", "data", map[string]any{"k": "1", "l": "1", "m": "1"})
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: kubeclient.UserAgent, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fields),
	}})
	var refs []metav1.OwnerReference
	for _, w := range owners {
		refs = append(refs, w.Reference())
	}
	o.SetOwnerReferences(refs)
	b.f.Put(o)
}

const updatedFields = `{"f:data":{".":{},"f:k":{},"f:l":{},"f:m":{}},"f:metadata":{"f:ownerReferences":{".":{},"k:{\"uid\":\"11111111-0000-0000-0000-000000000000\"}":{}}}}`

func managedOf(o *unstructured.Unstructured) string {
	var list []string
	for _, e := range o.GetManagedFields() {
		list = append(list, e.Manager+"/"+string(e.Operation)+" "+e.FieldsV1.GetRawString())
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// Fields that Update wrote are applied from then on: without a conflict with the agent itself, and removable.
// Fields that left the manifest stay.
func TestHandOver_FromUpdate(t *testing.T) {
	b := serverSide(t)
	b.updated(updatedFields, owner)
	first := b.apply(config(`{"k":"2","l":"1"}`))
	o := b.must(Update, first)
	wantFields(t, o, map[string]string{"k": "2", "l": "1", "m": "1"})
	b.wantVerbs("patch", "apply")
	const want = `work-agent/Apply {"f:data":{".":{},"f:k":{},"f:l":{}}}
work-agent/Update {"f:data":{"f:m":{}},"f:metadata":{"f:ownerReferences":{".":{},"k:{\"uid\":\"11111111-0000-0000-0000-000000000000\"}":{}}}}`
	if got := managedOf(o); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b.must(Unchanged, b.applyKnowing(config(`{"k":"2","l":"1"}`), first.Known))
	b.must(Unchanged, b.apply(config(`{"k":"2","l":"1"}`)))
	b.wantVerbs()
	wantFields(t, b.must(Update, b.apply(config(`{"k":"2"}`))), map[string]string{"k": "2", "m": "1"})
}

func TestHandOver_EqualManifestMovesManagedFields(t *testing.T) {
	b := serverSide(t)
	b.updated(updatedFields, owner)
	b.must(Update, b.apply(config(`{"k":"1","l":"1","m":"1"}`)))
	b.wantVerbs("patch")
	b.must(Unchanged, b.apply(config(`{"k":"1","l":"1","m":"1"}`)))
	b.wantVerbs()
}

// An ignored field that Update had set keeps its value.
func TestHandOver_LeavesIgnoredFieldsAlone(t *testing.T) {
	b := serverSide(t, onPresent("/data/k"))
	b.updated(updatedFields, owner)
	wantFields(t, b.must(Update, b.apply(config(`{"k":"2","l":"2"}`))), map[string]string{"k": "1", "l": "2", "m": "1"})
}

// The updates may belong to another work, so they are not handed over.
func TestHandOver_NotWhileAnotherWorkHasTheObject(t *testing.T) {
	b := serverSide(t)
	b.updated(updatedFields, owner, Owner{Name: "hash-other", UID: "u"})
	r := b.apply(config(`{"k":"2"}`))
	if !kubeclient.IsFieldConflict(r.Err) {
		t.Errorf("got %v", r.Err)
	}
	b.wantVerbs("apply")
}

// If the write after the hand-over is refused, the result still has the state after the hand-over.
func TestHandOver_ErrorAfterwards(t *testing.T) {
	b := newBench(t).appliedBy(&workv1.ServerSideApplyConfig{FieldManager: "work-agent-b"})
	b.updated(updatedFields, owner)
	if err := b.f.Apply(object(t, config(`{"n":"1"}`)), kubeclient.FieldManager{Name: "theirs"}); err != nil {
		t.Fatal(err)
	}
	r := b.apply(config(`{"k":"2","n":"2"}`))
	if !kubeclient.IsFieldConflict(r.Err) || r.Live == nil || !slices.Contains(managers(r.Live), "work-agent-b/Apply") {
		t.Errorf("got %v, %v", r.Err, managers(r.Live))
	}
	b.wantVerbs("patch", "apply")
}
