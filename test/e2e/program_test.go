package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/pki"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// reported is the checked part of a status payload.
type reported struct {
	Conditions     []metav1.Condition `json:"conditions"`
	ResourceStatus []struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"resourceStatus"`
}

// TestProgramSource: a program publishes a work without a hub, with a manifest that a hub would reject. It
// receives the statuses, and deletes the work again.
func TestProgramSource(t *testing.T) {
	f := &shared
	ns := f.NamespaceOn(t, cluster1)
	c := f.client(t, pki.Source, "program")
	statuses, err := c.Subscribe(t.Context(), &cloudeventsv1.SubscriptionRequest{Source: "program", DataType: bundles})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := statuses.Header(); err != nil {
		t.Fatal(err)
	}
	const id = "0b3a2d7c-3f0e-4f4e-9a37-6d3f3f3b0042"
	publish := func(action string, version int32, change func(*cloudeventsv1.CloudEvent)) {
		t.Helper()
		e := event("program", cluster1, "spec."+action)
		e.Event.Attributes["ce-originalsource"] = text("")
		e.Event.Attributes["ce-resourceid"] = text(id)
		e.Event.Attributes["ce-resourceversion"] = integer(version)
		e.Event.Attributes["ce-logtracing"] = text("{}")
		e.Event.Attributes["ce-metadata"] = text(`{"name":"by-program","namespace":"cluster1","uid":"` + id + `"}`)
		delete(e.Event.Attributes, "ce-sequenceid")
		change(e.Event)
		if _, err := c.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	publish("create_request", 1, func(e *cloudeventsv1.CloudEvent) {
		good, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": "good", "namespace": ns}, "data": map[string]string{"key": "fine"}})
		if err != nil {
			t.Fatal(err)
		}
		e.Data = &cloudeventsv1.CloudEvent_BinaryData{BinaryData: fmt.Appendf(nil, `{"manifests":["no object at all",%s]}`, good)}
	})
	f.HasValue(t, cluster1, ns, "good", "fine")
	last := awaitStatus(t, statuses, func(r reported) bool {
		return meta.IsStatusConditionFalse(r.Conditions, "Applied") && len(r.ResourceStatus) == 2 && meta.IsStatusConditionTrue(r.ResourceStatus[1].Conditions, "Available")
	})
	bad := meta.FindStatusCondition(last.ResourceStatus[0].Conditions, "Applied")
	if bad == nil || bad.Status != metav1.ConditionFalse || bad.Reason != "AppliedManifestFailed" || !strings.HasPrefix(bad.Message, "Failed to apply manifest: ") {
		t.Errorf("the unparsable manifest has %+v", bad)
	}
	available := meta.FindStatusCondition(last.ResourceStatus[0].Conditions, "Available")
	if available == nil || available.Status != metav1.ConditionUnknown || available.Reason != "IncompleteResourceMeta" {
		t.Errorf("the unparsable manifest has %+v", available)
	}

	publish("delete_request", 1, func(e *cloudeventsv1.CloudEvent) {
		e.Attributes["ce-deletiontimestamp"] = timestamp()
		delete(e.Attributes, "contenttype")
		e.Data = nil
	})
	awaitStatus(t, statuses, func(r reported) bool { return meta.IsStatusConditionTrue(r.Conditions, "Deleted") })
	if _, err := f.ConfigMap(t.Context(), cluster1, ns, "good"); !apierrors.IsNotFound(err) {
		t.Errorf("the object is still there (%v)", err)
	}
}

// awaitStatus reads the stream until want returns true for a status.
func awaitStatus(t *testing.T, stream grpc.ServerStreamingClient[cloudeventsv1.CloudEvent], want func(reported) bool) reported {
	t.Helper()
	got := make(chan reported)
	failed := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), harness.ConvergeTimeout)
	defer cancel()
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			if !strings.Contains(e.Type, ".status.") {
				continue
			}
			var r reported
			if err := json.Unmarshal(e.GetBinaryData(), &r); err != nil {
				failed <- err
				return
			}
			if want(r) {
				got <- r
				return
			}
		}
	}()
	select {
	case r := <-got:
		return r
	case err := <-failed:
		t.Fatal(err)
	case <-ctx.Done():
		t.Fatal("the status did not come")
	}
	return reported{}
}
