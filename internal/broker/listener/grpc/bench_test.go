package grpc_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// benchEvent returns a spec event of about 4 KiB.
func benchEvent(b *testing.B, source, cluster, id string, version int32) *cloudeventsv1.CloudEvent {
	b.Helper()
	e, err := codec.Builder{
		ID: "1", Time: time.Unix(7, 0), Source: source, Cluster: cluster,
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte(`{"manifests":["` + strings.Repeat("x", 3600) + `"]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: id, codec.ExtResourceVersion: version,
			codec.ExtMetadata: fmt.Sprintf(`{"name":%q,"namespace":%q,"uid":%q,"generation":%d}`, id, cluster, id, version),
		},
	}.Event()
	if err != nil {
		b.Fatal(err)
	}
	p, err := codec.ToProto(e)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

const publishers = 64

// BenchmarkPublish uses a store in memory, so that the disk does not hide the cost of the broker. Compare it
// with BenchmarkEcho.
func BenchmarkPublish(b *testing.B) {
	src := identity.Identity{Role: identity.Source, Name: "src"}
	k := testkit.StartBroker(b, testkit.Options{Port: true, Known: []identity.Identity{src}, Broker: broker.Config{}})
	c := cloudeventsv1.NewCloudEventServiceClient(dial(b, k.Addr, k.CA.Client(src)))
	spread(b, func(worker, version int) error {
		e := benchEvent(b, "src", "c1", fmt.Sprint("w", worker), int32(version+1))
		_, err := c.Publish(b.Context(), &cloudeventsv1.PublishRequest{Event: e})
		return err
	})
}

// BenchmarkEcho is the lower bound: the same request and TLS with an empty handler, on a default gRPC server.
func BenchmarkEcho(b *testing.B) {
	src := identity.Identity{Role: identity.Source, Name: "src"}
	ca := testkit.NewCA(b)
	g := ggrpc.NewServer(ggrpc.Creds(ca.Server()))
	cloudeventsv1.RegisterCloudEventServiceServer(g, echo{})
	l := freePort(b)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }() // the result is received below
	defer func() {
		g.Stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	c := cloudeventsv1.NewCloudEventServiceClient(dial(b, l.Addr().String(), ca.Client(src)))
	spread(b, func(worker, version int) error {
		e := benchEvent(b, "src", "c1", fmt.Sprint("w", worker), int32(version+1))
		_, err := c.Publish(b.Context(), &cloudeventsv1.PublishRequest{Event: e})
		return err
	})
}

type echo struct {
	cloudeventsv1.UnimplementedCloudEventServiceServer
}

func (echo) Publish(context.Context, *cloudeventsv1.PublishRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// spread runs b.N calls with concurrent publishers, each with one call in flight.
func spread(b *testing.B, call func(worker, n int) error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for i := range publishers {
		wg.Go(func() {
			for n := 0; next.Add(1) <= int64(b.N); n++ {
				if err := call(i, n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "publishes/s")
}

// BenchmarkDeliver: one publish, one delivery, closed loop over many sessions.
func BenchmarkDeliver(b *testing.B) {
	for _, n := range []int{100, 3000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkDeliver(b, n) })
	}
}

func benchmarkDeliver(b *testing.B, sessions int) {
	src := identity.Identity{Role: identity.Source, Name: "src"}
	k := testkit.StartBroker(b, testkit.Options{Port: true, Known: []identity.Identity{src}})
	before := heap()
	arrived := make([]chan struct{}, sessions)
	var wg sync.WaitGroup
	gate := make(chan struct{}, 16)
	for i := range sessions {
		arrived[i] = make(chan struct{}, 1)
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			agent := identity.Identity{Role: identity.Agent, Name: fmt.Sprint("c", i)}
			stream, err := cloudeventsv1.NewCloudEventServiceClient(dial(b, k.Addr, k.CA.Client(agent))).Subscribe(b.Context(),
				&cloudeventsv1.SubscriptionRequest{ClusterName: agent.Name, DataType: codec.ManifestBundles.String()})
			if err == nil {
				_, err = stream.Header()
			}
			if err != nil {
				b.Error(err)
				return
			}
			go func() { // ends with its connection
				for {
					e, err := stream.Recv()
					if err != nil {
						return
					}
					if e.GetType() != codec.TypeHeartbeat {
						arrived[i] <- struct{}{}
					}
				}
			}()
		})
	}
	wg.Wait()
	perSession := float64(heap()-before) / 1024 / float64(sessions)
	c := cloudeventsv1.NewCloudEventServiceClient(dial(b, k.Addr, k.CA.Client(src)))
	var at atomic.Int64
	spread(b, func(worker, n int) error {
		i := int(at.Add(1)) % sessions
		e := benchEvent(b, "src", fmt.Sprint("c", i), fmt.Sprint("w", worker), int32(n+1))
		if _, err := c.Publish(b.Context(), &cloudeventsv1.PublishRequest{Event: e}); err != nil {
			return err
		}
		<-arrived[i]
		return nil
	})
	b.ReportMetric(perSession, "KiB/session") // both ends of the connection
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
