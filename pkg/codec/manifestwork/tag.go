package manifestwork

import (
	"encoding/json"
	"fmt"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// SpecTag returns the tag that a broker computes for the work when it is published with [EncodeSpec]. With it a
// source compares without publishing. The work must have no deletion timestamp: deletions are not compared by
// tag.
func SpecTag(work *workv1.ManifestWork) (codec.Tag, error) {
	metadata, err := metadataJSON(work.ObjectMeta)
	if err != nil {
		return codec.Tag{}, fmt.Errorf("tag of work %s/%s: %w", work.Namespace, work.Name, err)
	}
	data, err := json.Marshal(payloadOf(&work.Spec))
	if err != nil {
		return codec.Tag{}, fmt.Errorf("tag of work %s/%s: %w", work.Namespace, work.Name, err)
	}
	return codec.TagOf(false, int64(wireVersion(work.Generation)), metadata, data), nil
}
