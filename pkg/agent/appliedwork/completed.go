package appliedwork

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/apply"
)

// AnnotationCompleted lists the manifests of the work that are complete and no longer applied. It contains the
// escaped id of the work, and for each manifest a CompletedID and the time in seconds, as "id=1700000000".
const AnnotationCompleted = "hawser.dev/completed"

// CompletedID identifies a manifest by its object, in a short form: there can be thousands.
func CompletedID(m apply.Manifest) string {
	id := m.ID()
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", id.Group, id.Resource, id.Namespace, id.Name))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// Completed returns when manifests of a work became complete, by CompletedID.
func (r *Record) Completed(workID string) map[string]time.Time {
	fields := strings.Fields(r.object.Annotations[AnnotationCompleted])
	if len(fields) == 0 || fields[0] != url.QueryEscape(workID) {
		return nil // the annotation is missing, or is of an earlier work with that name
	}
	completed := map[string]time.Time{}
	for _, f := range fields[1:] {
		id, at, _ := strings.Cut(f, "=")
		if seconds, err := strconv.ParseInt(at, 10, 64); err == nil && seconds > 0 {
			completed[id] = time.Unix(seconds, 0)
		}
	}
	return completed
}

// SetCompleted records the complete manifests of a work, if they changed.
func (s Store) SetCompleted(ctx context.Context, r *Record, workID string, completed map[string]time.Time) (*Record, error) {
	var value any // null removes the annotation
	if len(completed) > 0 {
		fields := []string{url.QueryEscape(workID)}
		for _, id := range slices.Sorted(maps.Keys(completed)) {
			fields = append(fields, id+"="+strconv.FormatInt(completed[id].Unix(), 10))
		}
		value = strings.Join(fields, " ")
	}
	if old, has := r.object.Annotations[AnnotationCompleted]; has && value == old || !has && value == nil {
		return r, nil
	}
	return s.patch(ctx, r, map[string]any{"annotations": map[string]any{AnnotationCompleted: value}}, nil, "")
}
