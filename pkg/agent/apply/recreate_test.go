package apply

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// No hint advises to delete an object that holds data, or whose deletion removes such objects. This holds for
// every strategy and every refusal of the server.
func TestRejection_NoHintDestroysData(t *testing.T) {
	refusals := map[string]error{"": apierrors.NewBadRequest("denied")}
	for _, field := range []string{"spec", "spec.a", "spec.filled"} {
		err := apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Field: field}}
		refusals[field] = err
	}
	for _, kind := range []string{
		"v1 PersistentVolume", "v1 PersistentVolumeClaim", "v1 Namespace", "v1 Node", "v1 Pod", "v1 ServiceAccount", "apps/v1 StatefulSet",
		"apiextensions.k8s.io/v1 CustomResourceDefinition", "storage.k8s.io/v1 VolumeAttachment", "snapshot.storage.k8s.io/v1 VolumeSnapshot",
		"postgresql.cnpg.io/v1 Cluster", "argoproj.io/v1alpha1 Application", "cluster.x-k8s.io/v1beta1 Cluster", "example.com/v1 Job",
	} {
		apiVersion, name, _ := strings.Cut(kind, " ")
		object := func(a string) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": name, "metadata": map[string]any{"name": "a"}, "spec": map[string]any{"a": a}}}
		}
		for _, strategy := range []workv1.UpdateStrategyType{workv1.UpdateStrategyTypeUpdate, workv1.UpdateStrategyTypeServerSideApply, workv1.UpdateStrategyTypeCreateOnly} {
			for field, refusal := range refusals {
				r := Result{Manifest: Manifest{Object: object("new")}, Live: object("old"), Err: refusal}
				r.Config.Strategy.Type = strategy
				r.reject(owner, nil)
				text := r.Err.Error()
				if strings.Contains(text, "or delete") || strings.Contains(text, "another name,") || !strings.Contains(text, "do not delete the object") {
					t.Errorf("%s, %s, %q: %s", kind, strategy, field, text)
				}
				if helps := strings.Contains(text, "CreateOnly or ServerSideApply"); helps != (strategy == workv1.UpdateStrategyTypeUpdate && field != "spec" && field != "spec.a") {
					t.Errorf("%s, %s, %q: another strategy is a way: %t", kind, strategy, field, helps)
				}
			}
		}
	}
}
