package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

// A program with its own credentials for a cluster embeds an agent.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	statuses := make(chan manifestwork.StatusReport, 16)

	// In a real program, with a *rest.Config of the cluster:
	//
	//	dialer, err := grpc.NewDialer(grpc.Options{Target: "broker.example:8090", Credentials: credentials})
	//	client, err := kubeclient.NewKube(kubeclient.KubeConfig{REST: restConfig})
	//	metadata := drift.Metadata(client.Metadata())
	dialer := mem.New(oneWork{statuses}, transport.Peer{Role: "agent", Name: "cluster1"})
	client := clustertest.New()

	a, err := agent.New(agent.Config{
		Cluster: "cluster1", HubIdentity: "hub.example", Dialer: dialer, Client: client, Metadata: client.Metadata,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()

	for applied := false; !applied; {
		status := <-statuses
		for _, c := range status.Status.Conditions {
			applied = applied || c.Type == workv1.WorkApplied && c.Status == metav1.ConditionTrue
		}
	}
	made := client.Look(client.Ref("v1", "ConfigMap", "default", "hello"))
	fmt.Println(made.GetKind(), made.GetName(), made.Object["data"])
	cancel()
	fmt.Println("run:", <-done)
	// Output:
	// ConfigMap hello map[text:hello]
	// run: <nil>
}

// oneWork stands for a broker that has one work for the cluster.
type oneWork struct {
	statuses chan manifestwork.StatusReport
}

func (o oneWork) Publish(_ context.Context, _ transport.Peer, event []byte, _ string) (transport.Receipt, error) {
	e, err := codec.Unmarshal(event)
	if err != nil {
		return transport.Receipt{}, err
	}
	if status, err := manifestwork.DecodeStatus(e); err == nil { // the others are resync requests and acks
		o.statuses <- status
	}
	return transport.Receipt{Outcome: "accepted"}, nil
}

func (o oneWork) Subscribe(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
	if err := out.Accept(transport.Accepted{SubscriptionID: "s1", Protocol: transport.Protocol, Resync: "list"}); err != nil {
		return err
	}
	e, err := manifestwork.EncodeSpec(&workv1.ManifestWork{
		ObjectMeta: metav1.ObjectMeta{
			Name: "hello", Namespace: "cluster1", Generation: 1,
			UID: "0d4ac0a4-5c1c-4f2b-9d8e-0f1e2d3c4b5a",
		},
		Spec: workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{
			RawExtension: runtime.RawExtension{Raw: []byte(`{
				"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": {"name": "hello", "namespace": "default"},
				"data": {"text": "hello"}
			}`)},
		}}}},
	}, manifestwork.SpecParams{ID: "1", Now: time.Now(), Source: "shop", Action: codec.CreateRequest})
	if err != nil {
		return err
	}
	e.SetExtension(codec.ExtRevision, "1")
	event, err := codec.Marshal(e)
	if err != nil {
		return err
	}
	if err := out.Send(event); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}
