package manifestwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestForeign_IsRemovedThenLeftAlone: a field that no table lists is removed, as with OCM. After three times it
// stays. The work names the field and its manager. Applied is True, because the object contains all fields of
// the manifest.
func TestForeign_IsRemovedThenLeftAlone(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "foreign", harness.DeploymentYAML(ns, "web", 0), harness.ConfigMapYAML(ns, "shared", "x")))
	all := []filling{
		{resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, namespace: ns, name: "web", manager: "scaler",
			patch: nested(map[string]any{"scaler": "yes"}, "spec", "template", "spec", "nodeSelector"), path: []string{"spec", "template", "spec", "nodeSelector", "scaler"}, want: "yes"},
		{resource: core("configmaps"), namespace: ns, name: "shared", manager: "operator", patch: nested("theirs", "data", "more"), path: []string{"data", "more"}, want: "theirs"},
	}
	for fight := range 3 {
		for _, one := range all {
			if _, err := one.put(t.Context()); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, func(ctx context.Context) error {
				if _, err := one.is(ctx); err == nil {
					return fmt.Errorf("fight %d: %s %s has still %v", fight+1, one.resource.Resource, one.name, one.path)
				}
				return nil
			})
		}
	}
	for _, one := range all {
		if _, err := one.put(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i, path := range []string{".spec.template.spec.nodeSelector (set by scaler)", ".data.more (set by operator)"} {
		f.ManifestCondition(t, w, i, "Contested", func(c metav1.Condition) bool {
			return c.Status == metav1.ConditionTrue && strings.Contains(c.Message, path) && strings.Contains(c.Message, "ServerSideApply")
		})
	}
	harness.Consistently(t, func(ctx context.Context) error {
		var wrong []error
		for _, one := range all {
			_, err := one.is(ctx)
			wrong = append(wrong, err)
		}
		return errors.Join(wrong...)
	})
	f.Ready(t, w)
}

// TestForeign_HintKeepsTheData: a work cannot change its PersistentVolumeClaim. The condition reports that, and
// its hint loses no data.
func TestForeign_HintKeepsTheData(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "")
	claim := func(class string) string {
		return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: " + ns + "}\nspec: {accessModes: [ReadWriteOnce], storageClassName: " + class + ", resources: {requests: {storage: 1Gi}}}\n"
	}
	w := f.Create(t, harness.NewWork(t, cluster, "foreign-hint", claim("one")))
	unprotect(t, core("persistentvolumeclaims"), ns, "data")
	f.Ready(t, w)
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests[0] = harness.Manifest(t, claim("two")) })
	c := f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse })
	if !strings.Contains(c.Message, "do not delete the object") || strings.Contains(c.Message, "or delete the object") {
		t.Errorf("got %s", c.Message)
	}
}

// unprotect removes the finalizers of a volume or claim when the test ends. No controller removes them here.
func unprotect(t *testing.T, resource schema.GroupVersionResource, ns, name string) {
	t.Helper()
	one := filling{resource: resource, namespace: ns, name: name}
	t.Cleanup(func() {
		typ, body := harness.MergePatch(nested(nil, "metadata", "finalizers"))
		if _, err := one.api().Patch(context.WithoutCancel(t.Context()), name, typ, body, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// decided are the kinds of the API server that need no rule. Either nothing is filled into their objects after
// creation, or Update ignores the filled-in fields.
var decided = map[string]string{
	"ConfigMap": "bundles of OpenShift are in the rule of the kind", "Event": "", "LimitRange": "", "Namespace": "only metadata is written", "Pod": "only metadata is written",
	"PodTemplate": "", "ReplicationController": "replicas are shared by ServerSideApply", "ResourceQuota": "status only", "Secret": "keys of tokens are in the rule of the kind",
	"Service": "the server keeps addresses and ports", "ServiceAccount": "only metadata is written",
	"MutatingAdmissionPolicy": "", "MutatingAdmissionPolicyBinding": "", "ValidatingAdmissionPolicy": "status only", "ValidatingAdmissionPolicyBinding": "",
	"ControllerRevision": "", "DaemonSet": "status only", "Deployment": "replicas are shared by ServerSideApply", "ReplicaSet": "replicas are shared by ServerSideApply", "StatefulSet": "replicas are shared by ServerSideApply",
	"HorizontalPodAutoscaler": "status only", "CronJob": "status only", "CertificateSigningRequest": "the server keeps the spec",
	"EndpointSlice": "the controller has slices of its own", "FlowSchema": "status only", "PriorityLevelConfiguration": "status only",
	"IPAddress": "", "Ingress": "status only; the class is set at creation only, in the name of its creator", "IngressClass": "", "NetworkPolicy": "", "ServiceCIDR": "status only",
	"RuntimeClass": "", "PodDisruptionBudget": "status only", "ClusterRole": "aggregated rules are in the rule of the kind", "ClusterRoleBinding": "", "Role": "", "RoleBinding": "",
	"DeviceClass": "", "ResourceClaim": "status only", "ResourceClaimTemplate": "", "ResourceSlice": "drivers have slices of their own", "PriorityClass": "",
	"CSIDriver": "", "StorageClass": "", "VolumeAttachment": "status only", "VolumeAttributesClass": "",
}

// openAPI is the used part of a document of /openapi/v3.
type openAPI struct {
	Paths map[string]struct {
		Put *struct {
			Kind schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
		}
	}
	Components struct{ Schemas map[string]apiSchema }
}

type apiSchema struct {
	Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
	Properties map[string]apiSchema
	Items      *apiSchema
	AllOf      []struct {
		Ref string `json:"$ref"`
	}
	Ref string `json:"$ref"`
}

// at returns the schema of a field. A path is like webhooks[].clientConfig.
func (d openAPI) at(s apiSchema, path string) (apiSchema, bool) {
	for name := range strings.SplitSeq(path, ".") {
		name, each := strings.CutSuffix(name, "[]")
		next, has := d.follow(s).Properties[name]
		if !has {
			return next, false
		}
		if s = next; each {
			if s = d.follow(s); s.Items == nil {
				return s, false
			}
			s = *s.Items
		}
	}
	return s, true
}

func (d openAPI) follow(s apiSchema) apiSchema {
	ref := s.Ref
	if len(s.AllOf) == 1 {
		ref = s.AllOf[0].Ref
	}
	if ref == "" {
		return s
	}
	return d.Components.Schemas[ref[strings.LastIndex(ref, "/")+1:]]
}

// TestForeign_TableIsOfTheServersKinds: the table covers each kind of a real API server, and each field in it
// exists in its kind.
func TestForeign_TableIsOfTheServersKinds(t *testing.T) {
	t.Parallel()
	documents, err := shared.API[cluster].Kube.Discovery().OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	found := map[schema.GroupKind]bool{}
	checked := map[apply.FilledField]bool{}
	for name, document := range documents {
		group := strings.TrimPrefix(strings.TrimPrefix(name, "apis/"), "api/")
		if group, _, _ = strings.Cut(group, "/"); !strings.HasPrefix(name, "api") || strings.HasPrefix(name, "apis/") && strings.Contains(group, ".") && !builtIn(group) {
			continue // custom resources of other tests
		}
		body, err := document.Schema("application/json")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var d openAPI
		if err := json.Unmarshal(body, &d); err != nil {
			t.Fatal(err)
		}
		for path, methods := range d.Paths {
			if methods.Put == nil || !strings.HasSuffix(path, "{name}") {
				continue
			}
			kind := methods.Put.Kind
			found[kind.GroupKind()] = true
			for _, s := range d.Components.Schemas {
				for _, row := range apply.FilledFields() {
					if slices.Contains(s.Kinds, kind) && row.Group == kind.Group && row.Kind == kind.Kind {
						if _, has := d.at(s, row.Path); !has {
							t.Errorf("%s has no field %s", kind, row.Path)
						}
						checked[row] = true
					}
				}
			}
		}
	}
	for kind := range found {
		listed := slices.ContainsFunc(apply.FilledFields(), func(r apply.FilledField) bool { return r.Kind == kind.Kind && r.Group == kind.Group })
		if _, nothing := decided[kind.Kind]; nothing == listed {
			t.Errorf("%s: in the table: %t, in the list of kinds without such fields: %t", kind, listed, nothing)
		}
	}
	for _, row := range apply.FilledFields() {
		if row.Kind != "" && builtIn(row.Group) && !checked[row] {
			t.Errorf("no kind of the server has %+v", row)
		}
	}
	if len(found) < 50 {
		t.Errorf("saw %d kinds only", len(found))
	}
}

// builtIn reports whether a group is built into the API server.
func builtIn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io") && group != "snapshot.storage.k8s.io" && group != "migration.k8s.io"
}

// TestForeign_KeepsUnremovableField: the server refuses to replace a Job without a selector. A field that
// another manager added stays, and the work keeps its conditions.
func TestForeign_KeepsUnremovableField(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "foreign-job",
		"apiVersion: batch/v1\nkind: Job\nmetadata: {name: job, namespace: "+ns+"}\nspec: {template: {spec: {restartPolicy: Never, nodeSelector: {never: matches}, containers: [{name: main, image: busybox}]}}}\n"))
	one := filling{resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, namespace: ns, name: "job", manager: "janitor",
		patch: nested(3600, "spec", "ttlSecondsAfterFinished"), path: []string{"spec", "ttlSecondsAfterFinished"}, want: "3600"}
	if _, err := one.put(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.ManifestCondition(t, w, 0, "Contested", func(c metav1.Condition) bool {
		return strings.Contains(c.Message, ".spec.ttlSecondsAfterFinished (set by janitor)")
	})
	got := f.Ready(t, w)
	if c := meta.FindStatusCondition(got.Status.Conditions, workv1.WorkApplied); c.LastTransitionTime != meta.FindStatusCondition(w.Status.Conditions, workv1.WorkApplied).LastTransitionTime {
		t.Errorf("Applied changed: %+v", c)
	}
	if _, err := one.is(t.Context()); err != nil {
		t.Error(err)
	}
}
