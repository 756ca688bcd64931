package admission

import (
	"fmt"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// largestObject is the size in bytes of the largest object in etcd, and so of the largest work on a hub.
const largestObject = 1536 << 10

// The largest work that a hub can have, by its manifests and all other fields, fits into an event. A broker as
// configured in deploy/ accepts it, and an agent reads it.
func TestRules_AdmittedWorksAreDeliverable(t *testing.T) {
	work := workOf(sized(t, "a", 256000), sized(t, "b", manifestwork.MaxManifestsSize-256000-2*4))
	work.Annotations = map[string]string{"note": strings.Repeat("n", 200<<10)}
	for i := 0; len(marshal(t, work)) < largestObject; i++ {
		work.Spec.ManifestConfigs = append(work.Spec.ManifestConfigs, manyRules(i))
	}
	if a := rules().Check(request(t, work, nil)); a.Problem != "" || manifestwork.ManifestsSize(work) != manifestwork.MaxManifestsSize {
		t.Fatalf("%d bytes: %s", manifestwork.ManifestsSize(work), a.Problem)
	}
	e, err := manifestwork.EncodeSpec(work, manifestwork.SpecParams{ID: "1", Now: time.Unix(1700000000, 0), Source: "hub", Action: codec.CreateRequest})
	if err != nil {
		t.Fatal(err)
	}
	wire, err := codec.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if len(wire) > broker.DefaultMaxEventBytes {
		t.Errorf("the event has %d bytes, a broker takes %d", len(wire), broker.DefaultMaxEventBytes)
	}
	if e, err = codec.Unmarshal(wire); err != nil {
		t.Fatal(err)
	}
	if _, err := manifestwork.DecodeSpec(e); err != nil {
		t.Errorf("agents reject the work: %v", err)
	}
}

// manyRules returns a config with many condition rules, which is large.
func manyRules(i int) workv1.ManifestConfigOption {
	return workv1.ManifestConfigOption{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: fmt.Sprint("n", i)},
		ConditionRules: []workv1.ConditionRule{{
			Type: workv1.CelConditionExpressionsType, Condition: "Done", CelExpressions: []string{strings.Repeat(`object.data.a == "1" && `, 400) + "true"},
		}},
	}
}
