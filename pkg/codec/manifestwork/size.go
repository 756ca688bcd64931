package manifestwork

import (
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
