package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// TestAgent_OnAKubeAPIServer is one test, because the cluster takes a while to start. Each part uses its own
// works.
func TestAgent_OnAKubeAPIServer(t *testing.T) {
	s := newSpoke(t)
	t.Run("ClientKeepsItsContract", func(t *testing.T) {
		s.Kubectl("create", "namespace", "suite")
		clustertest.Run(t, s.client(s.Admin), "suite")
	})
	stop := s.agent()
	for _, part := range []struct {
		name string
		test func(*spoke)
	}{
		{"CarriesAWorkToTheEnd", carriesAWorkToTheEnd},
		{"RepairsDrift", repairsDrift},
		{"AtRestAsksNothing", idleSendsNothing},
		{"ExecutorsAtRest", executorsAtRest},
		{"WaitsForFinalizers", waitsForFinalizers},
		{"KeepsSharedObject", keepsSharedObject},
		{"ReportsErrors", reportsErrors},
		{"DefinitionAndItsResource", definitionAndItsResource},
		{"EveryKindWithARule", everyKindWithARule},
		{"MissingNamespacesRest", missingNamespacesRest},
		{"DeniedWorksRest", deniedWorksRest},
		{"FailingWebhookIsTriedByOne", failingWebhookIsTriedByOne},
		{"SlowWebhookChangesNoCondition", slowWebhookChangesNoCondition},
		{"PollsUnwatchableKind", pollsUnwatchableKind},
		{"RemovesRecordRejectingWebhook", removesRecordRejectingWebhook},
		{"BoundsItsStatus", boundsItsStatus},
		{"HasPriorityLevelOfItsOwn", hasPriorityLevelOfItsOwn},
	} {
		t.Run(part.name, func(t *testing.T) {
			here := *s
			here.T = t
			part.test(&here)
		})
	}
	t.Run("ComesBackAfterAnAbsence", func(t *testing.T) {
		here := *s
		here.T = t
		comesBackAfterAnAbsence(&here, stop)
	})
}

func carriesAWorkToTheEnd(s *spoke) {
	w := work("web", 1, deployment("web", 2), configMap("web", "1"))
	begun := time.Now()
	r := s.applied(w)
	s.Logf("published and applied within %v", time.Since(begun))
	want := []workv1.ManifestResourceMeta{
		{Ordinal: 0, Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Namespace: "default", Name: "web"},
		{Ordinal: 1, Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespace: "default", Name: "web"},
	}
	for i, m := range r.Status.ResourceStatus.Manifests {
		if d := cmp.Diff(want[i], m.ResourceMeta); d != "" || len(m.Conditions) != 3 {
			s.Errorf("manifest %d: %+v (-want +got)\n%s", i, m.Conditions, d)
		}
	}
	cm := s.configMap("web")
	rec := s.record("web")
	if d := cmp.Diff([]metav1.OwnerReference{{APIVersion: "work.open-cluster-management.io/v1", Kind: "AppliedManifestWork", Name: rec.Name, UID: rec.UID}}, cm.OwnerReferences); d != "" {
		s.Errorf("owner (-want +got)\n%s", d)
	}
	for _, f := range cm.ManagedFields {
		if f.Manager != "work-agent" || f.Operation != metav1.ManagedFieldsOperationUpdate {
			s.Errorf("written by %s (%s), want work-agent", f.Manager, f.Operation)
		}
	}
	if !slices.Equal(rec.Finalizers, []string{workv1.AppliedManifestWorkFinalizer}) || rec.Spec.ManifestWorkName != "web" || rec.Labels["app"] != "web" {
		s.Errorf("record %+v", rec)
	}
	var listed []string
	for _, e := range rec.Status.AppliedResources {
		if e.UID == "" {
			s.Errorf("%s has no uid", e.Name)
		}
		listed = append(listed, e.Resource)
	}
	if !slices.Equal(listed, []string{"configmaps", "deployments"}) {
		s.Errorf("listed %q", listed)
	}

	uid := cm.UID
	s.applied(work("web", 2, deployment("web", 3), configMap("other", "1")))
	s.Eventually(func() error {
		if s.configMap("web") != nil {
			return errors.New("what the work no longer has is still there")
		}
		return nil
	})
	if d, err := s.Kube.AppsV1().Deployments("default").Get(s.Context(), "web", metav1.GetOptions{}); err != nil || *d.Spec.Replicas != 3 {
		s.Errorf("replicas: %v, %v", d, err)
	}
	if s.configMap("other").UID == uid {
		s.Error("the test is wrong")
	}
	begun = time.Now()
	s.deleted(work("web", 2, deployment("web", 3), configMap("other", "1")))
	s.Logf("deleted within %v", time.Since(begun))
	if s.configMap("other") != nil {
		s.Error("something is left")
	}
}

func repairsDrift(s *spoke) {
	w := work("drift", 1, deployment("drift", 2), configMap("drift", "1"))
	s.applied(w)
	repaired := func(what string, change func() error, check func() bool) {
		s.Helper()
		if err := change(); err != nil {
			s.Fatal(err)
		}
		begun := time.Now()
		s.Eventually(func() error {
			if !check() {
				return errors.New(what + " is not repaired")
			}
			return nil
		})
		// A watch reports the change, so an idle machine needs milliseconds.
		if took := time.Since(begun); took > 10*time.Second {
			s.Errorf("%s: repaired after %v", what, took)
		} else {
			s.Logf("%s: repaired after %v", what, took)
		}
	}
	patch := []byte(`{"data":{"k":"2"}}`)
	repaired("a changed object", func() error {
		_, err := s.Kube.CoreV1().ConfigMaps("default").Patch(s.Context(), "drift", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}, func() bool { c := s.configMap("drift"); return c != nil && c.Data["k"] == "1" })
	repaired("a deleted object", func() error {
		return s.Kube.CoreV1().ConfigMaps("default").Delete(s.Context(), "drift", metav1.DeleteOptions{})
	}, func() bool { return s.configMap("drift") != nil })
	repaired("another number of replicas", func() error {
		_, err := s.Kube.AppsV1().Deployments("default").Patch(s.Context(), "drift", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{})
		return err
	}, func() bool {
		d, err := s.Kube.AppsV1().Deployments("default").Get(s.Context(), "drift", metav1.GetOptions{})
		return err == nil && *d.Spec.Replicas == 2
	})
	old := s.record("drift").UID
	repaired("a deleted record", func() error {
		return s.Works.WorkV1().AppliedManifestWorks().Delete(s.Context(), s.record("drift").Name, metav1.DeleteOptions{})
	}, func() bool {
		r, c := s.record("drift"), s.configMap("drift")
		return r != nil && r.UID != old && c != nil && c.DeletionTimestamp == nil && c.OwnerReferences[0].UID == r.UID && len(r.Status.AppliedResources) == 2
	})
	s.deleted(w)
}

func idleSendsNothing(s *spoke) {
	w := work("rest", 1, deployment("rest", 2), configMap("rest", "1"), `{"apiVersion":"v1","kind":"Service","metadata":{"name":"rest","namespace":"default"},"spec":{"ports":[{"port":80}],"selector":{"app":"rest"}}}`)
	s.applied(w)
	s.Eventually(func() error { // the controllers have finished with the object
		d, err := s.Kube.AppsV1().Deployments("default").Get(s.Context(), "rest", metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != 2 {
			err = errors.New("not available yet")
		}
		return err
	})
	quiet := func() error { // nil after three seconds without a request
		s.requests.take()
		select {
		case <-time.After(3 * time.Second):
		case <-s.Context().Done():
		}
		if requested := s.requests.take(); len(requested) > 0 {
			return fmt.Errorf("it requested %q", requested)
		}
		return nil
	}
	s.Eventually(quiet)
	d, err := s.Kube.AppsV1().Deployments("default").Get(s.Context(), "rest", metav1.GetOptions{})
	if err != nil || d.Generation != 1 {
		s.Errorf("generation %d, %v", d.Generation, err)
	}
	// A changed status causes no read.
	if _, err := s.Kube.AppsV1().Deployments("default").Patch(s.Context(), "rest", types.MergePatchType, []byte(`{"status":{"collisionCount":1}}`), metav1.PatchOptions{}, "status"); err != nil {
		s.Fatal(err)
	}
	if err := quiet(); err != nil {
		s.Error(err)
	}
	s.deleted(w)
}

func waitsForFinalizers(s *spoke) {
	held := strings.Replace(configMap("held", "1"), `"name"`, `"finalizers":["example.com/hold"],"name"`, 1)
	w := work("held", 1, held, configMap("not-held", "1"))
	s.applied(w)
	s.source.publish(w, codec.DeleteRequest)
	s.Eventually(func() error {
		r := s.record("held")
		if r == nil || r.DeletionTimestamp == nil || len(r.Status.AppliedResources) != 1 || s.configMap("not-held") != nil {
			return fmt.Errorf("record %+v", r)
		}
		return nil
	})
	s.reports("held", func(r manifestwork.StatusReport) error {
		if meta.FindStatusCondition(r.Status.Conditions, "Deleting") == nil || r.Deleted {
			return errors.New("it is not reported as being deleted")
		}
		return nil
	})
	s.Kubectl("patch", "configmap", "held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	begun := time.Now()
	s.confirmed("held")
	s.Logf("confirmed %v after the last object went", time.Since(begun))
}

func keepsSharedObject(s *spoke) {
	one, two := work("one", 1, configMap("shared", "1")), work("two", 1, configMap("shared", "1"))
	s.applied(one)
	s.applied(two)
	uid := s.configMap("shared").UID
	s.deleted(one)
	if c := s.configMap("shared"); c == nil || c.UID != uid || len(c.OwnerReferences) != 1 {
		s.Fatalf("got %+v", c)
	}
	s.deleted(two)
	if s.configMap("shared") != nil {
		s.Fatal("the object is still there without an owner")
	}
}

func reportsErrors(s *spoke) {
	w := work("wrong", 1,
		configMap("right", "1"),
		`{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"r","namespace":"default"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"lost","namespace":"nowhere"}}`,
		`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"fast"},"provisioner":"example.com/p"}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"bad","namespace":"default"},"spec":{}}`,
	)
	s.apply(w)
	want := []string{
		"Apply manifest complete",
		`Failed to apply manifest: the server doesn't have a resource type "Rope"`,
		`Failed to apply manifest: namespaces "nowhere" not found`,
		`Failed to apply manifest: storageclasses.storage.k8s.io "fast" is forbidden`,
		`Failed to apply manifest: Deployment.apps "bad" is invalid`,
	}
	s.reports("wrong", func(r manifestwork.StatusReport) error {
		for i, m := range r.Status.ResourceStatus.Manifests {
			if c := meta.FindStatusCondition(m.Conditions, "Applied"); c == nil || !strings.HasPrefix(c.Message, want[i]) {
				return fmt.Errorf("manifest %d: %+v, want %s", i, c, want[i])
			}
		}
		return nil
	})
	if s.configMap("right") == nil {
		s.Error("one manifest held up another")
	}
	s.Kubectl("create", "namespace", "nowhere")
	s.reports("wrong", func(r manifestwork.StatusReport) error {
		if c := meta.FindStatusCondition(r.Status.ResourceStatus.Manifests[2].Conditions, "Applied"); c.Status != "True" {
			return errors.New("the namespace is there now")
		}
		return nil
	})
	s.deleted(w)
}

func definitionAndItsResource(s *spoke) {
	definition := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"knots.example.org"},"spec":{"group":"example.org","scope":"Cluster",
		"names":{"plural":"knots","singular":"knot","kind":"Knot","listKind":"KnotList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	// The built-in role admin has no rights for custom kinds: the user adds a role.
	if _, err := s.Kube.RbacV1().ClusterRoles().Create(s.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "knots", Labels: map[string]string{"open-cluster-management.io/aggregate-to-work": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"example.org"}, Resources: []string{"knots"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	w := work("custom", 1, `{"apiVersion":"example.org/v1","kind":"Knot","metadata":{"name":"bowline"},"spec":{"loops":1}}`, definition)
	begun := time.Now()
	s.applied(w)
	s.Logf("definition and resource after %v", time.Since(begun))
	s.Kubectl("patch", "knot", "bowline", "--type=merge", "-p", `{"spec":{"loops":2}}`)
	s.Eventually(func() error {
		if got := s.Kubectl("get", "knot", "bowline", "-o", "jsonpath={.spec.loops}"); got != "1" {
			return errors.New("drift of a custom resource is not repaired")
		}
		return nil
	})
	s.deleted(w)
}

func everyKindWithARule(s *spoke) {
	const rbac = `"apiVersion":"rbac.authorization.k8s.io/v1"`
	w := work("kinds", 1,
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kinds"}}`,
		`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"a","namespace":"kinds"}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"kinds"},"stringData":{"k":"v"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"kinds"},"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"kinds"},"spec":{"containers":[{"name":"c","image":"example.com/none:1"}]}}`,
		`{`+rbac+`,"kind":"ClusterRole","metadata":{"name":"kinds","namespace":"kinds"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`,
		`{`+rbac+`,"kind":"ClusterRoleBinding","metadata":{"name":"kinds"},"roleRef":{"kind":"ClusterRole","name":"kinds"},"subjects":[{"kind":"Group","name":"g"}]}`,
		`{`+rbac+`,"kind":"Role","metadata":{"name":"a","namespace":"kinds"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"],"resourceNames":[]}]}`,
		`{`+rbac+`,"kind":"RoleBinding","metadata":{"name":"a","namespace":"kinds"},"roleRef":{"kind":"Role","name":"a"},"subjects":[{"kind":"User","name":"u"}]}`,
		`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"kinds"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"example.com/none:1"}]}}}}`,
	)
	s.applied(w)
	s.requests.take()
	next := work("kinds", 2)
	next.Spec = w.Spec
	s.applied(next)
	for _, requested := range s.requests.take() {
		if strings.HasPrefix(requested, "PUT") || strings.HasPrefix(requested, "POST") {
			s.Errorf("the same work again: %s", requested)
		}
	}
	// The roleRef of a binding and the template of a Job are immutable.
	changed := work("kinds", 3)
	changed.Spec = *w.Spec.DeepCopy()
	manifests := changed.Spec.Workload.Manifests
	manifests[8].Raw = []byte(strings.Replace(string(manifests[8].Raw), `"name":"a"},"subjects"`, `"name":"b"},"subjects"`, 1))
	manifests[9].Raw = []byte(strings.Replace(string(manifests[9].Raw), "none:1", "none:2", 1))
	s.apply(changed)
	s.reports("kinds", func(r manifestwork.StatusReport) error {
		for _, i := range []int{8, 9} {
			m := r.Status.ResourceStatus.Manifests[i]
			applied, available := meta.FindStatusCondition(m.Conditions, "Applied"), meta.FindStatusCondition(m.Conditions, "Available")
			if applied.Status != "False" || !strings.Contains(applied.Message, "immutable") && !strings.Contains(applied.Message, "cannot change roleRef") || available.Status != "True" {
				return fmt.Errorf("manifest %d: %+v", i, m.Conditions)
			}
		}
		return nil
	})
	s.deleted(changed)
	s.Eventually(func() error {
		_, err := s.Kube.CoreV1().Namespaces().Get(s.Context(), "kinds", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace is still there: %w", err)
	})
}

func pollsUnwatchableKind(s *spoke) {
	s.Kubectl("create", "clusterrole", "blind", "--verb=get,create,update,patch,delete", "--resource=runtimeclasses.node.k8s.io")
	s.Kubectl("label", "clusterrole", "blind", "open-cluster-management.io/aggregate-to-work=true")
	w := work("blind", 1, `{"apiVersion":"node.k8s.io/v1","kind":"RuntimeClass","metadata":{"name":"blind","labels":{"a":"1"}},"handler":"h"}`)
	s.applied(w)
	s.Kubectl("label", "runtimeclass", "blind", "a=2", "--overwrite")
	s.Eventually(func() error {
		if got := s.Kubectl("get", "runtimeclass", "blind", "-o", "jsonpath={.metadata.labels.a}"); got != "1" {
			return errors.New("drift is not repaired")
		}
		return nil
	})
	s.deleted(w)
}

func comesBackAfterAnAbsence(s *spoke, stop func()) {
	stays, changes, goes := work("stays", 1, configMap("stays", "1"), deployment("stays", 1)), work("changes", 1, configMap("changes", "1")), work("goes", 1, configMap("goes", "1"))
	for _, w := range []*workv1.ManifestWork{stays, changes, goes} {
		s.applied(w)
	}
	uid := s.configMap("stays").UID
	stop()
	s.source.publish(work("changes", 2, configMap("changed", "2")), codec.UpdateRequest)
	s.source.publish(goes, codec.DeleteRequest)
	s.source.publish(work("comes", 1, configMap("comes", "1")), codec.CreateRequest)
	s.Kubectl("delete", "configmap", "changes")
	s.agent()
	s.confirmed("goes")
	s.applied(work("comes", 1, configMap("comes", "1")))
	s.Eventually(func() error {
		if s.configMap("changes") != nil || s.configMap("changed") == nil || s.configMap("goes") != nil {
			return errors.New("not converged")
		}
		return nil
	})
	if c := s.configMap("stays"); c == nil || c.UID != uid {
		s.Errorf("what did not change was touched: %+v", c)
	}
	d, err := s.Kube.AppsV1().Deployments("default").Get(s.Context(), "stays", metav1.GetOptions{})
	if err != nil || d.Generation != 1 {
		s.Errorf("generation %d, %v", d.Generation, err)
	}
}
