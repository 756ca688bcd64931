package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Kube is a Client on a kube-apiserver. It carries no typed clients and no
// caches of objects, so that it costs little memory; what it learns about
// kinds is kept per group and version that somebody asked for.
type Kube struct {
	objects  dynamic.Interface
	others   dynamic.Interface // in the name of somebody else, see impersonation
	metadata metadata.Interface
	kinds    *discoveryCache
	answers  *answering
	// dryRun: writes are only gone through, by user; see As.
	dryRun []string
	user   string
}

// KubeConfig is what NewKube needs.
type KubeConfig struct {
	// REST says where the cluster is and who we are; it is copied.
	REST *rest.Config
	// QPS and Burst limit requests other than watches, over all calls together.
	QPS   float32
	Burst int
}

// NewKube returns a client; no request is made.
func NewKube(c KubeConfig) (*Kube, error) {
	if c.QPS <= 0 || c.Burst <= 0 {
		return nil, fmt.Errorf("kube api qps and burst must be positive, got %v and %d", c.QPS, c.Burst)
	}
	cfg := rest.CopyConfig(c.REST)
	cfg.UserAgent = UserAgent
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	cfg.WarningHandler, cfg.WarningHandlerWithContext = nil, warningHandler{}
	answers := &answering{now: time.Now}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { answers.next = next; return answers })
	cfg.Wrap(newBreaker)
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connection to the cluster: %w", err)
	}
	objects, err := dynamic.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("connection to the cluster: %w", err)
	}
	others, err := dynamic.NewForConfigAndClient(cfg, impersonation{hc.Transport}.client(hc))
	if err != nil {
		return nil, fmt.Errorf("connection to the cluster: %w", err)
	}
	meta, err := metadata.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("connection to the cluster: %w", err)
	}
	kinds, err := newKinds(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("connection to the cluster: %w", err)
	}
	return &Kube{objects: objects, others: others, metadata: meta, kinds: kinds, answers: answers}, nil
}

// Answering returns nil while the kube-apiserver answers the requests that are made, else since
// when it does not, and the last error.
func (k *Kube) Answering() error { return k.answers.err() }

// Metadata returns a client that lists and watches objects without their
// content. It shares connections and limits with k.
func (k *Kube) Metadata() metadata.Interface { return k.metadata }

// Resolve implements Mapper.
func (k *Kube) Resolve(ctx context.Context, gvk schema.GroupVersionKind) (Resource, error) {
	return k.kinds.resolve(ctx, gvk)
}

// Locate implements Mapper.
func (k *Kube) Locate(ctx context.Context, gr schema.GroupResource) (Resource, error) {
	return k.kinds.locate(ctx, gr)
}

// ForgetKinds has the cluster asked again which kinds there are.
func (k *Kube) ForgetKinds() { k.kinds.forget() }

// Get implements Objects.
func (k *Kube) Get(ctx context.Context, ref Ref) (*unstructured.Unstructured, error) {
	o, err := k.at(ref.GroupVersionResource, ref.Namespace).Get(k.by(ctx), ref.Name, metav1.GetOptions{})
	return o, k.served(ctx, ref.GroupVersionResource, err)
}

// Create implements Objects.
func (k *Kube) Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	o, err := k.at(gvr, obj.GetNamespace()).Create(k.by(ctx), obj, metav1.CreateOptions{DryRun: k.dryRun})
	return o, k.served(ctx, gvr, err)
}

// Update implements Objects.
func (k *Kube) Update(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	o, err := k.at(gvr, obj.GetNamespace()).Update(k.by(ctx), obj, metav1.UpdateOptions{DryRun: k.dryRun})
	return o, k.served(ctx, gvr, err)
}

// Patch implements Objects.
func (k *Kube) Patch(ctx context.Context, ref Ref, patch []byte, subresource string) (*unstructured.Unstructured, error) {
	var sub []string
	if subresource != "" {
		sub = []string{subresource}
	}
	o, err := k.at(ref.GroupVersionResource, ref.Namespace).Patch(k.by(ctx), ref.Name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: k.dryRun}, sub...)
	return o, k.served(ctx, ref.GroupVersionResource, err)
}

// Delete implements Objects.
func (k *Kube) Delete(ctx context.Context, ref Ref, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := k.at(ref.GroupVersionResource, ref.Namespace).Delete(k.by(ctx), ref.Name, metav1.DeleteOptions{
		DryRun: k.dryRun, Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background,
	})
	return k.served(ctx, ref.GroupVersionResource, err)
}

// Abandon removes the object, if it still has this uid, and leaves what it owns
// where it is: the cluster takes the owner references off first.
func (k *Kube) Abandon(ctx context.Context, ref Ref, uid types.UID) error {
	orphan := metav1.DeletePropagationOrphan
	err := k.at(ref.GroupVersionResource, ref.Namespace).Delete(ctx, ref.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &orphan,
	})
	return k.served(ctx, ref.GroupVersionResource, err)
}

func (k *Kube) at(gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	return within(k.objects, gvr, namespace)
}

func within(c dynamic.Interface, gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return c.Resource(gvr)
	}
	return c.Resource(gvr).Namespace(namespace)
}

// served is the error of a request, as people can read it. It tells "no such object"
// from "no such resource". The server answers both with 404. It names the object that
// it misses; where it does not, its list of resources decides.
func (k *Kube) served(ctx context.Context, gvr schema.GroupVersionResource, err error) error {
	var slow *SlowError
	switch {
	case errors.As(err, &slow):
		return slow // without the address of the cluster around it
	case err == nil || !apierrors.IsNotFound(err):
		return readable(unreached(ctx, err))
	}
	var s apierrors.APIStatus
	if errors.As(err, &s) && !unnamed(s.Status().Details) {
		return err
	}
	v, readErr := k.kinds.read(ctx, gvr.GroupVersion())
	if readErr != nil {
		return fmt.Errorf("%w; and whether the server serves %s could not be found out: %w", errUnclear, gvr.GroupResource(), readErr)
	}
	for _, r := range v.byKind {
		if r.Resource == gvr.Resource {
			return err
		}
	}
	return &NotServedError{Resource: gvr}
}

// unreached says of a request without an answer what a person can do. Its URL says nothing more.
func unreached(ctx context.Context, err error) error {
	var unsent *url.Error
	if !errors.As(err, &unsent) || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("the kube-apiserver of the cluster cannot be reached: %w; check that it runs, and that its agent reaches it", unsent.Err)
}

var errUnclear = errors.New("the server does not say what it misses")

func unnamed(d *metav1.StatusDetails) bool {
	if d == nil || d.Name == "" {
		return true
	}
	// client-go fills in the name of the request where the server said nothing.
	return slices.ContainsFunc(d.Causes, func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeUnexpectedServerResponse })
}
