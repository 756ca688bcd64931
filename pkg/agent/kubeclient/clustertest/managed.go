package clustertest

import (
	"context"
	"reflect"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// The code of the kube-apiserver tracks field managers, from the first server-side apply of an object on.
// Earlier fields belong to the manager "before-first-apply", as on a real server.

// OtherManager is the field manager of Put and Edit.
const OtherManager = "others"

// mergeSchema has the part of the schemas that matters here: the lists that are merged by a key. The rest is
// deduced: maps are merged, lists are atomic.
const mergeSchema = `types:
- name: atomic
  scalar: untyped
  list: {elementType: {namedType: atomic}, elementRelationship: atomic}
  map: {elementType: {namedType: atomic}, elementRelationship: atomic}
- name: deduced
  scalar: untyped
  list: {elementType: {namedType: atomic}, elementRelationship: atomic}
  map: {elementType: {namedType: deduced}, elementRelationship: separable}
- name: object
  map:
    fields:
    - {name: metadata, type: {namedType: metadata}}
    - {name: spec, type: {namedType: spec}}
    elementType: {namedType: deduced}
- name: metadata
  map:
    fields:
    - {name: ownerReferences, type: {list: {elementType: {namedType: deduced}, elementRelationship: associative, keys: [uid]}}}
    - {name: finalizers, type: {list: {elementType: {scalar: string}, elementRelationship: associative}}}
    elementType: {namedType: deduced}
- name: spec
  map:
    fields:
    - {name: selector, type: {namedType: atomic}}
    - {name: template, type: {map: {fields: [{name: spec, type: {namedType: podSpec}}], elementType: {namedType: deduced}}}}
    elementType: {namedType: deduced}
- name: podSpec
  map:
    fields:
    - {name: containers, type: {list: {elementType: {namedType: container}, elementRelationship: associative, keys: [name]}}}
    elementType: {namedType: deduced}
- name: container
  map:
    fields:
    - {name: env, type: {list: {elementType: {namedType: deduced}, elementRelationship: associative, keys: [name]}}}
    elementType: {namedType: deduced}
`

// merger is the parsed schema with the other interfaces that the field manager needs.
type merger struct{ typed.ParseableType }

// parseMerger is called for the first applied object.
var parseMerger = sync.OnceValue(func() merger {
	p, err := typed.NewParser(mergeSchema)
	if err != nil {
		panic(err)
	}
	return merger{p.Type("object")}
})

// ObjectToTyped implements managedfields.TypeConverter.
func (m merger) ObjectToTyped(o runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return m.FromUnstructured(o.(*unstructured.Unstructured).Object, opts...)
}

// TypedToObject implements managedfields.TypeConverter.
func (m merger) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	return &unstructured.Unstructured{Object: v.AsValue().Unstructured().(map[string]any)}, nil
}

// Convert implements runtime.ObjectConvertor.
func (m merger) Convert(_, _, _ any) error { panic("not used by the bookkeeping of managed fields") }

// ConvertToVersion implements runtime.ObjectConvertor: versions of a kind differ only in their name.
func (m merger) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	o := in.(*unstructured.Unstructured)
	gvk, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{o.GroupVersionKind()})
	if !ok || gvk == o.GroupVersionKind() {
		return in, nil
	}
	o = o.DeepCopy()
	o.SetGroupVersionKind(gvk)
	return o, nil
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (m merger) ConvertFieldLabel(schema.GroupVersionKind, string, string) (string, string, error) {
	panic("not used by the bookkeeping of managed fields")
}

// Default implements runtime.ObjectDefaulter; see store.
func (m merger) Default(runtime.Object) {}

// New implements runtime.ObjectCreater.
func (m merger) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(gvk)
	return o, nil
}

// bookkeeper returns the field manager of a kind.
func bookkeeper(k kind) *managedfields.FieldManager {
	gv := k.GroupVersion()
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if k.hasStatus {
		reset = map[fieldpath.APIVersion]fieldpath.Filter{
			fieldpath.APIVersion(gv.String()): fieldpath.NewExcludeSetFilter(fieldpath.NewSet(fieldpath.MakePathOrDie("status"))),
		}
	}
	m := parseMerger()
	b, err := managedfields.NewDefaultFieldManager(m, m, m, m, gv.WithKind(k.Kind), gv, "", reset)
	if err != nil {
		panic(err)
	}
	return b
}

// ServerSideApply implements kubeclient.Objects.
func (f *Fake) ServerSideApply(_ context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured, by kubeclient.FieldManager) (*unstructured.Unstructured, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.apply(gvr, obj, by, Call{"apply", kubeclient.Ref{GroupVersionResource: gvr, Namespace: obj.GetNamespace(), Name: obj.GetName()}})
}

// Apply applies an object as another client of the cluster; the error is the answer.
func (f *Fake) Apply(obj *unstructured.Unstructured, by kubeclient.FieldManager) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.kinds[obj.GroupVersionKind()]
	if !ok {
		panic("no kind " + obj.GroupVersionKind().String())
	}
	_, err := f.apply(k.GroupVersionResource, obj, by, Call{})
	return err
}

// apply executes a server-side apply; the zero Call is not recorded.
func (f *Fake) apply(gvr schema.GroupVersionResource, obj *unstructured.Unstructured, by kubeclient.FieldManager, c Call) (*unstructured.Unstructured, error) {
	ref := kubeclient.Ref{GroupVersionResource: gvr, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if c != (Call{}) {
		if err := f.enter(c); err != nil {
			return nil, err
		}
	}
	k, err := f.kindOf(ref)
	if err != nil {
		return nil, err
	}
	if by.Name == "" {
		return nil, apierrors.NewBadRequest("fieldManager is required for apply patch")
	}
	old := f.objects[keyOf(ref)]
	live := old
	if old == nil {
		if err := mustExist(ref, obj); err != nil {
			return nil, err
		}
		live = Object(gvr.GroupVersion().String(), k.Kind, ref.Namespace, ref.Name)
	}
	merged, err := bookkeeper(k).Apply(live.DeepCopy(), obj.DeepCopy(), by.Name, by.Force)
	if err != nil {
		return nil, err
	}
	next := merged.(*unstructured.Unstructured)
	f.stamp(old, next)
	if old == nil {
		next.SetResourceVersion("") // a resourceVersion is a precondition only if the object exists
		return f.create(ref, k, next)
	}
	return f.replace(ref, k, old, next)
}

// mustExist rejects the creation of an object that was expected to exist.
func mustExist(ref kubeclient.Ref, obj *unstructured.Unstructured) error {
	if obj.GetUID() == "" {
		return nil
	}
	return apierrors.NewConflict(ref.GroupResource(), ref.Name, errGone)
}

// account records the fields that a write other than an apply changed. Objects that were never applied have no
// managedFields.
func (f *Fake) account(k kind, old, next *unstructured.Unstructured, manager string) *unstructured.Unstructured {
	if len(old.GetManagedFields()) == 0 {
		return next
	}
	booked, err := bookkeeper(k).Update(old.DeepCopy(), next, manager)
	if err != nil {
		panic(err)
	}
	o := booked.(*unstructured.Unstructured)
	f.stamp(old, o)
	return o
}

// stamp sets the time of changed managedFields entries to the cluster's clock.
func (f *Fake) stamp(old, next *unstructured.Unstructured) {
	var before []metav1.ManagedFieldsEntry
	if old != nil {
		before = old.GetManagedFields()
	}
	entries := next.GetManagedFields()
	now := metav1.NewTime(f.Now())
	for i := range entries {
		if !slices.ContainsFunc(before, func(e metav1.ManagedFieldsEntry) bool { return reflect.DeepEqual(e, entries[i]) }) {
			entries[i].Time = &now
		}
	}
	next.SetManagedFields(entries)
}

// alike reports whether only times in managedFields differ.
func alike(a, b *unstructured.Unstructured) bool {
	if len(a.GetManagedFields()) == 0 {
		return reflect.DeepEqual(a.Object, b.Object)
	}
	timeless := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		o = o.DeepCopy()
		entries := o.GetManagedFields()
		for i := range entries {
			entries[i].Time = nil
		}
		o.SetManagedFields(entries)
		return o
	}
	return reflect.DeepEqual(timeless(a).Object, timeless(b).Object)
}
