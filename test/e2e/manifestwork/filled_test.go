package manifestwork

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// filling is a field that another manager sets in an object of a work.
type filling struct {
	resource        schema.GroupVersionResource
	namespace, name string
	manager         string
	patch           map[string]any
	// path is the field, want its value as fmt prints it.
	path []string
	want string
}

func (f filling) api() dynamic.ResourceInterface {
	api := shared.API[cluster].Dynamic.Resource(f.resource)
	if f.namespace == "" {
		return api
	}
	return api.Namespace(f.namespace)
}

// put sets the field as the other manager.
func (f filling) put(ctx context.Context) (*unstructured.Unstructured, error) {
	typ, body := harness.MergePatch(f.patch)
	return f.api().Patch(ctx, f.name, typ, body, metav1.PatchOptions{FieldManager: f.manager})
}

// is returns an error unless the field has the value that put has set.
func (f filling) is(ctx context.Context) (*unstructured.Unstructured, error) {
	o, err := f.api().Get(ctx, f.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	got, _, _ := unstructured.NestedFieldNoCopy(o.Object, f.path...)
	if list, ok := got.([]any); ok && len(list) == 1 { // the field is in a webhook of a list
		got, _, _ = unstructured.NestedFieldNoCopy(list[0].(map[string]any), "clientConfig", "caBundle")
	}
	if fmt.Sprint(got) != f.want {
		return o, fmt.Errorf("%s %s: %v is %.20v, want %.20s", f.resource.Resource, f.name, f.path, got, f.want)
	}
	return o, nil
}

// nested returns a patch that sets one field.
func nested(v any, path ...string) map[string]any {
	for i := len(path) - 1; i > 0; i-- {
		v = map[string]any{path[i]: v}
	}
	return map[string]any{path[0]: v}
}

func certificate(t *testing.T) string {
	t.Helper()
	ca, err := pki.NewAuthority("injected", pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(ca.CertificatePEM())
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

// fillings returns the manifests of one work, and the fields that the cluster sets in its objects. version is in
// a label of each manifest.
func fillings(t *testing.T, ns string) (manifests func(version int) []string, all []filling) {
	t.Helper()
	const (
		binder   = "kube-controller-manager"
		injector = "cainjector"
		argo     = "argocd-application-controller"
	)
	bundle := certificate(t)
	applications := schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applications"}
	manifests = func(version int) []string {
		var all []string
		for _, m := range []string{
			strings.Replace(definitionYAML("Winch"), "  preserveUnknownFields: false\n",
				"  preserveUnknownFields: false\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: \"https://127.0.0.1/\"}}}\n", 1),
			foreignDefinition("argoproj.io", "v1alpha1", "Application", "applications", "Namespaced"),
			"apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: " + ns + "}\n" +
				"webhooks: [{name: b.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: \"https://127.0.0.1/\"}, rules: [{apiGroups: [nothing.example.com], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]}]\n",
			"apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: " + ns + "}\nspec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: manual, csi: {driver: d.example.com, volumeHandle: h}}\n",
			"apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: " + ns + "-kept}\nspec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: manual, csi: {driver: d.example.com, volumeHandle: k}, claimRef: {name: data, namespace: " + ns + "}}\n",
			"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: " + ns + "}\nspec: {accessModes: [ReadWriteOnce], storageClassName: manual, resources: {requests: {storage: 1Gi}}}\n",
			"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: default, namespace: " + ns + "}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n",
			strings.Replace(customYAML("Winch", ns, "w", 1), ", annotations: {ours: \"1\"}", "", 1),
			"apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: app, namespace: " + ns + "}\nspec: {project: default}\n",
		} {
			all = append(all, strings.Replace(m, "metadata: {", fmt.Sprintf("metadata: {labels: {version: %q}, ", fmt.Sprint(version)), 1))
		}
		return all
	}
	return manifests, []filling{
		{resource: definitions, name: "winchs.winch.example.com", manager: injector, want: bundle,
			patch: nested(bundle, "spec", "conversion", "webhook", "clientConfig", "caBundle"), path: []string{"spec", "conversion", "webhook", "clientConfig", "caBundle"}},
		{resource: schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}, name: ns, manager: injector, want: bundle,
			patch: map[string]any{"webhooks": []any{map[string]any{"name": "b.example.com", "sideEffects": "None", "admissionReviewVersions": []any{"v1"},
				"clientConfig": map[string]any{"url": "https://127.0.0.1/", "caBundle": bundle},
				"rules":        []any{map[string]any{"apiGroups": []any{"nothing.example.com"}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE"}, "resources": []any{"nothings"}}}}}},
			path: []string{"webhooks"}},
		{resource: core("persistentvolumes"), name: ns, manager: binder, want: "u-1",
			patch: nested(map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": ns, "name": "other", "uid": "u-1", "resourceVersion": "7"}, "spec", "claimRef"), path: []string{"spec", "claimRef", "uid"}},
		{resource: core("persistentvolumes"), name: ns + "-kept", manager: binder, want: "u-2",
			patch: nested(map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": "u-2", "resourceVersion": "8"}, "spec", "claimRef"), path: []string{"spec", "claimRef", "uid"}},
		{resource: core("persistentvolumeclaims"), namespace: ns, name: "data", manager: binder, want: ns + "-kept",
			patch: nested(ns+"-kept", "spec", "volumeName"), path: []string{"spec", "volumeName"}},
		{resource: core("persistentvolumeclaims"), namespace: ns, name: "default", manager: binder, want: "provisioned",
			patch: nested("provisioned", "spec", "volumeName"), path: []string{"spec", "volumeName"}},
		{resource: customResource("Winch"), namespace: ns, name: "w", manager: "winch-controller", want: "Ready",
			patch: nested("Ready", "status", "phase"), path: []string{"status", "phase"}},
		{resource: applications, namespace: ns, name: "app", manager: argo, want: "abc",
			patch: nested("abc", "operation", "sync", "revision"), path: []string{"operation", "sync", "revision"}},
	}
}

// TestFilled_StaysAndIsNoDrift: fields that the cluster fills into objects of a work stay and are no drift.
// Nothing is written, and Applied stays True. They also stay when the manifest changes, and the change is
// applied.
func TestFilled_StaysAndIsNoDrift(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "", "admissionregistration.k8s.io", "storage.k8s.io", "winch.example.com", "argoproj.io")
	class := harness.NewWork(t, cluster, "filled-class",
		"apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: "+ns+", annotations: {storageclass.kubernetes.io/is-default-class: \"true\"}}\nprovisioner: example.com/p\n")
	f.Deliver(t, class)
	manifests, all := fillings(t, ns)
	w := f.Create(t, harness.NewWork(t, cluster, "filled", manifests(1)...))
	for _, one := range all {
		if one.resource.Group == "" {
			unprotect(t, one.resource, one.namespace, one.name)
		}
	}
	before := f.Ready(t, w)

	versions := map[string]string{}
	for _, one := range all {
		o, err := one.put(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		versions[one.resource.Resource+" "+one.name] = o.GetResourceVersion()
	}
	waitASecond(t)
	touch(t, w)
	harness.Consistently(t, func(ctx context.Context) error {
		var wrong []error
		for _, one := range all {
			o, err := one.is(ctx)
			if err == nil && o.GetResourceVersion() != versions[one.resource.Resource+" "+one.name] && one.resource != definitions {
				err = fmt.Errorf("%s %s was written", one.resource.Resource, one.name)
			}
			wrong = append(wrong, err)
		}
		return errors.Join(wrong...)
	})
	after, err := f.Get(t.Context(), cluster, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := times(after), times(before); got != want {
		t.Errorf("conditions and their times\n%s\nbefore\n%s", got, want)
	}

	for i, with := range []func(string) string{func(m string) string { return m }, placeholders} {
		version := i + 2
		keepsFilled(t, f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
			for i, m := range manifests(version) {
				w.Spec.Workload.Manifests[i] = harness.Manifest(t, with(m))
			}
		}), all, version)
	}
}

// placeholders returns a manifest with empty values for fields that the cluster sets. Scaffolds and charts
// produce such manifests.
func placeholders(manifest string) string {
	return strings.NewReplacer(
		`clientConfig: {url: "https://127.0.0.1/"}`, `clientConfig: {url: "https://127.0.0.1/", caBundle: Cg==}`,
		"storageClassName: manual, resources", `storageClassName: manual, volumeName: "", resources`,
	).Replace(manifest)
}

// keepsFilled checks that a version of the work is applied, and that the fields of other managers have kept
// their values.
func keepsFilled(t *testing.T, w *workv1.ManifestWork, all []filling, version int) {
	t.Helper()
	shared.Ready(t, w)
	for _, one := range all {
		o, err := one.is(t.Context())
		if err != nil {
			t.Errorf("version %d: %v", version, err)
		} else if o.GetLabels()["version"] != fmt.Sprint(version) {
			t.Errorf("%s %s has labels %v, want version %d", one.resource.Resource, one.name, o.GetLabels(), version)
		}
	}
}
