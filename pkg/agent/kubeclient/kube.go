package kubeclient

import (
	"cmp"
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

// Kube is a Client of a kube-apiserver. It has no typed clients and no caches of objects, so that it needs
// little memory. Kinds are cached per requested group and version.
type Kube struct {
	objects  dynamic.Interface
	others   dynamic.Interface // for requests as another user, see impersonation
	metadata metadata.Interface
	kinds    *discoveryCache
	answers  *answering
	// dryRun: writes are dry-run as user; see As.
	dryRun []string
	user   string
}

// KubeConfig configures a Kube.
type KubeConfig struct {
	// REST has the address and credentials of the cluster; it is copied.
	REST *rest.Config
	// QPS and Burst limit the rate of all requests together, except watches. QPS 0: the rate is not limited.
	QPS   float32
	Burst int
	// InFlight limits the requests in flight, except watches. 0 means DefaultInFlight. The requests of one verb and
	// resource are fewer while the server rejects them for its load or does not answer them in time.
	InFlight int
}

// NewKube returns a client without sending a request.
func NewKube(c KubeConfig) (*Kube, error) {
	if c.QPS < 0 || c.QPS > 0 && c.Burst <= 0 || c.InFlight < 0 {
		return nil, fmt.Errorf("kube api qps %v, burst %d and %d requests in flight: qps must be positive with a positive burst, or 0 for no limit; requests in flight must be positive, or 0 for the default", c.QPS, c.Burst, c.InFlight)
	}
	cfg := rest.CopyConfig(c.REST)
	cfg.UserAgent = UserAgent
	if cfg.QPS = -1; c.QPS > 0 { // -1: client-go does not limit the rate
		cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	}
	cfg.WarningHandler, cfg.WarningHandlerWithContext = nil, warningHandler{}
	answers := &answering{now: time.Now}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { answers.next = next; return answers })
	cfg.Wrap(newBreaker(cmp.Or(c.InFlight, DefaultInFlight)))
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

// Answering returns nil while the kube-apiserver answers requests. Otherwise the error has the start of the
// outage and the last error.
func (k *Kube) Answering() error { return k.answers.err() }

// Metadata returns a client that lists and watches the metadata of objects. It shares connections and limits
// with k.
func (k *Kube) Metadata() metadata.Interface { return k.metadata }

// Resolve implements Mapper.
func (k *Kube) Resolve(ctx context.Context, gvk schema.GroupVersionKind) (Resource, error) {
	return k.kinds.resolve(ctx, gvk)
}

// Locate implements Mapper.
func (k *Kube) Locate(ctx context.Context, gr schema.GroupResource) (Resource, error) {
	return k.kinds.locate(ctx, gr)
}

// ForgetKinds drops the cached kinds, so that they are read again.
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

// Abandon deletes the object if it still has this uid, and orphans its dependents: the cluster first removes
// their owner references.
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

// served returns the error of a request in readable form. It distinguishes an absent object from an absent
// resource; the server answers both with 404. If the answer does not name the absent object, the server's list
// of resources decides.
func (k *Kube) served(ctx context.Context, gvr schema.GroupVersionResource, err error) error {
	var slow *SlowError
	switch {
	case errors.As(err, &slow):
		return slow // without the address of the cluster
	case err == nil || !apierrors.IsNotFound(err):
		return readable(unreached(ctx, err))
	}
	var s apierrors.APIStatus
	if errors.As(err, &s) && !unnamed(s.Status().Details) {
		return err
	}
	v, readErr := k.kinds.read(ctx, gvr.GroupVersion())
	if readErr != nil {
		return fmt.Errorf("%w; it is unknown whether the server serves %s: %w", errUnclear, gvr.GroupResource(), readErr)
	}
	for _, r := range v.byKind {
		if r.Resource == gvr.Resource {
			return err
		}
	}
	return &NotServedError{Resource: gvr}
}

// unreached adds the next step to the error of a request without an answer, and removes the URL.
func unreached(ctx context.Context, err error) error {
	var unsent *url.Error
	if !errors.As(err, &unsent) || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("the kube-apiserver of the cluster cannot be reached: %w; check that it runs, and that its agent reaches it", unsent.Err)
}

var errUnclear = errors.New("the server does not name the missing object")

func unnamed(d *metav1.StatusDetails) bool {
	if d == nil || d.Name == "" {
		return true
	}
	// client-go sets the name of the request if the server sent none.
	return slices.ContainsFunc(d.Causes, func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeUnexpectedServerResponse })
}
