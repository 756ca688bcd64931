package manifestwork

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	workv1 "open-cluster-management.io/api/work/v1"
)

// MaxManifestsSize is the default limit of ManifestsSize (500 KiB), the same as in OCM's webhook.
const MaxManifestsSize = 500 * 1024

// ManifestsSize returns the size of the manifests, in bytes, as OCM's webhook counts it. It adds, for each
// manifest, the raw JSON with its protobuf tag and length. A manifest given as an unserialized object counts 0.
func ManifestsSize(work *workv1.ManifestWork) int {
	total := 0
	for i := range work.Spec.Workload.Manifests {
		if raw := work.Spec.Workload.Manifests[i].Raw; raw != nil {
			total += 1 + protowire.SizeBytes(len(raw))
		}
	}
	return total
}

// OneTooLarge returns a text that names the manifest which alone exceeds the limit, and the remedy. It returns
// "" if there is none. Splitting the work does not help in this case.
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
		_ = json.Unmarshal(raw, &o) // a manifest that does not parse has no name
		way := "remove the parts that it does not need"
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
