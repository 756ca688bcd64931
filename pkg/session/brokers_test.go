package session_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// replica is one of several brokers, over gRPC and TCP.
type replica struct {
	cloudeventsv1.UnimplementedCloudEventServiceServer
	addr   string
	server *ggrpc.Server
	refuse error      // of each subscription; may be nil
	end    chan error // ends a subscription
}

// Subscribe implements cloudeventsv1.CloudEventServiceServer.
func (r *replica) Subscribe(_ *cloudeventsv1.SubscriptionRequest, out ggrpc.ServerStreamingServer[cloudeventsv1.CloudEvent]) error {
	if r.refuse != nil {
		return grpc.Status(r.refuse).Err()
	}
	if err := out.SendHeader(metadata.Pairs(codec.HeaderSubscriptionID, r.addr)); err != nil {
		return err
	}
	select {
	case err := <-r.end:
		return grpc.Status(err).Err()
	case <-out.Context().Done():
		return out.Context().Err()
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startReplica starts a replica that runs until the test ends or stop is called.
func startReplica(t *testing.T, refuse error) *replica {
	t.Helper()
	l := listen(t)
	r := &replica{addr: l.Addr().String(), server: ggrpc.NewServer(), refuse: refuse, end: make(chan error)}
	cloudeventsv1.RegisterCloudEventServiceServer(r.server, r)
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(l) }() // served is received from at the end
	t.Cleanup(func() {
		r.server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return r
}

// startSilent starts a server that accepts connections and sends nothing. It returns its address.
func startSilent(t *testing.T) string {
	t.Helper()
	l := listen(t)
	done := make(chan struct{})
	go func() { // ends with the listener
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c) // until the client gives up
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close() // ends Accept
		<-done
	})
	return l.Addr().String()
}

// connecting is a session whose subscriptions arrive at a channel, by the address of their broker.
func connecting(t *testing.T, addresses ...string) (at func() string) {
	t.Helper()
	dialer, err := grpc.NewDialer(grpc.Options{Target: strings.Join(addresses, ","), Insecure: true, DialTimeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	brokers := make(chan string, 1)
	s := session.New(session.Config{
		Dialer: dialer, Filter: filter, Log: slog.New(slog.DiscardHandler),
		Handler: &diary{subscribed: func(ctx context.Context, a transport.Accepted) ([]codec.Event, error) {
			if a.Broker != a.SubscriptionID {
				t.Errorf("the connection to %s is shown as one to %s", a.SubscriptionID, a.Broker)
			}
			select {
			case brokers <- a.Broker:
			case <-ctx.Done():
			}
			return nil, nil
		}},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // done is received from at the end
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return func() string {
		t.Helper()
		select {
		case addr := <-brokers:
			return addr
		case <-time.After(30 * time.Second):
			t.Fatalf("not subscribed; %v", s.Err())
			return ""
		}
	}
}

// TestSession_LosesBrokers: of three brokers one after the other is lost. The session uses another one each time.
func TestSession_LosesBrokers(t *testing.T) {
	replicas := map[string]*replica{}
	var addresses []string
	for range 3 {
		r := startReplica(t, nil)
		replicas[r.addr] = r
		addresses = append(addresses, r.addr)
	}
	at := connecting(t, addresses...)
	for len(replicas) > 1 {
		addr := at()
		if replicas[addr] == nil {
			t.Fatalf("subscribed at %s, which is lost", addr)
		}
		replicas[addr].server.Stop()
		delete(replicas, addr)
	}
	if addr := at(); replicas[addr] == nil {
		t.Errorf("subscribed at %s, which is lost", addr)
	}
}

// TestSession_MovesWhenAsked: a broker that shuts down ends the subscription with the advice to use another server.
func TestSession_MovesWhenAsked(t *testing.T) {
	a, b := startReplica(t, nil), startReplica(t, nil)
	at := connecting(t, a.addr, b.addr)
	first, second := a, b
	if at() == b.addr {
		first, second = b, a
	}
	first.end <- &transport.Error{Code: transport.CodeUnavailable, Next: transport.NextUseAnotherServer, Message: "the broker is about to shut down"}
	if addr := at(); addr != second.addr {
		t.Errorf("subscribed at %s again", addr)
	}
}

// TestSession_FindsTheBrokerThatWorks: of four brokers one is down, one hangs in the handshake, and one rejects
// subscriptions.
func TestSession_FindsTheBrokerThatWorks(t *testing.T) {
	down := listen(t)
	if err := down.Close(); err != nil {
		t.Fatal(err)
	}
	rejects := startReplica(t, &transport.Error{Code: transport.CodeUnavailable, Next: transport.NextUseAnotherServer, Message: "the store cannot be reached"})
	good := startReplica(t, nil)
	if addr := connecting(t, down.Addr().String(), startSilent(t), rejects.addr, good.addr)(); addr != good.addr {
		t.Errorf("subscribed at %s", addr)
	}
}
