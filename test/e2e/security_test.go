package e2e

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

const bundles = "io.open-cluster-management.works.v1alpha1.manifestbundles"

// client connects to the broker with the certificate of (role, name).
func (f *Fleet) client(t *testing.T, role pki.Role, name string) cloudeventsv1.CloudEventServiceClient {
	t.Helper()
	d := f.PKI()
	files := identity.Files{CA: d.CACert()}
	if role != "" {
		files.Cert, files.Key = d.Cert(role, name), d.Key(role, name)
	}
	creds, err := files.Client("", func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(f.BrokerAddr(), grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return cloudeventsv1.NewCloudEventServiceClient(conn)
}

func text(s string) *cloudeventsv1.CloudEvent_CloudEventAttributeValue {
	return &cloudeventsv1.CloudEvent_CloudEventAttributeValue{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
}

func integer(n int32) *cloudeventsv1.CloudEvent_CloudEventAttributeValue {
	return &cloudeventsv1.CloudEvent_CloudEventAttributeValue{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeInteger{CeInteger: n}}
}

// event is a well-formed event about a work of a cluster.
func event(source, cluster, action string) *cloudeventsv1.PublishRequest {
	return &cloudeventsv1.PublishRequest{Event: &cloudeventsv1.CloudEvent{
		Id: "1", Source: source, SpecVersion: "1.0", Type: bundles + "." + action,
		Attributes: map[string]*cloudeventsv1.CloudEvent_CloudEventAttributeValue{
			"ce-clustername": text(cluster), "ce-originalsource": text("hub"), "ce-resourceid": text("0b3a2d7c-3f0e-4f4e-9a37-6d3f3f3b0001"),
			"ce-resourceversion": integer(1), "ce-sequenceid": text("2123694259314888704"), "contenttype": text("application/json"),
			"ce-metadata": text(`{"name":"intruder","namespace":"` + cluster + `","uid":"0b3a2d7c-3f0e-4f4e-9a37-6d3f3f3b0001"}`),
		},
		Data: &cloudeventsv1.CloudEvent_BinaryData{BinaryData: []byte(`{"manifests":[],"resourceVersions":[],"statusHashes":[],"conditions":null}`)},
	}}
}

// TestForeignCluster: the certificate of one cluster's agent gives no access to another cluster, or to a
// source.
func TestForeignCluster(t *testing.T) {
	f := &shared
	c := f.client(t, pki.Agent, cluster1)
	for _, action := range []string{"status.update_request", "status.resync_response", "spec.resync_request"} {
		if got := publishCode(t, c, event("agent", cluster2, action)); got != codes.PermissionDenied {
			t.Errorf("%s for the other cluster: %s, want PermissionDenied", action, got)
		}
	}
	for _, action := range []string{"spec.create_request", "spec.update_request", "spec.delete_request", "status.resync_request"} {
		for _, cluster := range []string{cluster1, cluster2} {
			if got := publishCode(t, c, event("hub", cluster, action)); got != codes.PermissionDenied {
				t.Errorf("%s of an agent for %s: %s, want PermissionDenied", action, cluster, got)
			}
		}
	}
	for name, s := range map[string]*cloudeventsv1.SubscriptionRequest{
		"other cluster": {ClusterName: cluster2, DataType: bundles},
		"as a source":   {Source: "hub", DataType: bundles},
	} {
		if got := subscribeCode(t, c, s); got != codes.PermissionDenied {
			t.Errorf("subscribe, %s: %s, want PermissionDenied", name, got)
		}
	}
	if got := subscribeCode(t, c, &cloudeventsv1.SubscriptionRequest{ClusterName: cluster1, DataType: bundles}); got != codes.OK {
		t.Errorf("subscribe to the own cluster: %s", got)
	}
}

// TestForeignSource: a source reaches only what it owns.
func TestForeignSource(t *testing.T) {
	f := &shared
	c := f.client(t, pki.Source, "program")
	if got := publishCode(t, c, event("hub", cluster1, "spec.create_request")); got != codes.PermissionDenied {
		t.Errorf("publish in the name of the hub: %s, want PermissionDenied", got)
	}
	if got := publishCode(t, c, event("program", cluster1, "status.update_request")); got != codes.PermissionDenied {
		t.Errorf("a status from a source: %s, want PermissionDenied", got)
	}
	if got := subscribeCode(t, c, &cloudeventsv1.SubscriptionRequest{Source: "hub", DataType: bundles}); got != codes.PermissionDenied {
		t.Errorf("subscribe in the name of the hub: %s, want PermissionDenied", got)
	}
}

// TestNoCredentials: a client without a certificate is not served, and plaintext connections fail.
func TestNoCredentials(t *testing.T) {
	f := &shared
	c := f.client(t, "", "")
	if got := publishCode(t, c, event("hub", cluster1, "spec.create_request")); got != codes.Unauthenticated {
		t.Errorf("publish: %s, want Unauthenticated", got)
	}
	if got := subscribeCode(t, c, &cloudeventsv1.SubscriptionRequest{ClusterName: cluster1, DataType: bundles}); got != codes.Unauthenticated {
		t.Errorf("subscribe: %s, want Unauthenticated", got)
	}
	conn, err := grpc.NewClient(f.BrokerAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := publishCode(t, cloudeventsv1.NewCloudEventServiceClient(conn), event("hub", cluster1, "spec.create_request")); got != codes.Unavailable {
		t.Errorf("plaintext: %s, want Unavailable", got)
	}
}

const callWithin = 10 * time.Second

func publishCode(t *testing.T, c cloudeventsv1.CloudEventServiceClient, req *cloudeventsv1.PublishRequest) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callWithin)
	defer cancel()
	_, err := c.Publish(ctx, req)
	return status.Code(err)
}

// subscribeCode returns OK when the subscription was accepted.
func subscribeCode(t *testing.T, c cloudeventsv1.CloudEventServiceClient, req *cloudeventsv1.SubscriptionRequest) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callWithin)
	defer cancel()
	s, err := c.Subscribe(ctx, req)
	if err != nil {
		return status.Code(err)
	}
	header, err := s.Header()
	if err == nil && len(header.Get("subscription-id")) == 1 {
		return codes.OK
	}
	_, err = s.Recv()
	return status.Code(err)
}

func timestamp() *cloudeventsv1.CloudEvent_CloudEventAttributeValue {
	return &cloudeventsv1.CloudEvent_CloudEventAttributeValue{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeTimestamp{CeTimestamp: timestamppb.Now()}}
}
