// Package clustertest is an in-memory cluster for tests and simulations, and the test suite for every
// [kubeclient.Client].
//
// [Fake] behaves like a kube-apiserver as far as the agent can observe it. It has resourceVersions and
// conflicts, uids, generations, finalizers and terminating objects, namespaces, defaults, and status
// subresources. It also has custom resources that appear with their definition, roles for access reviews, and,
// on request, garbage collection. It is deterministic and starts no goroutine.
package clustertest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Call is one request that a Fake received.
type Call struct {
	// Verb is resolve, locate, get, list, create, update, patch, "patch status", apply or delete. A dry run has the
	// prefix "rehearse ". An access review is "review" with the reviewed verb.
	Verb string
	// Ref is the object. For resolve only the group, the version and the kind (as Resource) are set.
	Ref kubeclient.Ref
}

// Write reports whether the call changes the cluster.
func (c Call) Write() bool {
	return !slices.Contains([]string{"resolve", "locate", "get", "list"}, c.Verb) && !strings.HasPrefix(c.Verb, dryRunVerb) && !strings.HasPrefix(c.Verb, reviewVerb)
}

// String returns "verb ref".
func (c Call) String() string { return c.Verb + " " + c.Ref.String() }

// Fake is an in-memory cluster. Its zero value is not usable; see New. Methods
// may be called concurrently.
type Fake struct {
	// Now is the clock of creation and deletion timestamps.
	Now func() time.Time
	// Refuse, if set, is called before every call; its error is the answer. It is called with the fake locked and
	// must not call it.
	Refuse func(Call) error
	// Changed, if set, is called for every object that was written or removed (object nil). It is called with the
	// fake locked and must not call it.
	Changed func(ref kubeclient.Ref, object *unstructured.Unstructured)

	// Prune, if set, removes the fields that the cluster does not keep from an object that is created or updated.
	// It returns the fields that the answer reports as unknown. It is called with the fake locked and must not call
	// it.
	Prune func(o *unstructured.Unstructured) (unknown []string)

	mu      sync.Mutex
	kinds   map[schema.GroupVersionKind]kind
	objects map[key]*unstructured.Unstructured
	counter int64
	calls   []Call
	history []change
	watches []*stream
}

// key names an object in all versions.
type key struct {
	schema.GroupResource
	namespace, name string
}

func keyOf(r kubeclient.Ref) key { return key{r.GroupResource(), r.Namespace, r.Name} }

var _ kubeclient.Client = (*Fake)(nil)

// New returns a cluster with the built-in kinds, the definition of
// AppliedManifestWork, and the namespaces default and kube-system.
func New() *Fake {
	f := &Fake{Now: time.Now, kinds: builtin(), objects: map[key]*unstructured.Unstructured{}}
	for _, name := range []string{"default", "kube-system"} {
		f.Put(Object("v1", "Namespace", "", name))
	}
	return f
}

// Object returns an object of the given type and name with the given top-level fields (alternating names and
// values).
func Object(apiVersion, kind, namespace, name string, fields ...any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
	if namespace != "" {
		o.SetNamespace(namespace)
	}
	for i := 0; i < len(fields); i += 2 {
		o.Object[fields[i].(string)] = fields[i+1]
	}
	return o
}

// Put creates or replaces an object as another client of the cluster, and returns it. It panics if the cluster
// refuses.
func (f *Fake) Put(obj *unstructured.Unstructured) *unstructured.Unstructured {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.kinds[obj.GroupVersionKind()]
	if !ok {
		panic("no kind " + obj.GroupVersionKind().String())
	}
	ref := k.ref(obj)
	var err error
	if old := f.objects[keyOf(ref)]; old == nil {
		obj, err = f.create(ref, k, obj)
	} else {
		obj = obj.DeepCopy()
		obj.SetResourceVersion("")
		obj, err = f.replace(ref, k, old, f.account(k, old, obj, OtherManager))
	}
	if err != nil {
		panic(err)
	}
	return obj
}

// Edit changes an object as another client; false if it does not exist.
func (f *Fake) Edit(ref kubeclient.Ref, change func(*unstructured.Unstructured)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.objects[keyOf(ref)]
	if old == nil {
		return false
	}
	k, _ := f.kindOf(ref)
	next := old.DeepCopy()
	change(next)
	if _, err := f.replace(ref, k, old, f.account(k, old, next, OtherManager)); err != nil {
		panic(err)
	}
	return true
}

// Remove deletes an object as another client; finalizers keep it.
func (f *Fake) Remove(ref kubeclient.Ref) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.objects[keyOf(ref)]; old != nil {
		f.remove(ref, old)
	}
}

// Look returns an object without recording a call; nil if it does not exist.
func (f *Fake) Look(ref kubeclient.Ref) *unstructured.Unstructured {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.objects[keyOf(ref)]; o != nil {
		return o.DeepCopy()
	}
	return nil
}

// Refs lists every object, sorted by its text.
func (f *Fake) Refs() []kubeclient.Ref {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refs()
}

// TakeCalls returns and drops the calls since the last TakeCalls.
func (f *Fake) TakeCalls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls
	f.calls = nil
	return c
}

// Ref names an object of a kind of the cluster; it panics for other kinds.
func (f *Fake) Ref(apiVersion, kind, namespace, name string) kubeclient.Ref {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.kinds[schema.FromAPIVersionAndKind(apiVersion, kind)]
	if !ok {
		panic("no kind " + kind + " in " + apiVersion)
	}
	return kubeclient.Ref{GroupVersionResource: k.GroupVersionResource, Namespace: namespace, Name: name}
}

// CollectGarbage removes objects whose owners are all gone, like the garbage collector, until none is left.
func (f *Fake) CollectGarbage() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for again := true; again; {
		again = false
		uids := map[types.UID]bool{}
		for _, o := range f.objects {
			uids[o.GetUID()] = true
		}
		for _, ref := range f.refs() {
			o := f.objects[keyOf(ref)]
			if o == nil { // removed with its namespace
				continue
			}
			owners := o.GetOwnerReferences()
			if len(owners) == 0 || o.GetDeletionTimestamp() != nil || slices.ContainsFunc(owners, func(r metav1.OwnerReference) bool { return uids[r.UID] }) {
				continue
			}
			f.remove(ref, o)
			again = true
		}
	}
}

func (f *Fake) enter(c Call) error {
	f.calls = append(f.calls, c)
	if f.Refuse != nil {
		return f.Refuse(c)
	}
	return nil
}

func (f *Fake) kindOf(ref kubeclient.Ref) (kind, error) {
	for _, k := range f.kinds {
		if k.GroupVersionResource == ref.GroupVersionResource {
			return k, nil
		}
	}
	return kind{}, &kubeclient.NotServedError{Resource: ref.GroupVersionResource}
}

func (f *Fake) lookup(ref kubeclient.Ref) (kind, *unstructured.Unstructured, error) {
	k, err := f.kindOf(ref)
	if err != nil {
		return k, nil, err
	}
	o := f.objects[keyOf(ref)]
	if o == nil {
		return k, nil, apierrors.NewNotFound(ref.GroupResource(), ref.Name)
	}
	return k, o, nil
}

// Resolve implements kubeclient.Mapper.
func (f *Fake) Resolve(_ context.Context, gvk schema.GroupVersionKind) (kubeclient.Resource, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter(Call{"resolve", kubeclient.Ref{GroupVersionResource: gvk.GroupVersion().WithResource(gvk.Kind)}}); err != nil {
		return kubeclient.Resource{}, err
	}
	k, ok := f.kinds[gvk]
	if !ok {
		return kubeclient.Resource{}, &kubeclient.NoKindError{Kind: gvk}
	}
	return k.Resource, nil
}

// Locate implements kubeclient.Mapper.
func (f *Fake) Locate(_ context.Context, gr schema.GroupResource) (kubeclient.Resource, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter(Call{"locate", kubeclient.Ref{GroupVersionResource: gr.WithVersion("")}}); err != nil {
		return kubeclient.Resource{}, err
	}
	var found kubeclient.Resource
	for _, k := range f.kinds {
		if k.GroupResource() == gr && (found.Version == "" || k.Version < found.Version) {
			found = k.Resource
		}
	}
	if found.Version == "" {
		return found, &kubeclient.NotServedError{Resource: gr.WithVersion("")}
	}
	return found, nil
}

// Get implements kubeclient.Objects.
func (f *Fake) Get(_ context.Context, ref kubeclient.Ref) (*unstructured.Unstructured, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter(Call{"get", ref}); err != nil {
		return nil, err
	}
	_, o, err := f.lookup(ref)
	if err != nil {
		return nil, err
	}
	o = o.DeepCopy()
	o.SetAPIVersion(ref.GroupVersion().String())
	return o, nil
}

// Create implements kubeclient.Objects.
func (f *Fake) Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if gvr == accessReviews {
		return f.review(obj)
	}
	ref := kubeclient.Ref{GroupVersionResource: gvr, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if err := f.enter(Call{"create", ref}); err != nil {
		return nil, err
	}
	k, err := f.kindOf(ref)
	if err != nil {
		return nil, err
	}
	return f.create(ref, k, f.prune(ctx, obj))
}

func (f *Fake) prune(ctx context.Context, obj *unstructured.Unstructured) *unstructured.Unstructured {
	obj = obj.DeepCopy()
	if f.Prune == nil {
		return obj
	}
	for _, path := range f.Prune(obj) {
		kubeclient.Warn(ctx, fmt.Sprintf("unknown field %q", path))
	}
	return obj
}

// Update implements kubeclient.Objects.
func (f *Fake) Update(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ref := kubeclient.Ref{GroupVersionResource: gvr, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if err := f.enter(Call{"update", ref}); err != nil {
		return nil, err
	}
	k, old, err := f.lookup(ref)
	if err != nil {
		return nil, err
	}
	return f.replace(ref, k, old, f.account(k, old, f.prune(ctx, obj), kubeclient.UserAgent))
}

// Patch implements kubeclient.Objects.
func (f *Fake) Patch(_ context.Context, ref kubeclient.Ref, patch []byte, subresource string) (*unstructured.Unstructured, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	verb := "patch"
	if subresource != "" {
		verb += " " + subresource
	}
	if err := f.enter(Call{verb, ref}); err != nil {
		return nil, err
	}
	k, old, err := f.lookup(ref)
	if err != nil {
		return nil, err
	}
	var p map[string]any
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	next := old.DeepCopy()
	merge(next.Object, p)
	if next.GetResourceVersion() == old.GetResourceVersion() && next.GetUID() != old.GetUID() {
		return nil, invalid(ref, old, "metadata.uid: Invalid value: field is immutable")
	}
	if subresource == "status" {
		return f.replaceStatus(ref, old, next)
	}
	return f.replace(ref, k, old, f.account(k, old, next, kubeclient.UserAgent))
}

// Delete implements kubeclient.Objects.
func (f *Fake) Delete(_ context.Context, ref kubeclient.Ref, uid types.UID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter(Call{"delete", ref}); err != nil {
		return err
	}
	_, old, err := f.lookup(ref)
	if err != nil {
		return err
	}
	if old.GetUID() != uid {
		return apierrors.NewConflict(ref.GroupResource(), ref.Name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s)", uid, old.GetUID()))
	}
	f.remove(ref, old)
	return nil
}

const dryRunVerb = "rehearse "

// DryRunOwn implements kubeclient.OwnDryRunner. Only Refuse can reject the write.
func (f *Fake) DryRunOwn(_ context.Context, w kubeclient.Write) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	verb := dryRunVerb + w.Verb
	if w.Subresource != "" {
		verb += " " + w.Subresource
	}
	if err := f.enter(Call{verb, w.Ref}); err != nil {
		return err
	}
	_, o, err := f.lookup(w.Ref)
	if w.Verb == kubeclient.Create && o == nil {
		return nil
	}
	return err
}

// merge applies a JSON merge patch.
func merge(into, patch map[string]any) {
	for name, v := range patch {
		sub, isMap := v.(map[string]any)
		switch old, wasMap := into[name].(map[string]any); {
		case v == nil:
			delete(into, name)
		case isMap && wasMap:
			merge(old, sub)
		case isMap:
			fresh := map[string]any{}
			merge(fresh, sub)
			into[name] = fresh
		default:
			into[name] = runtime.DeepCopyJSONValue(normal(v))
		}
	}
}

// normal converts numbers of encoding/json to the types of the API machinery.
func normal(v any) any {
	switch v := v.(type) {
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case map[string]any:
		for i := range v {
			v[i] = normal(v[i])
		}
	}
	return v
}

// same compares everything except metadata and status.
func same(a, b *unstructured.Unstructured) bool {
	return reflect.DeepEqual(content(a), content(b))
}

func content(o *unstructured.Unstructured) map[string]any {
	c := maps.Clone(o.Object)
	delete(c, "metadata")
	delete(c, "status")
	return c
}
