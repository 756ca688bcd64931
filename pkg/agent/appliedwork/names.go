package appliedwork

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// One object may be served under two names, such as an Event in the core group and in events.k8s.io. It has one
// uid. When a manifest changes the name, the entry with the old name becomes stale although the work still has
// the object.

// UIDs returns the names of the present objects of the work by uid.
func UIDs(results []apply.Result) map[types.UID]workv1.ResourceIdentifier {
	uids := map[types.UID]workv1.ResourceIdentifier{}
	for _, r := range results {
		uids[r.UID()] = r.ID()
	}
	delete(uids, "")
	return uids
}

// Undecided reports whether the object of an entry may be that of a manifest with another name that could not
// be read.
func Undecided(e Entry, results []apply.Result) bool {
	return slices.ContainsFunc(results, func(r apply.Result) bool {
		return r.Resolved && r.Presence == conditions.Unreadable && r.UID() == "" && r.Meta.Group != e.Group &&
			r.Meta.Resource == e.Resource && r.Meta.Namespace == e.Namespace && r.Meta.Name == e.Name
	})
}

// calledAlike reports whether a kind of another group may have the resource of an entry.
func calledAlike(kind, resource string) bool {
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return strings.EqualFold(plural.Resource, resource)
}
