package session_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// canceling is a broker that cancels the first subscription, as a proxy may do.
type canceling struct {
	cloudeventsv1.UnimplementedCloudEventServiceServer
	subscriptions atomic.Int32
}

func (c *canceling) Subscribe(_ *cloudeventsv1.SubscriptionRequest, out ggrpc.ServerStreamingServer[cloudeventsv1.CloudEvent]) error {
	n := c.subscriptions.Add(1)
	if err := out.SendHeader(metadata.Pairs(codec.HeaderSubscriptionID, "s")); err != nil {
		return err
	}
	if n == 1 {
		return status.Error(codes.Canceled, "context canceled")
	}
	<-out.Context().Done()
	return out.Context().Err()
}

// TestSession_CanceledIsAReasonToConnectAgain: over real gRPC, a stream that the broker or a proxy cancelled is
// not treated as the session's own end.
func TestSession_CanceledIsAReasonToConnectAgain(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := ggrpc.NewServer()
	cloudeventsv1.RegisterCloudEventServiceServer(server, &canceling{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // served is received from at the end

	dialer, err := grpc.NewDialer(grpc.Options{Target: l.Addr().String(), Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	subscribed := make(chan struct{}, 2)
	var ends []error
	s := session.New(session.Config{
		Dialer: dialer, Filter: filter, Rand: func() float64 { return 0 }, Log: slog.New(slog.DiscardHandler),
		Handler: &diary{subscribed: func(context.Context, transport.Accepted) ([]codec.Event, error) {
			subscribed <- struct{}{}
			return nil, nil
		}, disconnected: func(err error) { ends = append(ends, err) }},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // done is received from below
	for range 2 {
		select {
		case <-subscribed:
		case <-time.After(20 * time.Second):
			t.Fatalf("not subscribed again; %v", s.Err())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	server.Stop()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if len(ends) != 2 || transport.CodeOf(ends[0]) != transport.CodeUnavailable || !errors.Is(ends[1], context.Canceled) {
		t.Errorf("connections ended with %v", ends)
	}
}
