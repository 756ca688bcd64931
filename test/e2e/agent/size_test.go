package agent

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// boundsItsStatus applies 500 manifests that the API server rejects with long texts. The status lists all of
// them with their conditions, and reports that texts are shortened.
func boundsItsStatus(s *spoke) {
	const n = 500
	var manifests []string
	for i := range n {
		key := strings.Repeat("k", 600) + " with blanks"
		manifests = append(manifests, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"size-%d","namespace":"default"},"data":{%q:""}}`, i, key))
	}
	w := work("size", 1, manifests...)
	r := s.apply(w)
	text, err := json.Marshal(r.Status)
	if err != nil {
		s.Fatal(err)
	}
	if len(text) > conditions.MaxStatus {
		s.Errorf("the status has %d bytes, want at most %d", len(text), conditions.MaxStatus)
	}
	if len(r.Status.ResourceStatus.Manifests) != n {
		s.Fatalf("%d manifests are listed", len(r.Status.ResourceStatus.Manifests))
	}
	for i, e := range r.Status.ResourceStatus.Manifests {
		if c := meta.FindStatusCondition(e.Conditions, workv1.ManifestApplied); e.ResourceMeta.Ordinal != int32(i) || c == nil || c.Status != "False" || c.Reason != workv1.AppliedManifestFailed {
			s.Fatalf("entry %d is %+v", i, e)
		}
	}
	if c := meta.FindStatusCondition(r.Status.Conditions, conditions.TypeStatusTruncated); c == nil || !strings.Contains(c.Message, "shortened for 500") {
		s.Errorf("no condition reports the truncation: %+v", r.Status.Conditions)
	}
	s.deleted(w)
}
