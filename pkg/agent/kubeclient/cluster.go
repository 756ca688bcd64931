// Package kubeclient is the managed cluster as the agent sees it: a handful of
// calls on objects of any kind. [Kube] makes them on a kube-apiserver;
// clustertest has an in-memory cluster that behaves like one, and the suite
// that both must pass.
//
// Errors are those of k8s.io/apimachinery/pkg/api/errors, with two additions:
// a kind or resource that the server does not serve is a [*NoKindError] or a
// [*NotServedError], and never looks like an object that was not found. The
// difference decides whether something may be forgotten.
package kubeclient

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// UserAgent is what every client of the agent calls itself; the server derives
// the manager in managedFields from it.
const UserAgent = "work-agent"

// Resource says where the objects of a kind live.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// Ref names one object in one API version. Namespace is empty for objects of
// the cluster.
type Ref struct {
	schema.GroupVersionResource
	Namespace, Name string
}

// String is for logs and errors.
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

// Client is what the agent needs of a cluster. Its methods may be called
// concurrently. Objects that are passed in are not modified, objects that are
// returned belong to the caller.
type Client interface {
	Mapper
	Objects
	DryRunner
	OwnDryRunner
}

// Mapper knows what the cluster serves.
type Mapper interface {
	// Resolve returns where objects of a kind live. A kind the server does not
	// have is a *NoKindError; the server is asked again, at a bounded rate, each
	// time such a kind is asked for.
	Resolve(ctx context.Context, gvk schema.GroupVersionKind) (Resource, error)
	// Locate returns a version in which the resource is served, the server's
	// preferred one if possible. None is a *NotServedError.
	Locate(ctx context.Context, gr schema.GroupResource) (Resource, error)
}

// Objects reads and writes objects.
type Objects interface {
	Get(ctx context.Context, ref Ref) (*unstructured.Unstructured, error)
	// Create makes obj in its own namespace.
	Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Update replaces the object; a resourceVersion or uid in obj is a
	// condition (Conflict).
	Update(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Patch merges patch (RFC 7396) into the object, or into its status if
	// subresource is "status". A resourceVersion in it is a condition (Conflict),
	// and so is a uid (Invalid).
	Patch(ctx context.Context, ref Ref, patch []byte, subresource string) (*unstructured.Unstructured, error)
	// ServerSideApply makes obj all that by wants of the object with its namespace
	// and name, and makes the object if there is none: fields of by that obj leaves
	// out are removed unless somebody else manages them too, and what others
	// manage stays. A resourceVersion or uid in obj is a condition that the object
	// exists so (Conflict). A field that somebody else manages with another value
	// is a Conflict, too, unless by forces it; see IsFieldConflict. An apply that
	// changes nothing is not written.
	ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured, by FieldManager) (*unstructured.Unstructured, error)
	// Delete removes the object in the background if it still has this uid
	// (Conflict otherwise). It returns when the deletion is accepted; finalizers
	// may keep the object.
	Delete(ctx context.Context, ref Ref, uid types.UID) error
}

// DryRunner asks what would become of a write if another user made it.
type DryRunner interface {
	// As returns objects whose writes the server goes through as the user of that
	// name, without doing them. The error is that of the write; Forbidden also if the
	// agent itself may not impersonate the user. The name must be one that an HTTP
	// header can carry.
	As(user string) Objects
}

// NoVersion is the resourceVersion of no object: an apply that has it makes the
// object, or is a Conflict with the one that there is.
const NoVersion = "1"

// OwnDryRunner asks what would become of a write of the agent itself.
type OwnDryRunner interface {
	// DryRunOwn has the server go through the write, without doing it. The error is that of
	// the write. A webhook that does not support that is BadRequest.
	DryRunOwn(ctx context.Context, w Write) error
}

// NoKindError says that the cluster does not know a kind.
type NoKindError struct{ Kind schema.GroupVersionKind }

// Error begins with the text that users of OCM know, and goes on with the next step.
func (e *NoKindError) Error() string {
	version, kind := e.Kind.ToAPIVersionAndKind()
	text := fmt.Sprintf("the server doesn't have a resource type %q in %s; ", kind, version)
	if strings.Contains(e.Kind.Group, ".") {
		text += "deliver its CustomResourceDefinition with a work, or "
	}
	return text + "correct apiVersion and kind"
}

// NotServedError says that the cluster has no such resource, or not in that
// version.
type NotServedError struct{ Resource schema.GroupVersionResource }

func (e *NotServedError) Error() string {
	r := e.Resource.GroupResource().String()
	if e.Resource.Version != "" {
		r += " in version " + e.Resource.Version
	}
	return "the server does not serve " + r
}
