package admission

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// checkManifests returns the objects of the manifests, and the first problem, "" if there is none. Order and
// texts are those of Open Cluster Management. For one object that is too large alone, advice follows.
func (r Rules) checkManifests(work *workv1.ManifestWork) (objects []identifier, problem string) {
	manifests := work.Spec.Workload.Manifests
	if len(manifests) == 0 {
		return nil, "manifests should not be empty"
	}
	if size := manifestwork.ManifestsSize(work); size > r.ManifestLimit {
		problem = fmt.Sprintf("the size of manifests is %d bytes which exceeds the %d limit", size, r.ManifestLimit)
		if way := manifestwork.OneTooLarge(manifests, r.ManifestLimit); way != "" {
			problem += "; " + way
		}
		return nil, problem
	}
	objects = make([]identifier, 0, len(manifests))
	for i := range manifests {
		id, problem := identify(manifests[i].Raw)
		if problem != "" {
			return nil, problem
		}
		objects = append(objects, id)
	}
	seen := make(map[identifier]bool, len(objects))
	for _, id := range objects {
		if seen[id] {
			return nil, fmt.Sprintf("duplicate manifest for resource %s/%s with resource type %s.%s", id.namespace, id.name, id.apiVersion, id.kind)
		}
		seen[id] = true
	}
	return objects, ""
}

// identifier identifies the object of a manifest.
type identifier struct{ apiVersion, kind, namespace, name string }

// identify reads one manifest; problem is what is wrong with it, "" for nothing.
func identify(raw []byte) (id identifier, problem string) {
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(raw); err != nil {
		return id, err.Error()
	}
	switch {
	case o.GetName() == "":
		return id, "name must be set in manifest"
	case o.GetGenerateName() != "":
		return id, "generateName must not be set in manifest"
	}
	return identifier{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()}, ""
}

// mostWarnings is the limit of warnings for a work: a person reads them.
const mostWarnings = 8

// warnings returns warnings about manifests that the rules admit and no cluster can apply as intended: one
// object in two versions of its API. objects are those of checkManifests. The schema of the hub refuses
// impossible names and namespaces.
func warnings(objects []identifier) (reported []string) {
	type object struct {
		schema.GroupKind
		namespace, name string
	}
	first := map[object]int{}
	for i, id := range objects {
		o := object{schema.FromAPIVersionAndKind(id.apiVersion, id.kind).GroupKind(), id.namespace, id.name}
		n, twice := first[o]
		if !twice {
			first[o] = i
			continue
		}
		if len(reported) == mostWarnings {
			return reported
		}
		reported = append(reported, fmt.Sprintf("manifests %d and %d are one object in two API versions: each overwrites the other one", n, i))
	}
	return reported
}
