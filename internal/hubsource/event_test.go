package hubsource

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// TestPublish_DeletionSaysThatTheClusterReported: a broker that lost its store
// would else take it that no cluster ever had the work.
func TestPublish_DeletionSaysThatTheClusterReported(t *testing.T) {
	manifest := workv1.ManifestWorkStatus{ResourceStatus: workv1.ManifestResourceStatus{Manifests: []workv1.ManifestCondition{{}}}}
	ours := workv1.ManifestWorkStatus{Conditions: []metav1.Condition{{Type: ConditionDelivered, Status: metav1.ConditionFalse}}}
	for name, c := range map[string]struct {
		status workv1.ManifestWorkStatus
		want   string
	}{
		"nothing":              {workv1.ManifestWorkStatus{}, ""},
		"our own condition":    {ours, ""},
		"an agent's condition": {applied(1), "true"},
		"a manifest":           {manifest, "true"},
	} {
		p := Publish{Work: newWork("w", 1, deleting, withStatus(c.status)), Action: codec.DeleteRequest}
		e, err := p.Event("id", time.Unix(1, 0), "hub")
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := codec.StringExtension(e, codec.ExtReported); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}
