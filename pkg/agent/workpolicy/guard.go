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

// Guard rejects forbidden objects of works of one hub. Its methods may be called concurrently; nil rejects
// nothing.
type Guard struct {
	// Agent identifies the agent's own objects; Hub is the identity of its hub.
	Agent Agent
	Hub   string
	// Objects reads the objects of the cluster.
	Objects interface {
		Get(ctx context.Context, ref kubeclient.Ref) (*unstructured.Unstructured, error)
	}

	rules atomic.Pointer[Rules]
}

// Follow makes the guard use the rules of the cluster's owner for the hub, from now on.
func (g *Guard) Follow(r Rules) { g.rules.Store(&r) }

// Manifest returns why no work may have an object, according to its name and to the manifest to apply, which
// may be nil. The result is a *RefusedError, or nil.
func (g *Guard) Manifest(id workv1.ResourceIdentifier, manifest *unstructured.Unstructured) error {
	switch {
	case g == nil:
		return nil
	case g.Agent.named(id), manifest != nil && marked(manifest):
		return &RefusedError{Object: id}
	}
	if r := g.rules.Load(); r != nil && !r.allow(id) {
		return &RefusedError{Object: id, Hub: g.Hub}
	}
	return nil
}

// Object returns why no work may have an object, according to the objects on the cluster too. The result is a
// *RefusedError, or another error if the check failed.
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
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // without the right to read there, the agent finds no agent there
		return nil
	}
	return fmt.Errorf("check whether an agent runs in the namespace: %w", err)
}

// Refused returns the refusal in an error, nil if there is none.
func Refused(err error) *RefusedError {
	var refused *RefusedError
	errors.As(err, &refused)
	return refused
}
