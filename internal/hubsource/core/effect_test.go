package core

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// TestPublish_DeletionRecordsClusterReport: without this, a broker that lost its store would assume that no
// cluster ever had the work.
func TestPublish_DeletionRecordsClusterReport(t *testing.T) {
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
		e, err := eventOf(p, newID, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := codec.StringExtension(e, codec.ExtNeedsConfirm); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func TestEvents_CarryTheirNumbers(t *testing.T) {
	now := time.Unix(1, 0)
	for _, order := range []uint64{0, 7} {
		r := codec.InventoryRecord{Cluster: "cluster1", ResourceID: "u", Name: "w", Version: 1, Revision: 5}
		for name, effect := range map[string]ForBroker{
			"publish":     Publish{Work: newWork("w", 1), Action: codec.UpdateRequest, Fence: order},
			"delete":      Delete{Record: r, Fence: order},
			"release":     Release{Cluster: "cluster1", Fence: order},
			"sync_report": SendSyncReport{Fence: order},
		} {
			e, err := eventOf(effect, newID, now)
			if err != nil {
				t.Fatal(err)
			}
			b, err := codec.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			env, err := codec.ParseEnvelope(b)
			if err != nil || env.Fence != order {
				t.Errorf("%s: %d, %v, want %d", name, env.Fence, err, order)
			}
			if _, has := e.Extensions()[codec.ExtFence]; has != (order != 0) {
				t.Errorf("%s: has a number: %t", name, has)
			}
		}
	}
}

func newID() string { return "id" }
