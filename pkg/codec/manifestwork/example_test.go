package manifestwork_test

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// A source encodes a work as an event and publishes it; an agent decodes the event.
func ExampleEncodeSpec() {
	work := &workv1.ManifestWork{
		ObjectMeta: metav1.ObjectMeta{
			Name: "hello", Namespace: "cluster1", Generation: 7,
			UID: "0d4ac0a4-5c1c-4f2b-9d8e-0f1e2d3c4b5a",
		},
		Spec: workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{
			RawExtension: runtime.RawExtension{Raw: []byte(
				`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hello", "namespace": "default"}}`)},
		}}}},
	}
	event, err := manifestwork.EncodeSpec(work, manifestwork.SpecParams{
		ID: "1", Now: time.Now(), Source: "shop", Action: codec.UpdateRequest,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(event.Type())
	spec, err := manifestwork.DecodeSpec(event)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(spec.Name, "of", spec.Source, "for", spec.Cluster, "in version", spec.Version)
	// Output:
	// io.open-cluster-management.works.v1alpha1.manifestbundles.spec.update_request
	// hello of shop for cluster1 in version 7
}

// An agent encodes the status of a work as an event; a source decodes the event.
func ExampleEncodeStatus() {
	ref := manifestwork.Ref{
		ResourceID: "0d4ac0a4-5c1c-4f2b-9d8e-0f1e2d3c4b5a", Name: "hello", Cluster: "cluster1", Generation: 7,
	}
	event, err := manifestwork.EncodeStatus(ref, workv1.ManifestWorkStatus{
		Conditions: []metav1.Condition{{Type: workv1.WorkApplied, Status: metav1.ConditionTrue}},
	}, manifestwork.StatusParams{
		ID: "2", Now: time.Now(), Source: "cluster1-work-agent", OriginalSource: "shop",
		Action: codec.UpdateRequest, SequenceID: "1834773391719010304",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := manifestwork.DecodeStatus(event)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range report.Status.Conditions {
		fmt.Println("version", report.Version, "on", report.Cluster+":", c.Type, c.Status)
	}
	// Output:
	// version 7 on cluster1: Applied True
}
