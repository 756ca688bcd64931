package cli

import (
	"bytes"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// hubWith is a hub with these objects only.
func hubWith(objects ...runtime.Object) hubAPI {
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		clusterKind: "ManagedClusterList", signingRequests: "CertificateSigningRequestList",
	}, objects...)
	client.PrependReactor("create", selfSubjectReviews.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		review := &unstructured.Unstructured{Object: map[string]any{}}
		review.SetCreationTimestamp(metav1.Now())
		return true, review, nil
	})
	return hubAPI{client}
}

// TestRejectCluster_OnlyAPersonAcceptsItAgain: a cluster that was never accepted is rejected. Its agent
// requests again with the token of an account whose clusters hub-source accepts automatically. The annotation
// prevents that.
func TestRejectCluster_OnlyAPersonAcceptsItAgain(t *testing.T) {
	north := clustertest.Object("cluster.open-cluster-management.io/v1", "ManagedCluster", "", "north", "spec", map[string]any{"hubAcceptsClient": false})
	hub := hubWith(north)
	var out bytes.Buffer
	if err := rejectCluster(t.Context(), Env{Stdout: &out}, hub, "north", ""); err != nil {
		t.Fatal(err)
	}
	o, err := hub.Resource(clusterKind).Get(t.Context(), "north", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	accepted, _, err := unstructured.NestedBool(o.Object, "spec", "hubAcceptsClient")
	if got := o.GetAnnotations()[clustercontroller.KeyAnnotation]; err != nil || accepted || got != clustercontroller.NoKey {
		t.Errorf("accepted: %v, %v, key %q", accepted, err, got)
	}
	if err := hub.setAccepted(t.Context(), "north", true); err != nil {
		t.Fatal(err)
	}
	if o, err = hub.Resource(clusterKind).Get(t.Context(), "north", metav1.GetOptions{}); err != nil || o.GetAnnotations()[clustercontroller.KeyAnnotation] != clustercontroller.NoKey {
		t.Errorf("%v: after an acceptance by a person the key is %q", err, o.GetAnnotations()[clustercontroller.KeyAnnotation])
	}
}
