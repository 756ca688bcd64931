package manifestwork

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	workv1 "open-cluster-management.io/api/work/v1"
)

// MaxManifestsSize is the default limit of ManifestsSize, the same as that of
// OCM's webhook.
const MaxManifestsSize = 500 * 1024

// ManifestsSize counts the manifests of a work as OCM's webhook does: for each
// its raw JSON, with the tag and the length that protobuf would put before it.
// A manifest given as an object that is not serialised yet counts nothing.
func ManifestsSize(work *workv1.ManifestWork) int {
	total := 0
	for i := range work.Spec.Workload.Manifests {
		if raw := work.Spec.Workload.Manifests[i].Raw; raw != nil {
			total += 1 + protowire.SizeBytes(len(raw))
		}
	}
	return total
}

// OneTooLarge says which manifest is larger than the limit all alone, and what to do about it; "" where none is.
// To split the work does not help then.
func OneTooLarge(manifests []workv1.Manifest, limit int) string {
	for i := range manifests {
		raw := manifests[i].Raw
		if 1+protowire.SizeBytes(len(raw)) <= limit {
			continue
		}
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		_ = json.Unmarshal(raw, &o) // what cannot be read has no name
		way := "leave out what it can do without"
		switch o.Kind {
		case "CustomResourceDefinition":
			way = "drop the descriptions in its schema"
		case "ConfigMap", "Secret":
			way = "divide its data among several objects"
		}
		return fmt.Sprintf("manifest %d, %.40q %.100q, alone is too large: %s, or let a Job in the work fetch and apply it, see docs/manifestwork.md#an-object-above-the-limit", i, o.Kind, o.Metadata.Name, way)
	}
	return ""
}
