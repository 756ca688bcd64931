package hubsource

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned/typed/work/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/pkg/codec"
)

// fieldManager names the writer in managedFields.
const fieldManager = "hawser-hub-source"

// presentPage is the number of works in one list request.
const presentPage = 500

var manifestWorks = schema.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "manifestworks"}

// Hub reads and writes on the hub, beside the informers. Errors are those of the Kubernetes API. Every write
// fails with a conflict if the object has another resource version or uid than o. Returned objects are trimmed
// like those of the informer, and belong to the caller.
type Hub interface {
	AddFinalizer(ctx context.Context, o *workv1.ManifestWork) (*workv1.ManifestWork, error)
	RemoveFinalizer(ctx context.Context, o *workv1.ManifestWork) (*workv1.ManifestWork, error)
	// PatchStatus sets the status of o.
	PatchStatus(ctx context.Context, o *workv1.ManifestWork, status workv1.ManifestWorkStatus) (*workv1.ManifestWork, error)
	// Delete deletes o as its user would.
	Delete(ctx context.Context, o *workv1.ManifestWork) error
	// Get reads from the API server without any cache.
	Get(ctx context.Context, namespace, name string) (*workv1.ManifestWork, error)
	// Present returns the resource versions of the works of a namespace, at one moment and without any cache.
	Present(ctx context.Context, namespace string) (core.Present, error)
	// Locate returns the identity of the hub and its present position, without any cache.
	Locate(ctx context.Context) (codec.HubPosition, error)
}

// apiHub is the hub behind clientsets.
type apiHub struct {
	works workclient.ManifestWorksGetter
	meta  metadata.Interface
}

// NewHub returns the hub behind a clientset. meta reads the metadata of namespaces.
func NewHub(works workclient.ManifestWorksGetter, meta metadata.Interface) Hub {
	return apiHub{works, meta}
}

func (h apiHub) AddFinalizer(ctx context.Context, o *workv1.ManifestWork) (*workv1.ManifestWork, error) {
	return h.finalizers(ctx, o, append(slices.Clone(o.Finalizers), workv1.ManifestWorkFinalizer))
}

func (h apiHub) RemoveFinalizer(ctx context.Context, o *workv1.ManifestWork) (*workv1.ManifestWork, error) {
	rest := slices.DeleteFunc(slices.Clone(o.Finalizers), func(f string) bool { return f == workv1.ManifestWorkFinalizer })
	return h.finalizers(ctx, o, rest)
}

func (h apiHub) finalizers(ctx context.Context, o *workv1.ManifestWork, finalizers []string) (*workv1.ManifestWork, error) {
	m := precondition(o)
	m["finalizers"] = finalizers
	return h.patch(ctx, o, map[string]any{"metadata": m})
}

func (h apiHub) PatchStatus(ctx context.Context, o *workv1.ManifestWork, status workv1.ManifestWorkStatus) (*workv1.ManifestWork, error) {
	p := map[string]any{}
	if !apiequality.Semantic.DeepEqual(status.Conditions, o.Status.Conditions) {
		p["conditions"] = orEmpty(status.Conditions)
	}
	if !apiequality.Semantic.DeepEqual(status.ResourceStatus, o.Status.ResourceStatus) {
		manifests := slices.Clone(orEmpty(status.ResourceStatus.Manifests))
		for i := range manifests {
			// The schema needs a list; some agents send null.
			manifests[i].Conditions = orEmpty(manifests[i].Conditions)
		}
		p["resourceStatus"] = map[string]any{"manifests": manifests}
	}
	return h.patch(ctx, o, map[string]any{"metadata": precondition(o), "status": p}, "status")
}

func (h apiHub) Delete(ctx context.Context, o *workv1.ManifestWork) error {
	return h.works.ManifestWorks(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion},
	})
}

func (h apiHub) patch(ctx context.Context, o *workv1.ManifestWork, patch map[string]any, subresources ...string) (*workv1.ManifestWork, error) {
	b, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode patch of %s/%s: %w", o.Namespace, o.Name, err)
	}
	n, err := h.works.ManifestWorks(o.Namespace).Patch(ctx, o.Name, types.MergePatchType, b,
		metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
	if err != nil {
		return nil, err
	}
	return Trim(n), nil
}

func (h apiHub) Get(ctx context.Context, namespace, name string) (*workv1.ManifestWork, error) {
	o, err := h.works.ManifestWorks(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return Trim(o), nil
}

func (h apiHub) Present(ctx context.Context, namespace string) (core.Present, error) {
	present := core.Present{}
	client := h.meta.Resource(manifestWorks).Namespace(namespace)
	// The request names no resource version, so the answer is the present state, and all pages belong to the same
	// one.
	for o := (metav1.ListOptions{Limit: presentPage}); ; {
		list, err := client.List(ctx, o)
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			present[list.Items[i].UID] = list.Items[i].ResourceVersion
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return present, nil
		}
	}
}

func (h apiHub) Locate(ctx context.Context) (p codec.HubPosition, err error) {
	system, err := h.meta.Resource(namespaces).Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return p, err
	}
	// The request names no resource version, so the answer is the present state.
	list, err := h.works.ManifestWorks(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return p, err
	}
	return codec.HubPosition{UID: string(system.UID), ResourceVersion: list.ResourceVersion}, nil
}

// precondition makes a patch fail with a conflict if the object has changed, or is another object of the same
// name.
func precondition(o *workv1.ManifestWork) map[string]any {
	return map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion}
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// Trim removes fields from o that neither the cluster nor a decision needs, and returns o. A hub with 100,000
// works keeps all of them in memory.
func Trim(o *workv1.ManifestWork) *workv1.ManifestWork {
	if o.ManagedFields != nil {
		o.ManagedFields = nil
	}
	if _, has := o.Annotations[corev1.LastAppliedConfigAnnotation]; has {
		delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
		if len(o.Annotations) == 0 {
			o.Annotations = nil
		}
	}
	return o
}
