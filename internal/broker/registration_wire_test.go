package broker_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// TestRegistration_ErrorsOnTheWire checks that an OCM client reads from the status message through the port
// what was rejected and why, for a message of any length.
func TestRegistration_ErrorsOnTheWire(t *testing.T) {
	source := identity.Identity{Role: identity.Source, Name: "hub"}
	b := testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Registration: "hub"}, Port: true, Known: []identity.Identity{source}})
	serveRefusals(t, b.PortDialer(source), strings.Repeat(`a "quoted" <reason>, `, 200))
	client := dial(t, b, identity.Identity{Role: identity.Agent, Name: "c1"})

	for name, c := range map[string]struct {
		event []byte
		code  codes.Code
		want  codec.APIError
	}{
		"the broker refuses": {leaseOf("c1", ""), codes.PermissionDenied, codec.APIError{Code: 403, Reason: "Forbidden", Message: "the hub has not accepted cluster c1"}},
		"its rules refuse":   {joinOf("c2"), codes.PermissionDenied, codec.APIError{Code: 403, Reason: "Forbidden", Message: `agent/c1 publishes for cluster "c2"`}},
		"the hub refuses":    {joinOf("c1"), codes.InvalidArgument, codec.APIError{Code: 422, Reason: "Invalid", Message: `a "quoted" <reason>, `}},
	} {
		e, err := codec.Unmarshal(c.event)
		if err != nil {
			t.Fatal(err)
		}
		event, err := codec.ToProto(e)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Publish(t.Context(), &cloudeventsv1.PublishRequest{Event: event})
		st := status.Convert(err)
		got, ok := codec.ParseAPIError(st.Message())
		if !ok || st.Code() != c.code || got.Code != c.want.Code || got.Reason != c.want.Reason || !strings.HasPrefix(got.Message, c.want.Message) {
			t.Errorf("%s: %v", name, st)
		}
	}
}

// dial returns a connected OCM client.
func dial(t *testing.T, b *testkit.Broker, id identity.Identity) cloudeventsv1.CloudEventServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(b.Addr, grpc.WithTransportCredentials(b.CA.Client(id)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return cloudeventsv1.NewCloudEventServiceClient(conn)
}

// serveRefusals runs a source that rejects all requests of agents until the test ends. It returns when the
// source is connected.
func serveRefusals(t *testing.T, d transport.Dialer, message string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := d.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan transport.Accepted, 1), make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		var accepted transport.Accepted
		err := conn.Subscribe(ctx, transport.Subscription{
			Filter: transport.Filter{Source: "hub", DataType: codec.Registrations}, Hello: transport.Hello{Protocol: transport.Protocol},
		}, func(a transport.Accepted) {
			accepted = a
			ready <- a
		}, func(ctx context.Context, e codec.Event) error {
			r, err := codec.ParseRegistrationRequest(e)
			if err != nil {
				return err
			}
			refusal := codec.APIError{Code: 422, Reason: "Invalid", Message: message}
			answer, err := codec.NewRegistrationAnswer(codec.SyncParams{ID: "a", Time: time.Unix(1_700_000_000, 0), Source: "hub", Owner: "hub"},
				&hawserv1.RegistrationAnswer{Id: r.GetId(), Error: statusOf(refusal)})
			if err == nil {
				_, err = conn.Publish(ctx, answer, accepted.SubscriptionID)
			}
			return err
		})
		if ctx.Err() == nil {
			t.Errorf("the source ended: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = conn.Close()
	})
	select {
	case <-ready:
	case <-done:
	}
}

// statusOf returns the Kubernetes Status with which a hub rejects a request.
func statusOf(e codec.APIError) []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return b
}
