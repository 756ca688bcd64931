// Package kubeclient is the agent's client of the managed cluster: a few calls for objects of any kind. [Kube]
// sends them to a kube-apiserver. Package clustertest has an in-memory cluster that behaves like one, and the
// test suite that both must pass.
//
// Errors are those of k8s.io/apimachinery/pkg/api/errors, with two additions. A kind or resource that the
// server does not serve is a [*NoKindError] or a [*NotServedError], and never looks like an absent object. The
// difference decides whether an entry may be forgotten.
package kubeclient

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// UserAgent is the user agent of all clients of the agent. The server derives the manager in managedFields from
// it.
const UserAgent = "work-agent"

// Resource is the resource of a kind.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// Ref names one object in one API version. Namespace is empty for cluster-scoped objects.
type Ref struct {
	schema.GroupVersionResource
	Namespace, Name string
}

// String returns a text for logs and errors.
func (r Ref) String() string {
	s := r.Resource
	if r.Group != "" {
		s += "." + r.Group
	}
	if r.Namespace != "" {
		return s + " " + r.Namespace + "/" + r.Name
	}
	return s + " " + r.Name
}

// Client has the calls to a cluster that the agent needs. Its methods may be called concurrently. Arguments are
// not modified; returned objects belong to the caller.
type Client interface {
	Mapper
	Objects
	DryRunner
	OwnDryRunner
}

// Mapper maps kinds to the resources that the cluster serves.
type Mapper interface {
	// Resolve returns the resource of a kind. An unknown kind is a *NoKindError. The server is asked again, at a
	// bounded rate, for each request of an unknown kind.
	Resolve(ctx context.Context, gvk schema.GroupVersionKind) (Resource, error)
	// Locate returns a version in which the resource is served, the server's preferred one if possible. If there is
	// none, the error is a *NotServedError.
	Locate(ctx context.Context, gr schema.GroupResource) (Resource, error)
}

// Objects reads and writes objects.
type Objects interface {
	Get(ctx context.Context, ref Ref) (*unstructured.Unstructured, error)
	// Create creates obj in the namespace of obj.
	Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Update replaces the object. A resourceVersion or uid in obj is a precondition (Conflict).
	Update(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Patch merges patch (RFC 7396) into the object, or into its status if subresource is "status". A
	// resourceVersion in it is a precondition (Conflict), and so is a uid (Invalid).
	Patch(ctx context.Context, ref Ref, patch []byte, subresource string) (*unstructured.Unstructured, error)
	// ServerSideApply applies obj as the complete configuration of manager by, and creates the object if it is
	// absent. Fields of by that obj omits are removed unless another manager owns them too. Fields of other
	// managers stay. A resourceVersion or uid in obj requires that the object exists with it (Conflict). A field
	// that another manager owns with another value is a Conflict too, unless by forces it; see IsFieldConflict. An
	// apply without a change is not written.
	ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured, by FieldManager) (*unstructured.Unstructured, error)
	// Delete deletes the object in the background if it has this uid (Conflict otherwise). It returns when the
	// deletion is accepted; finalizers may keep the object.
	Delete(ctx context.Context, ref Ref, uid types.UID) error
}

// DryRunner dry-runs writes of other users.
type DryRunner interface {
	// As returns objects whose writes the server dry-runs as the user of that name. The error is that of the write.
	// It is Forbidden also if the agent may not impersonate the user. The name must be valid in an HTTP header.
	As(user string) Objects
}

// NoVersion is a resourceVersion that no object has. An apply with it creates the object, or is a Conflict with
// an existing one.
const NoVersion = "1"

// OwnDryRunner dry-runs writes of the agent itself.
type OwnDryRunner interface {
	// DryRunOwn dry-runs the write on the server. The error is that of the write. A webhook without dry-run support
	// causes BadRequest.
	DryRunOwn(ctx context.Context, w Write) error
}

// NoKindError means that the cluster does not serve a kind.
type NoKindError struct{ Kind schema.GroupVersionKind }

// Error starts with the text of OCM's agent, which OCM users know, followed by the next step.
func (e *NoKindError) Error() string {
	version, kind := e.Kind.ToAPIVersionAndKind()
	text := fmt.Sprintf("the server doesn't have a resource type %q in %s; ", kind, version)
	if strings.Contains(e.Kind.Group, ".") {
		text += "deliver its CustomResourceDefinition with a work, or "
	}
	return text + "correct apiVersion and kind"
}

// NotServedError means that the cluster does not serve a resource, or not in that version.
type NotServedError struct{ Resource schema.GroupVersionResource }

// Error names the resource and what makes the cluster serve it.
func (e *NotServedError) Error() string {
	r := e.Resource.GroupResource().String()
	if e.Resource.Version != "" {
		r += " in version " + e.Resource.Version
	}
	return "the server does not serve " + r
}
