package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func TestCore_AppliesReportsAndRecords(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, deployment("web", "a"), configMap("web", "1")))

	r.expectRequests(
		"create appliedmanifestworks.work.open-cluster-management.io hash-web",
		"patch status appliedmanifestworks.work.open-cluster-management.io hash-web", // before any object is created
		"create configmaps default/web",                                              // ordered by rank, not as in the work
		"create deployments.apps default/web",
		"patch status appliedmanifestworks.work.open-cluster-management.io hash-web",
	)
	r.expectListed("web", "configmaps default/web", "deployments default/web")
	r.expectStatus("w-1", workApplied, workAvailable)
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, noFeedback)
	r.expectManifest("w-1", 1, manifestApplied, resourceThere, noFeedback)
	s := r.statuses["w-1"]
	if m := s.Status.ResourceStatus.Manifests[0].ResourceMeta; m != (workv1.ManifestResourceMeta{Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Namespace: "default", Name: "web"}) {
		t.Errorf("got %+v", m)
	}
	if s.Version != 1 || s.AgentID != "cluster1-agent" || s.OriginalSource != "hub" || s.Cluster != testCluster {
		t.Errorf("got %+v", s)
	}
	rec := r.record("web")
	if rec.Spec.AgentID != testAgentID || rec.Labels["app"] != "web" || rec.Annotations[appliedwork.AnnotationWorkID] != "w-1" || rec.Annotations[appliedwork.AnnotationVersion] != "1" {
		t.Errorf("got %+v", rec)
	}
	if len(r.sent) != 1 {
		t.Errorf("%d statuses were sent for one change", len(r.sent))
	}
}

// An object that is not in the record is created without a read first. An existing one is found by the
// creation.
func TestCore_CreatesUnrecordedObjectWithoutRead(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("web", "1")))
	r.f.Put(clustertest.Object("v1", "ConfigMap", "default", "old", "data", map[string]any{"k": "0"}))
	r.restart() // there is no state directory; the work arrives again with one more manifest
	r.requests()
	r.apply(hubWork("w-1", "web", 2, configMap("web", "1"), configMap("old", "1")))
	r.expectRequests(
		"get appliedmanifestworks.work.open-cluster-management.io hash-web", // the watch has shown the record
		"patch appliedmanifestworks.work.open-cluster-management.io hash-web",
		"get configmaps default/web",
		"patch status appliedmanifestworks.work.open-cluster-management.io hash-web",
		"create configmaps default/old",
		"get configmaps default/old",
		"update configmaps default/old",
		"patch status appliedmanifestworks.work.open-cluster-management.io hash-web",
	)
	r.expectListed("web", "configmaps default/old", "configmaps default/web")
	r.expectStatus("w-1", workApplied, workAvailable)

	// The record exists, and no watch has shown it.
	r.restart()
	clear(r.core.orphans.found)
	r.requests()
	r.apply(hubWork("w-1", "web", 2, configMap("web", "1"), configMap("old", "1")))
	r.expectRequests(
		"create appliedmanifestworks.work.open-cluster-management.io hash-web",
		"get appliedmanifestworks.work.open-cluster-management.io hash-web",
		"get configmaps default/web",
		"get configmaps default/old",
	)
}

func TestCore_IdleSendsNothing(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, deployment("web", "a"), configMap("web", "1")))
	r.requests()
	sent := len(r.sent)
	r.settle(50 * time.Minute)
	r.expectRequests()
	if len(r.sent) != sent {
		t.Error("a status was sent without need")
	}
	r.settle(time.Hour)
	r.expectRequests( // everything is read again periodically
		"get appliedmanifestworks.work.open-cluster-management.io hash-web", "get configmaps default/web", "get deployments.apps default/web",
	)
}

func TestCore_ChangesOfTheWork(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1")))
	before := r.configMap("b").GetUID()
	r.requests()

	r.apply(hubWork("w-1", "web", 2, configMap("b", "2"), configMap("c", "1")))
	if r.configMap("a") != nil {
		t.Error("a manifest that was removed from the work was not pruned")
	}
	if b := r.configMap("b"); b.GetUID() != before || b.Object["data"].(map[string]any)["k"] != "2" {
		t.Errorf("got %v", b.Object)
	}
	r.expectListed("web", "configmaps default/b", "configmaps default/c")
	r.expectStatus("w-1", workApplied, workAvailable)
	r.expectManifest("w-1", 0, resourceThere, noFeedback, manifestApplied) // history by object, applied again
	r.expectManifest("w-1", 1, manifestApplied, resourceThere, noFeedback)

	// Only the labels change: the version stays, and the status is still about this version.
	relabelled := hubWork("w-1", "web", 2, configMap("b", "2"), configMap("c", "1"))
	relabelled.Labels["tier"] = "x"
	r.requests()
	r.apply(relabelled)
	r.expectRequests("patch appliedmanifestworks.work.open-cluster-management.io hash-web") // the tag differs
	if r.record("web").Labels["tier"] != "x" {
		t.Error("the record has not followed the labels of the work")
	}
}

func TestCore_DeletesToTheEnd(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"), deployment("a", "1"))
	r.apply(w)
	r.delete(w)
	if r.record("web") != nil || r.configMap("a") != nil || r.f.Look(r.ref("Deployment", "a")) != nil {
		t.Fatal("something is left")
	}
	r.expectStatus("w-1", workApplied, workAvailable, workDeleting, workDeleted)
	if !slices.ContainsFunc(r.sent, func(s received) bool { return condition(s.Status.Conditions, "Deleting") != nil && !s.Deleted }) {
		t.Error("the deletion in progress was not reported")
	}
	if got := r.core.Counts(); got != (Counts{}) || len(r.core.states) != 0 || len(r.expected) != 0 {
		t.Errorf("something is remembered: %+v, %d states, %d tracked", got, len(r.core.states), len(r.expected))
	}
}

func TestCore_DeletionWaitsForHeldObject(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1"))
	r.apply(w)
	r.f.Edit(r.ref("ConfigMap", "b"), func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"example.com/hold"}) })
	r.settle(time.Second)
	r.deliverDeletion(w)
	r.settle(time.Hour)
	r.expectListed("web", "configmaps default/b")
	r.expectStatus("w-1", workApplied, "Available=False/ResourcesNotAvailable: 1 of 2 resources are not available", deletionWaits("ConfigMap default/b", 1))
	if r.configMap("a") != nil || r.record("web").DeletionTimestamp == nil {
		t.Fatal("want the free object deleted, and the record to stay")
	}
	if n := len(r.requests()); n > 400 {
		t.Errorf("%d requests while waiting for an hour", n)
	}
	r.f.Edit(r.ref("ConfigMap", "b"), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.settle(time.Second)
	if r.record("web") != nil || !r.statuses["w-1"].Deleted {
		t.Fatal("the end of the deletion is not reported at once")
	}
}

func TestCore_DeletedIsReportedUntilItIsAccepted(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	r.core.Disconnected(errAway)
	r.delete(w)
	if r.statuses["w-1"].Deleted || r.core.Counts().Deleting != 1 || r.core.Counts().ReportsDue != 1 {
		t.Fatalf("got %+v", r.core.Counts())
	}
	list := r.subscribe(accepted)
	if len(list) != 1 || list[0].ResourceID != "w-1" {
		t.Errorf("the list of the held works: %+v", list)
	}
	r.settle(time.Second)
	if !r.statuses["w-1"].Deleted || r.core.Counts() != (Counts{}) {
		t.Fatalf("got %+v", r.core.Counts())
	}
}

func TestCore_ConfirmsDeletionOfUnknownWork(t *testing.T) {
	r := newRig(t)
	r.delete(hubWork("w-1", "web", 3))
	r.expectStatus("w-1", workDeleted)
	if s := r.statuses["w-1"]; s.Version != 3 {
		t.Errorf("got version %d", s.Version)
	}

	// A restarted agent removes the objects that its predecessor created.
	w := hubWork("w-2", "other", 1, configMap("a", "1"))
	r.apply(w)
	r.restart()
	r.delete(w)
	if r.configMap("a") != nil || r.record("other") != nil || !r.statuses["w-2"].Deleted {
		t.Fatal("objects of the time before the restart are left")
	}
	r.expectStatus("w-2", workDeleting, workDeleted)

	// The record belongs to another work of that name, so this deletion leaves it.
	r.apply(hubWork("w-3", "name", 1, configMap("b", "1")))
	r.restart()
	r.delete(hubWork("w-9", "name", 1))
	if r.configMap("b") == nil || !r.statuses["w-9"].Deleted {
		t.Fatal("the deletion of an earlier work took the objects of a later one")
	}
}

func TestCore_SharedObjectsStay(t *testing.T) {
	r := newRig(t)
	one, two := hubWork("w-1", "one", 1, configMap("shared", "1")), hubWork("w-2", "two", 1, configMap("shared", "1"))
	r.apply(one)
	r.apply(two)
	uid := r.configMap("shared").GetUID()
	r.delete(one)
	if o := r.configMap("shared"); o == nil || o.GetUID() != uid || len(o.GetOwnerReferences()) != 1 {
		t.Fatalf("got %v", o)
	}
	r.apply(hubWork("w-2", "two", 2, configMap("other", "1")))
	if r.configMap("shared") != nil {
		t.Fatal("the last owner let go of it, and it is still there")
	}
}

func TestCore_OrphansOutliveTheirWork(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1"))
	w.Spec.DeleteOption = &workv1.DeleteOption{
		PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan,
		SelectivelyOrphan: &workv1.SelectivelyOrphan{OrphaningRules: []workv1.OrphaningRule{{Resource: "configmaps", Namespace: "default", Name: "a"}}},
	}
	r.apply(w)
	r.delete(w)
	if a := r.configMap("a"); a == nil || a.GetOwnerReferences() != nil || r.configMap("b") != nil {
		t.Fatalf("got %v and %v", a, r.configMap("b"))
	}

	// A delete option that arrives with the deletion is used.
	late := hubWork("w-2", "late", 1, configMap("c", "1"))
	r.apply(late)
	late.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	r.delete(late)
	if c := r.configMap("c"); c == nil || len(c.GetOwnerReferences()) != 0 {
		t.Fatalf("got %v", c)
	}
}

// TestCore_OrphansSurviveACrashWithinTheDeletion: the next agent finds the record before it receives the
// deletion again.
func TestCore_OrphansSurviveACrashWithinTheDeletion(t *testing.T) {
	for dies := 1; dies < 12; dies++ {
		r := newRig(t)
		w := hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1"))
		r.apply(w)
		w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
		calls := 0
		r.f.Refuse = func(clustertest.Call) error {
			if calls++; calls >= dies {
				return errDenied
			}
			return nil
		}
		r.delete(w)
		r.f.Refuse = nil
		r.restart()
		r.wakeAt(appliedwork.Name(testHubHash, "web"), r.now) // the watch reports a record that is being deleted
		r.settle(time.Minute)
		r.delete(w)
		if r.record("web") != nil || !r.statuses["w-1"].Deleted {
			t.Fatalf("died at %d: the deletion did not end: %v", dies, r.lastErr)
		}
		r.f.CollectGarbage()
		if r.configMap("a") == nil || r.configMap("b") == nil {
			t.Fatalf("died at %d: an orphaned object was deleted", dies)
		}
	}
}

func TestCore_DriftIsRepaired(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, deployment("web", "a"), configMap("web", "1")))
	sent := len(r.sent)
	r.requests()

	r.f.Edit(r.ref("ConfigMap", "web"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "2"} })
	r.settle(time.Second)
	r.expectRequests("get configmaps default/web", "update configmaps default/web")
	if r.configMap("web").Object["data"].(map[string]any)["k"] != "1" {
		t.Fatal("the change of another client stayed")
	}
	r.f.Edit(r.ref("Deployment", "web"), func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["replicas"] = int64(7) })
	r.settle(time.Second)
	r.expectRequests("get deployments.apps default/web", "update deployments.apps default/web")

	r.f.Remove(r.ref("ConfigMap", "web"))
	r.settle(time.Second)
	if r.configMap("web") == nil {
		t.Fatal("the object was not made again")
	}
	r.expectListed("web", "configmaps default/web", "deployments default/web") // with the new uid
	if len(r.sent) != sent {
		t.Error("repairs do not change the status")
	}
	r.requests()
	r.f.Edit(r.ref("ConfigMap", "web"), func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"theirs": "1"}) })
	r.settle(time.Second)
	r.expectRequests("get configmaps default/web")
}

func TestCore_ChangeInTheMiddleOfARoundIsNotTakenForGranted(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("web", "1"))
	r.apply(w)
	r.requestedKind = "configmaps"
	r.requested = func() { // just after the agent saw the object as unchanged
		r.f.Edit(r.ref("ConfigMap", "web"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "2"} })
	}
	w.Labels["another"] = "label"
	r.apply(w)
	if r.configMap("web").Object["data"].(map[string]any)["k"] != "1" {
		t.Fatal("the change was missed")
	}
}

func TestCore_BacksOffFromRepeatedForeignChanges(t *testing.T) {
	r := newRig(t)
	// One manifest of the work can never be applied.
	r.apply(hubWork("w-1", "web", 1, configMap("web", "1"), `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"r","namespace":"default"}}`))
	r.requests()
	fight := r.f.Changed
	r.f.Changed = func(ref ref, o *unstructured.Unstructured) {
		fight(ref, o)
		if ref.Resource == "configmaps" && o != nil && o.Object["data"].(map[string]any)["k"] == "1" {
			// Another controller undoes the repair a moment later.
			r.other = append(r.other, func() {
				r.f.Edit(ref, func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "2"} })
			})
		}
	}
	r.f.Edit(r.ref("ConfigMap", "web"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "2"} })
	r.settle(10 * time.Minute)
	writes := 0
	for _, c := range r.requests() {
		if strings.HasPrefix(c, "update") {
			writes++
		}
	}
	if writes < repairRate.burst || writes > repairRate.burst+11 {
		t.Errorf("%d repairs in ten minutes", writes)
	}
}

func TestCore_PollsUnwatchableKinds(t *testing.T) {
	r := newRig(t)
	r.denied = "configmaps"
	r.apply(hubWork("w-1", "web", 1, configMap("web", "1"), deployment("web", "1")))
	r.f.Edit(r.ref("ConfigMap", "web"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "2"} })
	r.requests()
	r.settle(20 * time.Second)
	if r.configMap("web").Object["data"].(map[string]any)["k"] != "1" {
		t.Fatal("the change was not noticed")
	}
	if calls := r.requests(); slices.Contains(calls, "get deployments.apps default/web") {
		t.Errorf("a watched object was read: %q", calls)
	}
}

func TestCore_OneBadManifestBlocksNoOther(t *testing.T) {
	r := newRig(t)
	forbidden := apierrors.NewForbidden(r.ref("Secret", "").GroupResource(), "s", errors.New("no rule"))
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "create" && c.Ref.Resource == "secrets" {
			return forbidden
		}
		return nil
	}
	r.apply(hubWork("w-1", "web", 1, configMap("old", "1")))
	r.apply(hubWork("w-1", "web", 2,
		configMap("good", "1"),
		`{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"r","namespace":"default"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"lost","namespace":"none"}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"nowhere"}}`,
	))
	if r.configMap("good") == nil || r.configMap("old") != nil {
		t.Fatal("what can be done is to be done, pruning included")
	}
	r.expectStatus("w-1", workFailed, "Available=False/ResourcesNotAvailable: 3 of 5 resources are not available")
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, noFeedback)
	r.expectManifest("w-1", 1, `Applied=False/AppliedManifestFailed: Failed to apply manifest: the server doesn't have a resource type "Rope" in example.com/v1; deliver its CustomResourceDefinition with a work, or correct apiVersion and kind`,
		"Available=Unknown/IncompleteResourceMeta: Resource meta is incomplete")
	r.expectManifest("w-1", 2, `Applied=False/AppliedManifestFailed: Failed to apply manifest: namespaces "none" not found; deliver the namespace with a work, or make it on the cluster: it is tried again then`, resourceNotThere)
	r.expectManifest("w-1", 3, `Applied=False/AppliedManifestFailed: Failed to apply manifest: secrets "s" is forbidden: no rule; correct the manifest, or change what rejects it on the cluster`, resourceNotThere)
	r.expectManifest("w-1", 4, "Applied=False/AppliedManifestFailed: Failed to apply manifest: an empty namespace may not be set when a resource name is provided: set metadata.namespace in the manifest",
		resourceNotThere)
	r.expectListed("web", "configmaps default/good", "configmaps none/lost intended", "secrets default/s intended") // entries of refused creations stay

	// The missing namespace and the missing kind are created.
	r.f.Refuse = nil
	r.f.Put(clustertest.Object("v1", "Namespace", "", "none"))
	r.f.Put(ropeDefinition())
	r.settle(10 * time.Minute)
	r.expectManifest("w-1", 1, manifestApplied, resourceThere, noFeedback)
	r.expectManifest("w-1", 2, manifestApplied, resourceThere, noFeedback)
	r.expectManifest("w-1", 3, manifestApplied, resourceThere, noFeedback)
}

// The definition of a kind is removed between the lookup of the kind and the read of the object.
func TestCore_ResourceIsNotServedAnyMore(t *testing.T) {
	rope := func(version int64) *workv1.ManifestWork {
		return hubWork("w-1", "web", version, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"r","namespace":"default"},"spec":{"length":%d}}`, version))
	}
	for _, verb := range []string{"create", "get"} {
		t.Run(verb, func(t *testing.T) {
			r := newRig(t)
			r.f.Put(ropeDefinition())
			if verb == "get" {
				r.apply(rope(1))
			}
			r.f.Refuse = func(c clustertest.Call) error {
				if c.Ref.Resource == "ropes" {
					return &kubeclient.NotServedError{Resource: c.Ref.GroupVersionResource}
				}
				return nil
			}
			r.apply(rope(2))
			want := `the server doesn't have a resource type "Rope" in example.com/v1; deliver its CustomResourceDefinition with a work, or correct apiVersion and kind`
			for _, typ := range []string{workv1.ManifestApplied, workv1.ManifestAvailable} {
				c := meta.FindStatusCondition(r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions, typ)
				if c == nil || !strings.HasSuffix(c.Message, ": "+want) {
					t.Errorf("%s is %+v, want %s", typ, c, want)
				}
			}
		})
	}
}

func ropeDefinition() *unstructured.Unstructured {
	return clustertest.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "ropes.example.com", "spec", map[string]any{
		"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "ropes", "kind": "Rope"},
		"versions": []any{map[string]any{"name": "v1", "served": true}},
	})
}

func TestCore_DefinitionAndItsResourceInOneWork(t *testing.T) {
	r := newRig(t)
	definition, err := ropeDefinition().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	w := hubWork("w-1", "web", 1, `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"r","namespace":"default"}}`, string(definition))
	r.apply(w)
	r.expectStatus("w-1", workApplied, workAvailable)
	r.delete(w)
	if r.record("web") != nil || !r.statuses["w-1"].Deleted || len(r.f.Refs()) != 2 {
		t.Fatalf("left: %v", r.f.Refs())
	}
}

func TestCore_PermanentErrorsAreNotTriedAgain(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	w.Spec.Executor = &workv1.ManifestWorkExecutor{}
	r.apply(w)
	r.requests()
	r.settle(10 * time.Minute)
	r.expectRequests()
	if r.configMap("a") != nil {
		t.Fatal("the executor was ignored")
	}
	r.expectStatus("w-1", workFailed, "Available=False/ResourcesNotAvailable: 1 of 1 resources are not available")
}

func TestCore_RecordDeletedByHand(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	before := r.configMap("a").GetUID()
	r.f.Remove(appliedwork.Ref(appliedwork.Name(testHubHash, "web")))
	r.settle(time.Second)
	if a := r.configMap("a"); a == nil || a.GetUID() == before || a.GetOwnerReferences()[0].UID != r.record("web").UID {
		t.Fatalf("got %v", a)
	}
	r.expectListed("web", "configmaps default/a")

	// A record without a work is deleted: its objects are removed, and nothing else happens.
	r.restart()
	r.f.Remove(appliedwork.Ref(appliedwork.Name(testHubHash, "web")))
	r.settle(time.Second)
	if r.configMap("a") != nil || r.record("web") != nil {
		t.Fatal("something is left")
	}

	// A record with another agent's id is left alone.
	r.apply(hubWork("w-2", "other", 1, configMap("b", "1")))
	r.f.Edit(appliedwork.Ref(appliedwork.Name(testHubHash, "other")), func(o *unstructured.Unstructured) {
		o.Object["spec"].(map[string]any)["agentID"] = "another-agent"
	})
	r.restart()
	r.f.Remove(appliedwork.Ref(appliedwork.Name(testHubHash, "other")))
	r.settle(time.Minute)
	if r.configMap("b") == nil || r.record("other") == nil {
		t.Fatal("the agent took what belongs to another one")
	}
}

func TestCore_ReportsUnrecordableWork(t *testing.T) {
	r := newRig(t)
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Ref.Resource == appliedwork.Resource.Resource && c.Verb == "create" {
			return apierrors.NewForbidden(c.Ref.GroupResource(), c.Ref.Name, errors.New("no rule"))
		}
		return nil
	}
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	if r.configMap("a") != nil {
		t.Fatal("an object was made without a record")
	}
	got := condition(r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions, "Applied")
	if got == nil || !strings.Contains(got.Message, "it cannot be recorded in AppliedManifestWork") || !strings.Contains(got.Message, "no rule") {
		t.Fatalf("got %+v", got)
	}
	r.f.Refuse = nil
	r.settle(10 * time.Minute)
	r.expectStatus("w-1", workApplied, workAvailable)

	long := strings.Repeat("x", appliedwork.MaxWorkName+1)
	r.apply(hubWork("w-2", long, 1, configMap("b", "1")))
	if got := condition(r.statuses["w-2"].Status.Conditions, "Applied"); got == nil || got.Status != "False" || r.configMap("b") != nil {
		t.Fatalf("got %+v", got)
	}
}

func TestCore_CrashBetweenTheSteps(t *testing.T) {
	// The agent dies at each of its requests in turn. The next agent gets either another version of the work or
	// its deletion. No object may remain.
	for _, end := range []string{"deleted", "changed"} {
		for dies := 1; dies < 40; dies++ {
			r := newRig(t)
			calls := 0
			r.f.Refuse = func(c clustertest.Call) error {
				if c.Verb == "resolve" {
					return nil
				}
				if calls++; calls >= dies {
					return errDenied
				}
				return nil
			}
			w := hubWork("w-1", "web", 1, configMap("a", "1"), deployment("b", "1"))
			r.apply(w)
			if dies > 8 { // the first reconciliation was complete: an object is removed and created again
				r.f.Remove(r.ref("ConfigMap", "a"))
				r.settle(time.Second)
			}
			r.f.Refuse = nil
			r.restart()
			if end == "deleted" {
				r.delete(w)
				if r.record("web") != nil || !r.statuses["w-1"].Deleted {
					t.Fatalf("died at %d: the deletion did not end: %v", dies, r.lastErr)
				}
			} else {
				r.apply(hubWork("w-1", "web", 2, configMap("c", "1")))
				r.settle(time.Minute)
				r.expectListed("web", "configmaps default/c")
			}
			r.f.CollectGarbage()
			if r.configMap("a") != nil || r.f.Look(r.ref("Deployment", "b")) != nil {
				t.Fatalf("died at %d, then %s: objects are left behind", dies, end)
			}
		}
	}
}
