package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// guarded configures agents that run in the namespace hawser.
func guarded(r *rig) {
	r.configure = func(c *CoreConfig) {
		c.Guard = &workpolicy.Guard{
			Agent: workpolicy.Agent{Namespace: "hawser", Account: types.NamespacedName{Namespace: "hawser", Name: "renamed"}},
			Hub:   "hub1", Objects: r.f,
		}
	}
}

// livedBy returns the objects that agents of this and of another hub need. The agent knows the first ones by
// name and the others by their content.
func livedBy(r *rig) (named, found []*unstructured.Unstructured) {
	const rbac = "rbac.authorization.k8s.io/v1"
	object := clustertest.Object
	for _, ns := range []string{"hawser", "hub2"} {
		r.f.Put(object("v1", "Namespace", "", ns))
	}
	named = []*unstructured.Unstructured{
		object("coordination.k8s.io/v1", "Lease", "hawser", "hawser-agent-0123456789abcdef"),
		object("v1", "ServiceAccount", "hawser", "hawser-agent"),
		object("v1", "ServiceAccount", "hawser", "renamed"),
		object("v1", "Secret", "hawser", "hawser-agent", "data", map[string]any{"tls.key": "a2V5"}),
		object("v1", "ConfigMap", "hub2", "hawser-agent-identities"),
		object("apps/v1", "Deployment", "hub2", "hawser-agent"),
		object(rbac, "Role", "hawser", "hawser-agent"),
		object(rbac, "RoleBinding", "hawser", "hawser-agent"),
		object(rbac, "ClusterRole", "", "hawser-agent-aggregate"),
		object(rbac, "ClusterRoleBinding", "", "hawser-agent-admin"),
		object("v1", "Namespace", "", "hawser"),
	}
	found = []*unstructured.Unstructured{
		object("v1", "Namespace", "", "hub2"),
		object("apps/v1", "Deployment", "hub2", "agent-of-hub2"),
	}
	found[1].SetLabels(map[string]string{workpolicy.Label: "true"})
	for _, o := range slices.Concat(named, found) {
		r.f.Put(o)
	}
	return named, found
}

// manifestOf returns a manifest that changes an object.
func manifestOf(o *unstructured.Unstructured) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":%q,"labels":{"a":"b"}},"data":{"k":"v"}}`,
		o.GetAPIVersion(), o.GetKind(), o.GetName(), o.GetNamespace())
}

// lookAt returns the current state of an object.
func (r *rig) lookAt(o *unstructured.Unstructured) *unstructured.Unstructured {
	return r.f.Look(r.f.Ref(o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()))
}

func TestCore_RejectsObjectsNeededByAgents(t *testing.T) {
	for _, strategy := range []workv1.UpdateStrategyType{workv1.UpdateStrategyTypeUpdate, workv1.UpdateStrategyTypeCreateOnly, workv1.UpdateStrategyTypeServerSideApply, workv1.UpdateStrategyTypeReadOnly} {
		r := newRig(t)
		guarded(r)
		named, found := livedBy(r)
		r.restart()
		all := slices.Concat(named, found)
		w := hubWork("w-1", "web", 1, configMap("a", "1"))
		before := map[string]string{}
		for _, o := range all {
			w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, hubWork("", "", 1, manifestOf(o)).Spec.Workload.Manifests...)
			before[o.GetKind()+o.GetName()] = r.lookAt(o).GetResourceVersion()
		}
		for _, kind := range []string{"leases", "secrets", "deployments", "namespaces", "configmaps"} {
			group := map[string]string{"leases": "coordination.k8s.io", "deployments": "apps"}[kind]
			w.Spec.ManifestConfigs = append(w.Spec.ManifestConfigs, workv1.ManifestConfigOption{
				ResourceIdentifier: workv1.ResourceIdentifier{Group: group, Resource: kind, Namespace: "*", Name: "*"},
				UpdateStrategy:     &workv1.UpdateStrategy{Type: strategy},
				FeedbackRules:      []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{{Name: "key", Path: `.data.tls\.key`}}}},
			})
		}
		r.f.TakeCalls()
		r.apply(w)
		for _, call := range r.requests() {
			for _, o := range named {
				if strings.HasSuffix(call, o.GetNamespace()+"/"+o.GetName()) && o.GetName() != "hawser-agent-identities" {
					t.Errorf("%s: %s", strategy, call)
				}
			}
		}
		if r.configMap("a") == nil && strategy != workv1.UpdateStrategyTypeReadOnly {
			t.Errorf("%s: the rest of the work is not applied", strategy)
		}
		reported := r.statuses["w-1"].Status.ResourceStatus.Manifests
		for i, o := range all {
			m := reported[i+1]
			applied := condition(m.Conditions, workv1.ManifestApplied)
			if applied == nil || applied.Status != "False" || applied.Reason != workv1.AppliedManifestFailed || !strings.Contains(applied.Message, "agents on this cluster need") {
				t.Errorf("%s: %s %s: %v", strategy, o.GetKind(), o.GetName(), show(m.Conditions))
			}
			if len(m.StatusFeedbacks.Values) > 0 {
				t.Errorf("%s: %s %s has the feedback %v", strategy, o.GetKind(), o.GetName(), m.StatusFeedbacks.Values)
			}
		}
		if c := condition(r.statuses["w-1"].Status.Conditions, workv1.WorkApplied); c == nil || c.Status != "False" {
			t.Errorf("%s: the work has the condition %v", strategy, c)
		}
		for _, entry := range r.listed("web") {
			if entry != "configmaps default/a" {
				t.Errorf("%s: %s is on the list", strategy, entry)
			}
		}
		r.delete(w)
		r.f.CollectGarbage()
		for _, o := range all {
			if live := r.lookAt(o); live == nil || live.GetResourceVersion() != before[o.GetKind()+o.GetName()] {
				t.Errorf("%s: %s %s was touched: %v", strategy, o.GetKind(), o.GetName(), live)
			}
		}
		if r.configMap("a") != nil {
			t.Errorf("%s: the work is not deleted", strategy)
		}
	}
}

// Objects that agents need, and that an earlier release took over, are released, whether the work stays or is
// deleted.
func TestCore_ReleasesObjectsNeededByAgents(t *testing.T) {
	for _, end := range []string{"stays", "is deleted", "drops it", "is evicted"} {
		r := newRig(t)
		named, found := livedBy(r)
		all := slices.Concat(named, found)
		w := hubWork("w-1", "web", 1, configMap("a", "1"))
		for _, o := range all {
			w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, hubWork("", "", 1, manifestOf(o)).Spec.Workload.Manifests...)
		}
		r.apply(w)
		if n := len(r.listed("web")); n != len(all)+1 {
			t.Fatalf("%d objects are listed", n)
		}
		guarded(r)
		r.start()
		r.subscribe(accepted)
		switch end {
		case "stays":
			r.apply(w)
			r.expectListed("web", "configmaps default/a")
		case "drops it":
			w = hubWork("w-1", "web", 2, configMap("a", "1"))
			r.apply(w)
			r.expectListed("web", "configmaps default/a")
		case "is evicted":
			record := r.f.Ref("work.open-cluster-management.io/v1", "AppliedManifestWork", "", r.record("web").Name)
			r.f.Edit(record, func(o *unstructured.Unstructured) { o.SetFinalizers([]string{workv1.AppliedManifestWorkFinalizer}) })
			if err := r.f.Delete(t.Context(), record, r.f.Look(record).GetUID()); err != nil {
				t.Fatal(err)
			}
			r.settle(10 * time.Second)
		}
		if end != "is evicted" {
			r.delete(w)
		}
		r.f.CollectGarbage()
		if r.record("web") != nil || r.configMap("a") != nil {
			t.Errorf("%s: the work is not deleted", end)
		}
		for _, o := range all {
			if live := r.lookAt(o); live == nil || len(live.GetOwnerReferences()) > 0 || live.GetDeletionTimestamp() != nil {
				t.Errorf("%s: %s %s is %v", end, o.GetKind(), o.GetName(), live)
			}
		}
	}
}

// Objects that the owner of a cluster denies stay unchanged, also when the work changes or is deleted. They belong to the
// work again when they are allowed.
func TestCore_FollowsTheOwnerOfTheCluster(t *testing.T) {
	r := newRig(t)
	guarded(r)
	r.restart()
	const denied = `Applied=False/AppliedManifestFailed: Failed to apply manifest: the owner of this cluster does not let works of hub "hub1" have configmaps default/a. Remove the manifest from the work, or have the owner change the file of --policy-file`
	w := hubWork("w-1", "web", 1, configMap("a", "1"), deployment("d", "x"))
	r.apply(w)
	guard := r.core.config.Guard
	follow := func(rules workpolicy.Rules) {
		guard.Follow(rules)
		r.core.RulesChanged()
		r.settle(time.Second)
	}
	follow(workpolicy.Rules{Deny: []workpolicy.Rule{{Resources: []string{"configmaps"}}}})
	if c := r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions; !slices.Contains(show(c), denied) {
		t.Fatalf("got %q", show(c))
	}
	r.expectManifest("w-1", 1, manifestApplied, resourceThere, noFeedback)
	r.expectListed("web", "configmaps default/a", "deployments default/d")
	w = hubWork("w-1", "web", 2, configMap("a", "2"), deployment("d", "x"))
	r.apply(w)
	if got, _, _ := unstructured.NestedString(r.configMap("a").Object, "data", "k"); got != "1" {
		t.Errorf("a denied object was written: %q", got)
	}
	follow(workpolicy.Rules{Allow: []workpolicy.Rule{{Namespaces: []string{"def*"}}}})
	if got, _, _ := unstructured.NestedString(r.configMap("a").Object, "data", "k"); got != "2" {
		t.Errorf("an object that is allowed again was not written: %q", got)
	}
	r.expectStatus("w-1", workApplied, workAvailable)
	follow(workpolicy.Rules{Allow: []workpolicy.Rule{{APIGroups: []string{"apps"}}}})
	r.delete(w)
	r.f.CollectGarbage()
	if r.configMap("a") == nil || len(r.configMap("a").GetOwnerReferences()) > 0 || r.record("web") != nil {
		t.Errorf("got %v, want it to stay, and the work deleted", r.configMap("a"))
	}
	if r.f.Look(r.ref("Deployment", "d")) != nil {
		t.Error("the allowed object is not deleted")
	}
}
