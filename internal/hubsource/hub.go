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

// presentPage is how many works are asked for at once.
const presentPage = 500

var manifestWorks = schema.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "manifestworks"}

// Hub is what the source reads and writes on the hub besides its informers.
// Errors are those of the Kubernetes API; every write is refused with a
// conflict when the object has another resource version or uid than o. What is
// returned is trimmed like the informer's objects and belongs to the caller.
type Hub interface {
	AddFinalizer(ctx context.Context, o *workv1.ManifestWork) (*workv1.ManifestWork, error)
	RemoveFinalizer(ctx context.Context, o *workv1.ManifestWork) (*workv1.ManifestWork, error)
	// PatchStatus gives o this status.
	PatchStatus(ctx context.Context, o *workv1.ManifestWork, status workv1.ManifestWorkStatus) (*workv1.ManifestWork, error)
	// Delete deletes o as its user would.
	Delete(ctx context.Context, o *workv1.ManifestWork) error
	// Get reads past every cache.
	Get(ctx context.Context, namespace, name string) (*workv1.ManifestWork, error)
	// Present returns the resource versions of the works of a namespace, at one
	// moment, past every cache.
	Present(ctx context.Context, namespace string) (core.Present, error)
	// Locate returns which hub this is and how far its history has come, past
	// every cache.
	Locate(ctx context.Context) (codec.HubPosition, error)
}

// apiHub is the hub behind clientsets.
type apiHub struct {
	works workclient.ManifestWorksGetter
	meta  metadata.Interface
}

// NewHub returns the hub behind a clientset. meta is for metadata of namespaces.
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
			// The schema wants a list; some agents send none as null.
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
	// No resource version is asked for, so the answer is the present state, and all
	// pages are of the first one's.
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
	// No resource version is asked for, so the answer is the present state.
	list, err := h.works.ManifestWorks(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return p, err
	}
	return codec.HubPosition{UID: string(system.UID), ResourceVersion: list.ResourceVersion}, nil
}

// precondition makes a patch fail with a conflict on any other state of the
// object, and on another object of the same name.
func precondition(o *workv1.ManifestWork) map[string]any {
	return map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion}
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// Trim drops from o, and returns it, what neither the cluster nor a decision
// needs: a hub with 100,000 works keeps them all in memory.
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
