package apply

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Owner is the AppliedManifestWork of the work on the cluster.
type Owner struct {
	Name string
	UID  types.UID
}

const ownerKind = "AppliedManifestWork"

// Reference returns the owner reference of an owned object: neither controller nor blocking.
func (o Owner) Reference() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: workv1.GroupVersion.String(), Kind: ownerKind, Name: o.Name, UID: o.UID}
}

// is compares name, kind and group. It ignores the uid, which changes when the owner is created again.
func (o Owner) is(r metav1.OwnerReference) bool { return ofWork(r) && r.Name == o.Name }

// ofWork reports whether a reference is the owner reference of some work.
func ofWork(r metav1.OwnerReference) bool {
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	return err == nil && gv.Group == workv1.GroupName && r.Kind == ownerKind
}

// addReference adds or removes the reference and reports whether the list changed.
func (o Owner) addReference(refs []metav1.OwnerReference, owned bool) ([]metav1.OwnerReference, bool) {
	i := slices.IndexFunc(refs, o.is)
	switch {
	case owned && i < 0:
		return append(slices.Clone(refs), o.Reference()), true
	case owned && refs[i].UID == o.UID:
		return refs, false
	case owned:
		refs = slices.Clone(refs)
		refs[i] = o.Reference()
		return refs, true
	case i >= 0:
		return slices.DeleteFunc(slices.Clone(refs), o.is), true
	}
	return refs, false
}

// patch returns a merge patch that adds or removes the reference, conditional on the object as read. needed is
// false if the patch changes nothing.
func (o Owner) patch(live *unstructured.Unstructured, owned bool) (patch []byte, needed bool) {
	refs, changed := o.addReference(live.GetOwnerReferences(), owned)
	if !changed {
		return nil, false
	}
	return PatchOwners(live, refs), true
}

// PatchOwners returns a merge patch that sets the owner references, conditional on the object as read.
func PatchOwners(live *unstructured.Unstructured, refs []metav1.OwnerReference) []byte {
	meta := map[string]any{"uid": live.GetUID(), "resourceVersion": live.GetResourceVersion(), "ownerReferences": refs}
	if len(refs) == 0 {
		meta["ownerReferences"] = nil // null removes the field
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		// References of texts and booleans always marshal.
		panic(fmt.Sprintf("marshal an owner reference patch: %v", err))
	}
	return patch
}

// removeSuffix at the end of a label or annotation key in a manifest requests that the key without it is
// absent.
const removeSuffix = "-"

// mergeKeys merges the manifest's labels or annotations into the live ones. A key that occurs both with and
// without the suffix is wanted.
func mergeKeys(live, want map[string]string) (map[string]string, bool) {
	merged, changed := maps.Clone(live), false
	if merged == nil {
		merged = map[string]string{}
	}
	for k, v := range want {
		if name, remove := strings.CutSuffix(k, removeSuffix); remove {
			_, wanted := want[name]
			if _, has := merged[name]; has && !wanted {
				delete(merged, name)
				changed = true
			}
			continue
		}
		if old, has := merged[k]; !has || old != v {
			merged[k] = v
			changed = true
		}
	}
	return merged, changed
}

// dropRemovals omits the keys that only request an absence.
func dropRemovals(want map[string]string) map[string]string {
	kept := map[string]string{}
	for k, v := range want {
		if !strings.HasSuffix(k, removeSuffix) {
			kept[k] = v
		}
	}
	return kept
}

// setKeys sets labels or annotations; an empty map removes the field.
func setKeys(set func(map[string]string), m map[string]string) {
	if len(m) == 0 {
		m = nil
	}
	set(m)
}

// identify clears the server's fields of a manifest, and sets its actual namespace.
func identify(m Manifest) *unstructured.Unstructured {
	o := m.Object.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "managedFields", "ownerReferences"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	o.SetNamespace(m.Ref.Namespace)
	return o
}

// forCreate returns the manifest in the form in which it is created.
func forCreate(want *unstructured.Unstructured, owner Owner, owned bool) *unstructured.Unstructured {
	o := want.DeepCopy()
	setKeys(o.SetLabels, dropRemovals(o.GetLabels()))
	setKeys(o.SetAnnotations, dropRemovals(o.GetAnnotations()))
	if owned {
		o.SetOwnerReferences([]metav1.OwnerReference{owner.Reference()})
	}
	return o
}

// remake returns the manifest in the form in which the object is created again after its deletion. next is the
// form of an update. It keeps the labels, annotations and references of other owners.
func remake(want, next *unstructured.Unstructured) *unstructured.Unstructured {
	o := want.DeepCopy()
	setKeys(o.SetLabels, next.GetLabels())
	setKeys(o.SetAnnotations, next.GetAnnotations())
	if owners := next.GetOwnerReferences(); len(owners) > 0 {
		o.SetOwnerReferences(owners)
	}
	return o
}

// mergeOwner is mergeMetadata without labels and annotations. It never claims an object that the work does not
// own.
func mergeOwner(next, live *unstructured.Unstructured, owner Owner, owned bool) bool {
	owned = owned && slices.ContainsFunc(live.GetOwnerReferences(), owner.is)
	return mergeMetadata(next, &unstructured.Unstructured{Object: map[string]any{}}, live, owner, owned)
}

// mergeMetadata writes the live metadata into next, merged with that of the manifest. Finalizers are unchanged;
// uid and resourceVersion make the write conditional.
func mergeMetadata(next, want, live *unstructured.Unstructured, owner Owner, owned bool) bool {
	labels, c1 := mergeKeys(live.GetLabels(), want.GetLabels())
	annotations, c2 := mergeKeys(live.GetAnnotations(), want.GetAnnotations())
	owners, c3 := owner.addReference(live.GetOwnerReferences(), owned)
	setKeys(next.SetLabels, labels)
	setKeys(next.SetAnnotations, annotations)
	next.SetOwnerReferences(owners)
	if len(owners) == 0 {
		unstructured.RemoveNestedField(next.Object, "metadata", "ownerReferences")
	}
	next.SetFinalizers(live.GetFinalizers())
	next.SetUID(live.GetUID())
	next.SetResourceVersion(live.GetResourceVersion())
	return c1 || c2 || c3
}
