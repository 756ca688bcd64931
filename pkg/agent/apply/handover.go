package apply

import (
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// An object that was under another strategy has plain updates of this agent. The server records them under the
// agent's name, but apart from applied fields. Then the first apply that changes such a field would conflict
// with the agent itself, and one that drops it would not remove it. Therefore the fields of the manifest are
// moved from one entry to the other before the first apply. Fields that the manifest does not have stay in
// their entry and on the object. Nothing is moved while another work has the object: the updates may belong to
// it.

// handOver returns the patch that moves the fields of want that this agent updated to its applied fields; nil
// if there are none.
func handOver(live *unstructured.Unstructured, want map[string]any, by kubeclient.FieldManager, owner Owner) []byte {
	if slices.ContainsFunc(live.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return ofWork(r) && !owner.is(r) }) {
		return nil
	}
	entries := live.GetManagedFields()
	updated := slices.IndexFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
		return bookedBy(e, live, kubeclient.UserAgent, metav1.ManagedFieldsOperationUpdate)
	})
	if updated < 0 {
		return nil
	}
	left := setOf(entries[updated])
	owners := fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "ownerReferences"))
	moved := managed{below: left.RecursiveDifference(owners)}.within(want)
	if moved.Empty() {
		return nil
	}
	if left = left.Difference(moved); left.Empty() {
		entries = slices.Delete(entries, updated, updated+1)
	} else {
		setFields(&entries[updated], left)
	}
	applied := slices.IndexFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
		return bookedBy(e, live, by.Name, metav1.ManagedFieldsOperationApply)
	})
	if applied < 0 {
		entries = append(entries, metav1.ManagedFieldsEntry{Manager: by.Name, Operation: metav1.ManagedFieldsOperationApply, APIVersion: live.GetAPIVersion(), FieldsType: "FieldsV1"})
		applied = len(entries) - 1
	}
	setFields(&entries[applied], setOf(entries[applied]).Union(moved))
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": live.GetUID(), "resourceVersion": live.GetResourceVersion(), "managedFields": entries,
	}})
	if err != nil {
		// Entries came from JSON and always marshal.
		panic(fmt.Sprintf("marshal managed fields: %v", err))
	}
	return patch
}

func bookedBy(e metav1.ManagedFieldsEntry, o *unstructured.Unstructured, manager string, operation metav1.ManagedFieldsOperationType) bool {
	return e.Manager == manager && e.Operation == operation && e.Subresource == "" && e.APIVersion == o.GetAPIVersion() && e.FieldsV1 != nil
}

// setOf reads an entry; an unreadable one counts as empty.
func setOf(e metav1.ManagedFieldsEntry) *fieldpath.Set {
	s := fieldpath.NewSet()
	if e.FieldsV1 == nil || s.FromJSON(e.FieldsV1.GetRawReader()) != nil {
		return fieldpath.NewSet()
	}
	return s
}

func setFields(e *metav1.ManagedFieldsEntry, s *fieldpath.Set) {
	b, err := s.ToJSON()
	if err != nil {
		// The elements of a set came from JSON.
		panic(fmt.Sprintf("marshal a set of fields: %v", err))
	}
	e.FieldsV1 = metav1.NewFieldsV1(string(b))
}

// within returns the paths of want that m manages.
func (m managed) within(want any) *fieldpath.Set {
	found := fieldpath.NewSet()
	var walk func(m managed, want any, at fieldpath.Path)
	walk = func(m managed, want any, at fieldpath.Path) {
		step := func(pe fieldpath.PathElement, e any) {
			sub, path := m.at(pe), append(at.Copy(), pe)
			if sub.self {
				found.Insert(path)
			}
			walk(sub, e, path)
		}
		switch w := want.(type) {
		case map[string]any:
			for _, pe := range m.steps() {
				if pe.FieldName != nil {
					if e, has := w[*pe.FieldName]; has {
						step(pe, e)
					}
				}
			}
		case []any:
			x := itemsOf(w, m)
			for _, pe := range m.steps() {
				if i := x.find(pe); i >= 0 {
					step(pe, w[i])
				}
			}
		}
	}
	walk(m, want, nil)
	return found
}
