package apply

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// appliedBy sets server-side apply with these options for every manifest.
func (b *bench) appliedBy(c *workv1.ServerSideApplyConfig) *bench {
	b.spec.ManifestConfigs = nil
	for _, r := range []string{"configmaps", "secrets", "deployments/apps", "jobs/batch"} {
		resource, group, _ := strings.Cut(r, "/")
		b.spec.ManifestConfigs = append(b.spec.ManifestConfigs, workv1.ManifestConfigOption{
			ResourceIdentifier: workv1.ResourceIdentifier{Group: group, Resource: resource, Namespace: "*", Name: "*"},
			UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: c},
		})
	}
	return b
}

func serverSide(t *testing.T, ignore ...workv1.IgnoreField) *bench {
	return newBench(t).appliedBy(&workv1.ServerSideApplyConfig{IgnoreFields: ignore})
}

func forced(t *testing.T, ignore ...workv1.IgnoreField) *bench {
	return newBench(t).appliedBy(&workv1.ServerSideApplyConfig{Force: true, IgnoreFields: ignore})
}

func config(data string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"},"data":` + data + `}`
}

// verbs returns the verbs of the write requests since the last call.
func (b *bench) verbs() []string {
	var list []string
	for _, c := range b.f.TakeCalls() {
		if c.Write() {
			list = append(list, c.Verb)
		}
	}
	return list
}

func (b *bench) wantVerbs(want ...string) {
	b.t.Helper()
	if got := b.verbs(); !slices.Equal(got, want) {
		b.t.Errorf("writes: got %q, want %q", got, want)
	}
}

func data(t *testing.T, o *unstructured.Unstructured) map[string]string {
	t.Helper()
	if o.Object["data"] == nil {
		return nil
	}
	m, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func wantFields(t *testing.T, o *unstructured.Unstructured, want map[string]string) {
	t.Helper()
	if d := cmp.Diff(want, data(t, o)); d != "" {
		t.Errorf("data (-want +got)\n%s", d)
	}
}

func managers(o *unstructured.Unstructured) (list []string) {
	for _, e := range o.GetManagedFields() {
		list = append(list, e.Manager+"/"+string(e.Operation))
	}
	slices.Sort(list)
	return list
}

func TestServerSideApply_CreatesAndOwns(t *testing.T) {
	b := serverSide(t)
	r := b.apply(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default","creationTimestamp":null,"uid":"77777777-0000-0000-0000-000000000000",
		"resourceVersion":"5","managedFields":[{"manager":"kubectl"}],"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]},
		"spec":{"template":{"metadata":{"creationTimestamp":null},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	o := b.must(Create, r)
	b.wantVerbs("apply", "patch")
	var owners []string
	for _, ref := range o.GetOwnerReferences() {
		owners = append(owners, ref.Kind)
	}
	if !slices.Equal(owners, []string{"Pod", "AppliedManifestWork"}) {
		t.Errorf("owners: got %v", owners)
	}
	if got := managers(o); !slices.Equal(got, []string{"work-agent/Apply", "work-agent/Update"}) {
		t.Errorf("managers: got %v", got)
	}
	if m, _, _ := unstructured.NestedMap(o.Object, "spec", "template", "metadata"); len(m) > 0 {
		t.Errorf("template: got %v", m)
	}
}

func TestServerSideApply_WritesOnlyADifference(t *testing.T) {
	b := serverSide(t)
	first := b.apply(config(`{"k":"v"}`))
	b.must(Create, first)
	b.wantVerbs("apply", "patch")
	b.must(Unchanged, b.applyKnowing(config(`{"k":"v"}`), first.Known))
	b.must(Unchanged, b.apply(config(`{"k":"v"}`))) // after a restart
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"theirs": "1"}) })
	b.must(Unchanged, b.applyKnowing(config(`{"k":"v"}`), first.Known))
	b.wantVerbs()
	wantFields(t, b.must(Update, b.applyKnowing(config(`{"l":"v"}`), first.Known)), map[string]string{"l": "v"})
	b.wantVerbs("apply")
}

// A value that the server stores in another form is sent once.
func TestServerSideApply_SendsDefaultedObjectOnce(t *testing.T) {
	const manifest = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"},"spec":{"template":{}},"status":{"replicas":1}}`
	b := serverSide(t)
	first := b.apply(manifest)
	b.must(Create, first)
	b.verbs()
	again := b.apply(manifest)
	b.must(Update, again)
	b.wantVerbs("apply")
	b.must(Unchanged, b.applyKnowing(manifest, again.Known))
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) { // another manager owns the field
		if err := unstructured.SetNestedField(o.Object, int64(5), "spec", "replicas"); err != nil {
			t.Error(err)
		}
	})
	b.must(Unchanged, b.applyKnowing(manifest, again.Known))
	b.wantVerbs()
}

func TestServerSideApply_RepairsOwnFields(t *testing.T) {
	b := forced(t)
	first := b.apply(config(`{"k":"v","l":"v"}`))
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "x", "theirs": "1"} })
	r := b.applyKnowing(config(`{"k":"v","l":"v"}`), first.Known)
	wantFields(t, b.must(Update, r), map[string]string{"k": "v", "l": "v", "theirs": "1"})
}

func TestServerSideApply_AdoptsExistingObjects(t *testing.T) {
	for name, existing := range map[string]string{"Equal": "v", "Different": "w"} {
		t.Run(name, func(t *testing.T) {
			b := forced(t)
			b.f.Put(clustertest.Object("v1", "ConfigMap", "default", "a", "data", map[string]any{"k": existing, "theirs": "1"}))
			o := b.must(Update, b.apply(config(`{"k":"v"}`)))
			wantFields(t, o, map[string]string{"k": "v", "theirs": "1"})
			if !slices.ContainsFunc(o.GetOwnerReferences(), owner.is) {
				t.Errorf("owners: got %v", o.GetOwnerReferences())
			}
		})
	}
}

func TestServerSideApply_ConflictIsNotTriedAgain(t *testing.T) {
	b := serverSide(t)
	first := b.apply(config(`{"k":"v"}`))
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "theirs"} })
	b.verbs()
	r := b.applyKnowing(config(`{"k":"v"}`), first.Known)
	if !kubeclient.IsFieldConflict(r.Err) || r.Presence != conditions.Present || r.Known != (KnownState{}) || len(b.waits) > 0 || Permanent(r.Err) {
		t.Fatalf("got %+v", r)
	}
	b.wantVerbs("apply")
	if text := `Apply failed with 1 conflict: conflict with "others" using v1`; !strings.HasPrefix(r.Err.Error(), text) || !strings.HasSuffix(r.Err.Error(), ": .data.k") {
		t.Errorf("got %q", r.Err)
	}
	wantFields(t, b.must(Update, b.apply(config(`{"l":"v"}`))), map[string]string{"k": "theirs", "l": "v"})
}

func TestServerSideApply_ManagersShareAnObject(t *testing.T) {
	b := serverSide(t)
	b.must(Create, b.apply(config(`{"k":"v"}`)))
	other := &bench{t: t, f: b.f}
	other.appliedBy(&workv1.ServerSideApplyConfig{FieldManager: "work-agent-b"})
	b.must(Update, other.apply(config(`{"l":"v"}`)))
	b.must(Unchanged, b.apply(config(`{"k":"v"}`)))
	o := b.must(Update, b.apply(config(`{"m":"v"}`)))
	wantFields(t, o, map[string]string{"l": "v", "m": "v"})
	if r := other.apply(config(`{"m":"w"}`)); !kubeclient.IsFieldConflict(r.Err) {
		t.Errorf("got %v", r.Err)
	}
}

func TestServerSideApply_OwnershipFollowsTheDeleteOption(t *testing.T) {
	b := serverSide(t)
	b.must(Create, b.apply(config(`{"k":"v"}`)))
	b.spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	b.verbs()
	if o := b.must(Update, b.apply(config(`{"k":"v"}`))); len(o.GetOwnerReferences()) > 0 {
		t.Errorf("got %v", o.GetOwnerReferences())
	}
	b.wantVerbs("patch")
	b.spec.DeleteOption = nil
	if o := b.must(Update, b.apply(config(`{"k":"v"}`))); len(o.GetOwnerReferences()) != 1 {
		t.Errorf("got %v", o.GetOwnerReferences())
	}
}

// A change between the apply and the owner reference causes another round.
func TestServerSideApply_OwnerReferenceMeetsAnotherWriter(t *testing.T) {
	b := serverSide(t)
	stale := true
	b.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "patch" && stale {
			stale = false
			return apierrors.NewConflict(c.Ref.GroupResource(), c.Ref.Name, errors.New("the object has been modified"))
		}
		return nil
	}
	r := b.apply(config(`{"k":"v"}`))
	if o := b.must(Update, r); len(o.GetOwnerReferences()) != 1 || len(b.waits) != 1 {
		t.Errorf("got %v after %v", o.GetOwnerReferences(), b.waits)
	}
	b.wantVerbs("apply", "patch", "patch")
}

func TestServerSideApply_FieldManagerIsChecked(t *testing.T) {
	for name, ok := range map[string]bool{
		"": true, "work-agent": true, "work-agent-team": true, "agent": false, "x-work-agent": false,
		"work-agent\n": false, "work-agent-" + strings.Repeat("x", 118): false, "work-agent-é": false,
	} {
		b := newBench(t).appliedBy(&workv1.ServerSideApplyConfig{FieldManager: name})
		r := b.apply(config(`{"k":"v"}`))
		if ok != (r.Err == nil) {
			t.Errorf("%q: got %v", name, r.Err)
		}
		if !ok && (!Permanent(r.Err) || !strings.Contains(r.Err.Error(), "updateStrategy.serverSideApply.fieldManager")) {
			t.Errorf("%q: got %v", name, r.Err)
		}
	}
}

func TestServerSideApply_KeepsTerminatingObjectInSync(t *testing.T) {
	b := serverSide(t)
	held := clustertest.Object("v1", "ConfigMap", "default", "a", "data", map[string]any{"theirs": "1"})
	held.SetFinalizers([]string{"example.com/hold"})
	b.f.Put(held)
	ref := b.f.Ref("v1", "ConfigMap", "default", "a")
	b.f.Remove(ref)
	first := b.apply(config(`{"k":"v"}`))
	if o := b.must(Update, first); o.GetDeletionTimestamp() == nil {
		t.Fatal("the object is not being deleted")
	}
	b.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	wantFields(t, b.must(Create, b.applyKnowing(config(`{"k":"v"}`), first.Known)), map[string]string{"k": "v"})
}

// A Job gets its selector from the server; the applied fields do not change it.
func TestServerSideApply_JobWithoutSelector(t *testing.T) {
	const job = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"default"},"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i"}],"restartPolicy":"Never"}}}}`
	b := serverSide(t)
	first := b.apply(job)
	b.must(Create, first)
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(o.Object, "uid", "spec", "selector", "matchLabels", "controller-uid"); err != nil {
			t.Error(err)
		}
	})
	b.verbs()
	b.must(Unchanged, b.applyKnowing(job, first.Known))
	b.must(Unchanged, b.apply(job))
	b.wantVerbs()
}

// Objects in another version than that of managedFields are applied once more.
func TestServerSideApply_IgnoresManagedFieldsOfOtherVersion(t *testing.T) {
	b := serverSide(t)
	o := b.must(Create, b.apply(config(`{"k":"v"}`)))
	entries := o.GetManagedFields()
	for i := range entries {
		entries[i].APIVersion = "v0"
	}
	entries = append(entries, metav1.ManagedFieldsEntry{Manager: "work-agent", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(`{"x":1}`)})
	o.SetManagedFields(entries)
	if b := readManagedFields(o, "work-agent"); !b.own.empty() || !b.all.empty() {
		t.Errorf("got %v", b)
	}
}
