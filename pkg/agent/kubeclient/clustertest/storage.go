package clustertest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// kind is the behavior of objects of one kind.
type kind struct {
	kubeclient.Resource
	// hasStatus: the status is a subresource, and metadata.generation counts changes of the rest.
	hasStatus bool
	// defaults sets the server's defaults.
	defaults func(o *unstructured.Unstructured)
	// immutable rejects updates of immutable fields; nil: there are none.
	immutable immutable
}

func (k kind) ref(o *unstructured.Unstructured) kubeclient.Ref {
	r := kubeclient.Ref{GroupVersionResource: k.GroupVersionResource, Name: o.GetName()}
	if k.Namespaced {
		r.Namespace = o.GetNamespace()
	}
	return r
}

func builtin() map[schema.GroupVersionKind]kind {
	kinds := map[schema.GroupVersionKind]kind{}
	add := func(apiVersion, kindName, resource string, namespaced bool, more kind) {
		gv, err := schema.ParseGroupVersion(apiVersion)
		if err != nil {
			panic(err)
		}
		more.Resource = kubeclient.Resource{GroupVersionResource: gv.WithResource(resource), Kind: kindName, Namespaced: namespaced}
		kinds[gv.WithKind(kindName)] = more
	}
	setDefault := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			if _, found, _ := unstructured.NestedFieldNoCopy(o.Object, path...); !found {
				_ = unstructured.SetNestedField(o.Object, value, path...)
			}
		}
	}
	fixed := func(path ...string) immutable {
		return func(old, next *unstructured.Unstructured) string {
			a, _, _ := unstructured.NestedFieldNoCopy(old.Object, path...)
			b, _, _ := unstructured.NestedFieldNoCopy(next.Object, path...)
			if !reflect.DeepEqual(a, b) {
				return strings.Join(path, ".") + ": Invalid value: field is immutable"
			}
			return ""
		}
	}
	const rbac = "rbac.authorization.k8s.io/v1"
	add("v1", "Namespace", "namespaces", false, kind{})
	add("v1", "ConfigMap", "configmaps", true, kind{})
	add("v1", "Secret", "secrets", true, kind{defaults: setDefault("Opaque", "type"), immutable: secretImmutable})
	add("v1", "ServiceAccount", "serviceaccounts", true, kind{})
	add("v1", "Service", "services", true, kind{defaults: setDefault("ClusterIP", "spec", "type")})
	add("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true, kind{hasStatus: true})
	add("v1", "Pod", "pods", true, kind{hasStatus: true, defaults: setDefault("Always", "spec", "restartPolicy")})
	add("apps/v1", "Deployment", "deployments", true, kind{hasStatus: true, defaults: setDefault(int64(1), "spec", "replicas")})
	add("coordination.k8s.io/v1", "Lease", "leases", true, kind{})
	add("batch/v1", "Job", "jobs", true, kind{hasStatus: true, immutable: fixed("spec", "template")})
	add(rbac, "ClusterRole", "clusterroles", false, kind{})
	add(rbac, "ClusterRoleBinding", "clusterrolebindings", false, kind{defaults: bindingDefaults, immutable: fixed("roleRef")})
	add(rbac, "Role", "roles", true, kind{})
	add(rbac, "RoleBinding", "rolebindings", true, kind{defaults: bindingDefaults, immutable: fixed("roleRef")})
	addCompleted(add, fixed)
	add("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", false, kind{hasStatus: true})
	add("work.open-cluster-management.io/v1", "AppliedManifestWork", "appliedmanifestworks", false, kind{hasStatus: true})
	return kinds
}

func secretImmutable(old, next *unstructured.Unstructured) string {
	if !reflect.DeepEqual(old.Object["type"], next.Object["type"]) {
		return "type: Invalid value: field is immutable"
	}
	if frozen, _, _ := unstructured.NestedBool(old.Object, "immutable"); frozen && !reflect.DeepEqual(old.Object["data"], next.Object["data"]) {
		return "data: Forbidden: field is immutable when `immutable` is set"
	}
	return ""
}

func (f *Fake) create(ref kubeclient.Ref, k kind, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if f.objects[keyOf(ref)] != nil {
		return nil, apierrors.NewAlreadyExists(ref.GroupResource(), ref.Name)
	}
	if obj.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if err := f.admit(ref, k, obj); err != nil {
		return nil, err
	}
	o := obj.DeepCopy()
	if k.hasStatus {
		delete(o.Object, "status")
		o.SetGeneration(1)
	} else {
		o.SetGeneration(0)
	}
	f.counter++
	o.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", f.counter)))
	o.SetCreationTimestamp(metav1.NewTime(f.Now()))
	o.SetDeletionTimestamp(nil)
	f.store(ref, k, o)
	return o.DeepCopy(), nil
}

// admit checks what the server checks for every verb.
func (f *Fake) admit(ref kubeclient.Ref, k kind, obj *unstructured.Unstructured) error {
	if ref.Name == "" {
		return apierrors.NewInvalid(obj.GroupVersionKind().GroupKind(), "", nil)
	}
	if k.Namespaced != (ref.Namespace != "") {
		return &kubeclient.NotServedError{Resource: ref.GroupVersionResource}
	}
	if k.Namespaced {
		ns := f.objects[key{schema.GroupResource{Resource: "namespaces"}, "", ref.Namespace}]
		if ns == nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, ref.Namespace)
		}
	}
	for _, r := range obj.GetOwnerReferences() {
		if r.UID == "" || r.Name == "" || r.Kind == "" || r.APIVersion == "" {
			return invalid(ref, obj, "metadata.ownerReferences: Invalid value: incomplete")
		}
	}
	for name := range obj.GetLabels() {
		if strings.HasSuffix(name, "-") {
			return invalid(ref, obj, "metadata.labels: Invalid value: "+name)
		}
	}
	return nil
}

func invalid(ref kubeclient.Ref, obj *unstructured.Unstructured, problem string) error {
	field, text, _ := strings.Cut(problem, ": ")
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("%s %q is invalid: %s", obj.GetKind(), ref.Name, problem),
		Details: &metav1.StatusDetails{Name: ref.Name, Group: ref.Group, Kind: obj.GetKind(), Causes: []metav1.StatusCause{
			{Type: metav1.CauseTypeFieldValueInvalid, Field: field, Message: text},
		}},
	}}
}

// store stores o with its next resourceVersion and its defaults.
func (f *Fake) store(ref kubeclient.Ref, k kind, o *unstructured.Unstructured) {
	if k.defaults != nil {
		k.defaults(o)
	}
	f.counter++
	o.SetResourceVersion(strconv.FormatInt(f.counter, 10))
	old := f.objects[keyOf(ref)]
	f.objects[keyOf(ref)] = o
	f.define(o)
	f.record(ref, old, o)
}

var errGone = errors.New("the object that was to be changed is not there")

func precondition(ref kubeclient.Ref, old, next *unstructured.Unstructured) error {
	if v := next.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return apierrors.NewConflict(ref.GroupResource(), ref.Name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	if u := next.GetUID(); u != "" && u != old.GetUID() {
		return apierrors.NewConflict(ref.GroupResource(), ref.Name, errors.New("the uid in the object is not that of the stored one"))
	}
	return nil
}

// replace executes an update through the main endpoint.
func (f *Fake) replace(ref kubeclient.Ref, k kind, old, next *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := precondition(ref, old, next); err != nil {
		return nil, err
	}
	if err := f.admit(ref, k, next); err != nil {
		return nil, err
	}
	keepServerFields(old, next)
	if k.hasStatus {
		next.Object["status"] = old.Object["status"]
		if next.Object["status"] == nil {
			delete(next.Object, "status")
		}
	}
	if k.defaults != nil {
		k.defaults(next)
	}
	if k.immutable != nil {
		if problem := k.immutable(old, next); problem != "" {
			return nil, invalid(ref, next, problem)
		}
	}
	if alike(old, next) {
		return old.DeepCopy(), nil // nothing changed, nothing is written
	}
	if k.hasStatus && !same(old, next) {
		next.SetGeneration(old.GetGeneration() + 1)
	}
	if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 {
		f.forget(ref)
		return next.DeepCopy(), nil
	}
	f.store(ref, k, next)
	return next.DeepCopy(), nil
}

// replaceStatus executes an update through the status endpoint.
func (f *Fake) replaceStatus(ref kubeclient.Ref, old, next *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := precondition(ref, old, next); err != nil {
		return nil, err
	}
	o := old.DeepCopy()
	o.Object["status"] = next.Object["status"]
	if o.Object["status"] == nil {
		delete(o.Object, "status")
	}
	if reflect.DeepEqual(old.Object, o.Object) {
		return o, nil
	}
	f.store(ref, kind{}, o)
	return o.DeepCopy(), nil
}

// keepServerFields restores the fields that no client may change.
func keepServerFields(old, next *unstructured.Unstructured) {
	next.SetUID(old.GetUID())
	next.SetResourceVersion(old.GetResourceVersion())
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	next.SetGeneration(old.GetGeneration())
	next.SetDeletionTimestamp(old.GetDeletionTimestamp())
}

func (f *Fake) remove(ref kubeclient.Ref, old *unstructured.Unstructured) {
	if len(old.GetFinalizers()) == 0 {
		f.forget(ref)
		return
	}
	if old.GetDeletionTimestamp() != nil {
		return
	}
	o := old.DeepCopy()
	now := metav1.NewTime(f.Now())
	o.SetDeletionTimestamp(&now)
	f.store(ref, kind{}, o)
}

// forget removes an object, and with a namespace or a definition everything in it.
func (f *Fake) forget(ref kubeclient.Ref) {
	o := f.objects[keyOf(ref)]
	f.drop(ref)
	switch o.GetKind() {
	case "Namespace":
		f.forgetAll(func(r kubeclient.Ref) bool { return r.Namespace == ref.Name })
	case "CustomResourceDefinition":
		for _, k := range f.definedBy(o) {
			f.forgetAll(func(r kubeclient.Ref) bool { return r.GroupVersionResource == k.GroupVersionResource })
			delete(f.kinds, k.GroupVersion().WithKind(k.Kind))
		}
	}
}

func (f *Fake) forgetAll(which func(kubeclient.Ref) bool) {
	for _, ref := range f.refs() {
		if which(ref) {
			f.drop(ref)
		}
	}
}

func (f *Fake) drop(ref kubeclient.Ref) {
	old := f.objects[keyOf(ref)]
	delete(f.objects, keyOf(ref))
	f.counter++
	f.record(ref, old, nil)
}

// refs lists all objects in a fixed order.
func (f *Fake) refs() []kubeclient.Ref {
	var refs []kubeclient.Ref
	for _, o := range f.objects {
		refs = append(refs, f.kinds[o.GroupVersionKind()].ref(o))
	}
	slices.SortFunc(refs, func(a, b kubeclient.Ref) int { return strings.Compare(a.String(), b.String()) })
	return refs
}

// define adds the kinds of a CustomResourceDefinition.
func (f *Fake) define(o *unstructured.Unstructured) {
	if o.GetKind() != "CustomResourceDefinition" {
		return
	}
	for _, k := range f.definedBy(o) {
		f.kinds[k.GroupVersion().WithKind(k.Kind)] = k
	}
}

func (f *Fake) definedBy(o *unstructured.Unstructured) []kind {
	group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(o.Object, "spec", "names", "plural")
	name, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
	scope, _, _ := unstructured.NestedString(o.Object, "spec", "scope")
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
	var kinds []kind
	for _, v := range versions {
		m, _ := v.(map[string]any)
		version, _ := m["name"].(string)
		if served, _ := m["served"].(bool); !served {
			continue
		}
		kinds = append(kinds, kind{hasStatus: true, Resource: kubeclient.Resource{
			GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: plural}, Kind: name, Namespaced: scope == "Namespaced",
		}})
	}
	return kinds
}
