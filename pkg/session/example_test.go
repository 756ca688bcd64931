package session_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

// shop is a program that owns works.
type shop struct {
	log        *slog.Logger
	subscribed chan struct{}
	statuses   chan manifestwork.StatusReport
}

// Hello: a Hawser client without a cursor gets all statuses at the start.
func (s *shop) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }

func (s *shop) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	s.subscribed <- struct{}{}
	// A program that stores statuses would request the changed ones here.
	return nil, nil
}

func (s *shop) Handle(ctx context.Context, e codec.Event) error {
	status, err := manifestwork.DecodeStatus(e)
	if err != nil {
		// Another connection would deliver the same event.
		s.log.ErrorContext(ctx, "status dropped", "error", err)
		return nil
	}
	s.statuses <- status
	return nil
}

func (s *shop) Disconnected(error) {}

// A program publishes a work for cluster1 and waits until it is applied.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	// In a real program:
	//
	//	credentials, err := identity.Files{CA: "ca.crt", Cert: "shop.crt", Key: "shop.key"}.Client("", onError)
	//	dialer, err := grpc.NewDialer(grpc.Options{Target: "broker.example:8090", Credentials: credentials})
	dialer := mem.New(&appliesAll{published: make(chan []byte, 1)}, transport.Peer{Role: "source", Name: "shop"})

	log := slog.New(slog.DiscardHandler)
	client := &shop{log: log, subscribed: make(chan struct{}, 1), statuses: make(chan manifestwork.StatusReport, 1)}
	s := session.New(session.Config{
		Dialer:  dialer,
		Filter:  transport.Filter{Source: "shop", DataType: codec.ManifestBundles},
		Handler: client,
		Log:     log,
	})
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-client.subscribed

	event, err := manifestwork.EncodeSpec(&workv1.ManifestWork{
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
		fmt.Println(err)
		return
	}
	receipt, err := s.Publish(ctx, event)
	fmt.Println("publish:", receipt.Outcome, err)

	status := <-client.statuses
	fmt.Println("status of version", status.Version, "on", status.Cluster)
	for _, c := range status.Status.Conditions {
		fmt.Println(" ", c.Type, c.Status)
	}
	cancel()
	fmt.Println("run:", <-done)
	// Output:
	// publish: accepted <nil>
	// status of version 1 on cluster1
	//   Applied True
	// run: <nil>
}

// appliesAll is a fake of a broker and an agent.
type appliesAll struct{ published chan []byte }

func (a *appliesAll) Publish(_ context.Context, _ transport.Peer, event []byte, _ string) (transport.Receipt, error) {
	a.published <- event
	return transport.Receipt{Outcome: "accepted"}, nil
}

func (a *appliesAll) Subscribe(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
	if err := out.Accept(transport.Accepted{SubscriptionID: "s1", Protocol: transport.Protocol, Resync: "list"}); err != nil {
		return err
	}
	select {
	case event := <-a.published:
		status, err := applied(event)
		if err != nil {
			return err
		}
		if err := out.Send(status); err != nil {
			return err
		}
	case <-ctx.Done():
	}
	<-ctx.Done()
	return ctx.Err()
}

// applied returns the status with which the agent answers a spec.
func applied(spec []byte) ([]byte, error) {
	envelope, err := codec.ParseEnvelope(spec)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(map[string]any{"conditions": []metav1.Condition{{Type: "Applied", Status: metav1.ConditionTrue}}})
	if err != nil {
		return nil, err
	}
	e := codec.Event{}
	e.SetSpecVersion("1.0")
	e.SetID("2")
	e.SetSource("cluster1-agent")
	e.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String())
	e.SetExtension(codec.ExtClusterName, envelope.Cluster)
	e.SetExtension(codec.ExtOriginalSource, envelope.Source)
	e.SetExtension(codec.ExtResourceID, envelope.ResourceID)
	e.SetExtension(codec.ExtResourceVersion, int32(envelope.Version))
	if err := e.SetData("application/json", json.RawMessage(data)); err != nil {
		return nil, err
	}
	return codec.Marshal(e)
}
