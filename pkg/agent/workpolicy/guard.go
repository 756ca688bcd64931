package workpolicy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Guard refuses works of one hub what they may not have. Its methods may be called
// concurrently; nil refuses nothing.
type Guard struct {
	// Own is what the agent knows of itself, Hub the identity of its hub.
	Own Own
	Hub string
	// Objects are those of the cluster.
	Objects interface {
		Get(ctx context.Context, ref kubeclient.Ref) (*unstructured.Unstructured, error)
	}

	rules atomic.Pointer[Rules]
}

// Follow has the guard follow what the owner of the cluster says of the hub, from now on.
func (g *Guard) Follow(r Rules) { g.rules.Store(&r) }

// Manifest returns why no work may have an object, judging by its name and by the manifest that
// is to be applied, which may be nil: a *RefusedError, or nil.
func (g *Guard) Manifest(id workv1.ResourceIdentifier, manifest *unstructured.Unstructured) error {
	switch {
	case g == nil:
		return nil
	case g.Own.named(id), manifest != nil && marked(manifest):
		return &RefusedError{Object: id}
	}
	if r := g.rules.Load(); r != nil && !r.allow(id) {
		return &RefusedError{Object: id, Hub: g.Hub}
	}
	return nil
}

// Object returns why no work may have an object, judging also by what there is on the cluster: a
// *RefusedError, or another error if that cannot be found out.
func (g *Guard) Object(ctx context.Context, id workv1.ResourceIdentifier, live *unstructured.Unstructured) error {
	if g == nil {
		return nil
	}
	if err := g.Manifest(id, live); err != nil || !isNamespace(id) {
		return err
	}
	at := kubeclient.Ref{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Namespace: id.Name, Name: ClaimsName}
	_, err := g.Objects.Get(ctx, at)
	switch {
	case err == nil:
		return &RefusedError{Object: id}
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // who may not look there finds no agent there
		return nil
	}
	return fmt.Errorf("find out whether an agent lives in the namespace: %w", err)
}

// Refused returns the refusal in an error, nil if there is none.
func Refused(err error) *RefusedError {
	var refused *RefusedError
	errors.As(err, &refused)
	return refused
}
