package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// stub returns a client of the service as protoc generates it, and a context for its calls. It uses the
// certificate of an agent or a source.
func (b *ourBroker) stub(t testing.TB, role pki.Role, name string) (context.Context, cloudeventsv1.CloudEventServiceClient) {
	t.Helper()
	cert, key := certify(t, role, name)
	creds, err := identity.Files{CA: certs.CACert(), Cert: cert, Key: key}.Client("", func(err error) { t.Errorf("certificates: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() {
		cancel()
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return ctx, cloudeventsv1.NewCloudEventServiceClient(conn)
}

var works = codec.ManifestBundles.String()

// TestC39_InvalidSubscription_IsRefused: subscriptions without cluster and source, with both, or without a data
// type are rejected.
func TestC39_InvalidSubscription_IsRefused(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	ctx, client := b.stub(t, pki.Agent, cluster1)
	for name, r := range map[string]*cloudeventsv1.SubscriptionRequest{
		"no cluster":         {DataType: works},
		"cluster and source": {ClusterName: cluster1, Source: src1, DataType: works},
		"two tokens":         {ClusterName: cluster1, DataType: "v1.works"},
		"no data type":       {ClusterName: cluster1},
		"unknown data type":  {ClusterName: cluster1, DataType: "example.com.v1.things"},
	} {
		stream, err := client.Subscribe(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

// TestC40_Header_ComesAfterRegistration: the header names the subscription and comes before any event. Every
// event that is published after the header arrives.
func TestC40_Header_ComesAfterRegistration(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	ctx, client := b.stub(t, pki.Agent, cluster1)
	src := b.connect(t, pki.Source, src1)
	for n := range 100 {
		ctx, stop := context.WithCancel(ctx)
		stream, err := client.Subscribe(ctx, &cloudeventsv1.SubscriptionRequest{ClusterName: cluster1, DataType: works})
		if err != nil {
			t.Fatal(err)
		}
		header, err := stream.Header()
		if err != nil {
			t.Fatal(err)
		}
		if ids := header.Get(codec.HeaderSubscriptionID); len(ids) != 1 || ids[0] == "" {
			t.Fatalf("%s in the header is %q, want one value", codec.HeaderSubscriptionID, ids)
		}
		id := fmt.Sprintf("w%d", n)
		src.publishWork(src1, codec.CreateRequest, withID(id, newWork(cluster1, id, 1)))
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := e.GetAttributes()["ce-"+codec.ExtResourceID].GetCeString(); got != id {
			t.Errorf("first event is about %s, want %s", got, id)
		}
		stop()
		for err == nil {
			_, err = stream.Recv()
		}
	}
}

// TestC41_Event_GoesToItsClusterOnly: an event goes to all subscribers of its cluster and data type, and to no
// other subscriber.
func TestC41_Event_GoesToItsClusterOnly(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	source := startSource(t, src1, b.addr)
	agent1, agent2 := startAgent(t, cluster1, b.addr), startAgent(t, cluster2, b.addr)
	second := b.connect(t, pki.Agent, cluster1).subscribe(transport.Filter{Cluster: cluster1})
	id1, id2 := source.create(newWork(cluster1, "w", 1)), source.create(newWork(cluster2, "w", 1))
	agent1.awaitAdded(id1)
	agent2.awaitAdded(id2)
	second.await(t, 0, "the event", about(id1))
	if got := agent1.since(0, ofID("received", id2)); len(got) != 0 {
		t.Errorf("agent 1 got %v", got)
	}
	if got := agent2.since(0, ofID("received", id1)); len(got) != 0 {
		t.Errorf("agent 2 got %v", got)
	}
	if got := second.since(0, about(id2)); len(got) != 0 {
		t.Errorf("the second stream of cluster 1 got %v", got)
	}
	if got := b.wire.since(0, sentTo(identity.Agent, cluster2, id1)); len(got) != 0 {
		t.Errorf("the broker sent agent 2 %v", got)
	}
}

// TestC42_Heartbeats_KeepOCMAgents: idle streams get heartbeats. An OCM agent that requires them stays
// connected, and one that gets none reconnects.
func TestC42_Heartbeats_KeepOCMAgents(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, interval, timeout time.Duration) (*ourBroker, *program) {
		b := startBroker(t, func(c *broker.Config) { c.Heartbeat = interval })
		config := clientConfig(t, pki.Agent, cluster1, b.addr, fmt.Sprintf("serverHealthinessTimeout: %s\n", timeout))
		return b, start(t, "ocmagent", "-config", config, "-cluster", cluster1, "-agent-id", "a")
	}
	t.Run("often enough", func(t *testing.T) {
		t.Parallel()
		b, agent := start(t, 100*time.Millisecond, 4*time.Second)
		b.awaitMetric(t, 50, "hawser_broker_heartbeats_total") // 5 s
		if n := b.metric(t, "hawser_broker_subscribes_total"); n != 1 {
			t.Errorf("the agent subscribed %v times, want once", n)
		}
		if got := agent.since(0, what("received")); len(got) != 0 {
			t.Errorf("the agent took heartbeats for events: %v", got)
		}
	})
	t.Run("too seldom", func(t *testing.T) {
		t.Parallel()
		b, _ := start(t, time.Hour, 200*time.Millisecond)
		b.awaitMetric(t, 2, "hawser_broker_subscribes_total")
	})
	t.Run("form", func(t *testing.T) {
		t.Parallel()
		b := startBroker(t, func(c *broker.Config) { c.Heartbeat = 10 * time.Millisecond })
		ctx, client := b.stub(t, pki.Source, src1)
		stream, err := client.Subscribe(ctx, &cloudeventsv1.SubscriptionRequest{Source: src1, DataType: works})
		if err != nil {
			t.Fatal(err)
		}
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetType() != codec.TypeHeartbeat || e.GetId() == "" || e.GetSpecVersion() != "1.0" {
			t.Errorf("heartbeat %v, want type %s with an id and a specversion", e, codec.TypeHeartbeat)
		}
	})
}

// TestC44_StalledSubscriber_BlocksNoOther: a subscriber that does not read blocks no other client, including the
// client that publishes to it.
func TestC44_StalledSubscriber_BlocksNoOther(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	ctx, client := b.stub(t, pki.Agent, cluster1)
	stuck, err := client.Subscribe(ctx, &cloudeventsv1.SubscriptionRequest{ClusterName: cluster1, DataType: works})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stuck.Header(); err != nil {
		t.Fatal(err)
	}
	agent, source := startAgent(t, cluster2, b.addr), startSource(t, src1, b.addr)
	src := b.connect(t, pki.Source, src1)
	const n, size = 100, 100 << 10 // far more than all flow-control windows on the path
	for i := range n {
		id := fmt.Sprintf("big%d", i)
		w := withID(id, newWork(cluster1, id, 1))
		w.Spec.Workload.Manifests[0] = configMap(id, "1", size)
		src.publishWork(src1, codec.CreateRequest, w)
	}
	id := source.create(newWork(cluster2, "w", 1))
	agent.awaitAdded(id)
	agent.report("w", "is there")
	source.awaitStatus(t, id, "is there")
	if waiting := b.metric(t, queuedRecords); waiting == 0 {
		t.Error("nothing waits for the subscriber that does not read: the test is too small")
	}
	// When the subscriber reads, it receives everything.
	for range n {
		if _, err := stuck.Recv(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestC47_InvalidEvent_IsRefused: an invalid event is rejected, and the broker continues.
func TestC47_InvalidEvent_IsRefused(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	ctx, client := b.stub(t, pki.Source, src1)
	text := func(s string) *cloudeventsv1.CloudEvent_CloudEventAttributeValue {
		return &cloudeventsv1.CloudEvent_CloudEventAttributeValue{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
	}
	valid := func() *cloudeventsv1.CloudEvent {
		e, err := codec.ToProto(specOf(t, src1, codec.CreateRequest, withID("w", newWork(cluster1, "w", 1))))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for name, change := range map[string]func(*cloudeventsv1.PublishRequest){
		"unknown data type": func(r *cloudeventsv1.PublishRequest) { r.Event.Type = "example.com.v1.things.spec.create_request" },
		"no type":           func(r *cloudeventsv1.PublishRequest) { r.Event.Type = "create_request" },
		"absent event":      func(r *cloudeventsv1.PublishRequest) { r.Event = nil },
		"empty event":       func(r *cloudeventsv1.PublishRequest) { r.Event = &cloudeventsv1.CloudEvent{} },
		"attributes absent": func(r *cloudeventsv1.PublishRequest) { r.Event.Attributes = nil },
		"attribute without value": func(r *cloudeventsv1.PublishRequest) {
			r.Event.Attributes["ce-x"] = &cloudeventsv1.CloudEvent_CloudEventAttributeValue{}
		},
		"version is no number": func(r *cloudeventsv1.PublishRequest) { r.Event.Attributes["ce-resourceversion"] = text("new") },
		"no version":           func(r *cloudeventsv1.PublishRequest) { delete(r.Event.Attributes, "ce-resourceversion") },
		"data in the wrong member": func(r *cloudeventsv1.PublishRequest) {
			r.Event.Data = &cloudeventsv1.CloudEvent_TextData{TextData: "{}"}
		},
	} {
		r := &cloudeventsv1.PublishRequest{Event: valid()}
		change(r)
		if _, err := client.Publish(ctx, r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
	if _, err := client.Publish(ctx, &cloudeventsv1.PublishRequest{Event: valid()}); err != nil {
		t.Errorf("a valid event after all of these: %v", err)
	}
}

// TestC47_OCMSource_GetsTheReason: an OCM source gets the reason of a rejected event as text.
func TestC47_OCMSource_GetsTheReason(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	// The certificate is that of src2. The source's own claim does not count.
	imposter := start(t, "ocmsource", "-config", clientConfig(t, pki.Source, src2, b.addr, ""), "-source-id", src1)
	w := newWork(cluster1, "w", 1)
	l := imposter.try(command{Do: "create", Namespace: w.Namespace, Work: w})
	if l.Reason != "PublishError" || !strings.Contains(l.Error, "PermissionDenied") || !strings.Contains(l.Error, src1) {
		t.Errorf("error %q (%s), want PermissionDenied that names %s", l.Error, l.Reason, src1)
	}
}
