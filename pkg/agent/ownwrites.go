package agent

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// ownWrites passes the writes of one reconciliation to the Tracker, so that their watch events do not count as
// changes by others.
type ownWrites struct {
	kubeclient.Client
	tracker Tracker
	key     string
}

// withOwn returns tools that register their writes as those of a key.
func (t *tools) withOwn(c *CoreConfig, key string) *tools {
	own := ownWrites{Client: c.Client, tracker: c.Tracker, key: key}
	mine := &tools{store: t.store, remover: t.remover, applier: t.applier, lastRecord: t.lastRecord}
	mine.store.Objects, mine.remover.Client, mine.applier.Objects = own, own, own
	return mine
}

func (w ownWrites) note(gvr schema.GroupVersionResource, o *unstructured.Unstructured, err error) (*unstructured.Unstructured, error) {
	if err == nil {
		ref := kubeclient.Ref{GroupVersionResource: gvr, Namespace: o.GetNamespace(), Name: o.GetName()}
		w.tracker.RecordWrite(w.key, ref, drift.ExactOf(o))
	}
	return o, err
}

// Create implements kubeclient.Objects.
func (w ownWrites) Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	o, err := w.Client.Create(ctx, gvr, obj)
	return w.note(gvr, o, err)
}

// Update implements kubeclient.Objects.
func (w ownWrites) Update(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	o, err := w.Client.Update(ctx, gvr, obj)
	return w.note(gvr, o, err)
}

// Patch implements kubeclient.Objects.
func (w ownWrites) Patch(ctx context.Context, ref kubeclient.Ref, patch []byte, subresource string) (*unstructured.Unstructured, error) {
	o, err := w.Client.Patch(ctx, ref, patch, subresource)
	return w.note(ref.GroupVersionResource, o, err)
}

// ServerSideApply implements kubeclient.Objects.
func (w ownWrites) ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured, by kubeclient.FieldManager) (*unstructured.Unstructured, error) {
	o, err := w.Client.ServerSideApply(ctx, gvr, obj, by)
	return w.note(gvr, o, err)
}
