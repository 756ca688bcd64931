package grpc_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

func publishEverything(ctx context.Context, cc *ggrpc.ClientConn, scope string) (all []attempt) {
	c := cloudeventsv1.NewCloudEventServiceClient(cc)
	publish := func(e codec.Event, err error) error {
		if err == nil {
			var p *cloudeventsv1.CloudEvent
			if p, err = codec.ToProto(e); err == nil {
				_, err = c.Publish(ctx, &cloudeventsv1.PublishRequest{Event: p})
			}
		}
		return err
	}
	for _, t := range eventTypes(codec.ManifestBundles) {
		all = append(all, attempt{fmt.Sprintf("publish %s %s", t.Subresource, t.Action), publish(eventOf(t, scope))})
	}
	for _, d := range codec.RegistrationTypes() {
		for _, t := range eventTypes(d) {
			all = append(all, attempt{"publish " + t.String(), answered(publish(eventOf(t, scope)))})
		}
	}
	e, err := codec.NewRelease("1", time.Now(), scope, scope)
	all = append(all, attempt{"publish release", publish(e, err)})
	return append(all, publishSync(publish, scope)...)
}

// eventOf returns an event that is valid except for its publisher.
func eventOf(t codec.EventType, scope string) (codec.Event, error) {
	x := map[string]any{
		codec.ExtResourceID: "w", codec.ExtResourceVersion: 1, codec.ExtSequenceID: "1",
		codec.ExtMetadata: fmt.Sprintf(`{"name":"w","namespace":%q}`, scope),
	}
	if t.Subresource == codec.Spec && t.Action == codec.DeleteRequest {
		x[codec.ExtDeletionTimestamp] = time.Now()
	}
	return codec.Builder{
		ID: "1", Time: time.Now(), Source: scope, Cluster: scope, Extensions: x,
		Type: t.String(), ContentType: codec.ContentTypeJSON, Data: fmt.Appendf(nil, `{"metadata":{"name":"managed-cluster-lease","namespace":%q}}`, scope),
	}.Event()
}

// answered returns nil for errors that a permitted call gets because there is no hub, object or subscription.
func answered(err error) error {
	switch code, text := status.Code(err), status.Convert(err).Message(); {
	case code == codes.InvalidArgument, code == codes.NotFound, strings.Contains(text, "ServiceUnavailable"), strings.Contains(text, "no running subscription"):
		return nil
	}
	return err
}

// publishSync publishes sync events without a subscription. The error that names the missing subscription means
// that the publish was permitted.
func publishSync(publish func(codec.Event, error) error, scope string) (all []attempt) {
	p := codec.SyncParams{ID: "1", Time: time.Now(), Source: scope, Cluster: scope}
	cursor := codec.Cursor{StoreID: "e", Incarnation: "t"}
	for what, event := range map[string]func() (codec.Event, error){
		"ack":               func() (codec.Event, error) { return codec.NewAck(p, codec.Ack{Cursor: cursor}) },
		"inventory request": func() (codec.Event, error) { return codec.NewInventoryRequest(p, codec.InventoryRequest{}) },
		"compared":          func() (codec.Event, error) { return codec.NewSyncReport(p, codec.SyncReport{AllClusters: true}) },
		"checkpoint":        func() (codec.Event, error) { return codec.NewCheckpoint(p, codec.Checkpoint{Cursor: cursor}) },
		"inventory":         func() (codec.Event, error) { return codec.NewInventory(p, codec.Inventory{Revision: 1}) },
		"request":           func() (codec.Event, error) { return codec.NewRegistrationRequest(p, &hawserv1.RegistrationRequest{}) },
		"objects":           func() (codec.Event, error) { return codec.NewRegistrationObjects(p, &hawserv1.RegistrationObjects{}) },
		"answer":            func() (codec.Event, error) { return codec.NewRegistrationAnswer(p, &hawserv1.RegistrationAnswer{}) },
		"keys":              func() (codec.Event, error) { return codec.NewRegistrationKeys(p, &hawserv1.RegistrationKeys{}) },
	} {
		all = append(all, attempt{"publish " + what, answered(publish(event()))})
	}
	return all
}

func subscribeBothWays(ctx context.Context, cc *ggrpc.ClientConn, scope string) (all []attempt) {
	c := cloudeventsv1.NewCloudEventServiceClient(cc)
	requests := map[string]*cloudeventsv1.SubscriptionRequest{
		"subscribe to specs":    {ClusterName: scope, DataType: codec.ManifestBundles.String()},
		"subscribe to statuses": {Source: scope, DataType: codec.ManifestBundles.String()},
		"subscribe to requests": {Source: scope, DataType: codec.Registrations.String()},
	}
	for _, d := range codec.RegistrationTypes() {
		requests["subscribe to "+d.String()] = &cloudeventsv1.SubscriptionRequest{ClusterName: scope, DataType: d.String()}
	}
	for what, r := range requests {
		ctx, cancel := context.WithCancel(ctx)
		stream, err := c.Subscribe(ctx, r)
		if err == nil {
			var header map[string][]string
			if header, err = stream.Header(); err == nil && len(header[codec.HeaderSubscriptionID]) != 1 {
				_, err = stream.Recv() // returns the reason
			}
		}
		cancel()
		all = append(all, attempt{what, err})
	}
	return all
}

func checkHealth(ctx context.Context, cc *ggrpc.ClientConn, _ string) []attempt {
	_, err := grpc_health_v1.NewHealthClient(cc).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return []attempt{{"health check", err}}
}

func listHealth(ctx context.Context, cc *ggrpc.ClientConn, _ string) []attempt {
	_, err := grpc_health_v1.NewHealthClient(cc).List(ctx, &grpc_health_v1.HealthListRequest{})
	return []attempt{{"health list", err}}
}

func watchHealth(ctx context.Context, cc *ggrpc.ClientConn, _ string) []attempt {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := grpc_health_v1.NewHealthClient(cc).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	return []attempt{{"health watch", err}}
}

func reflectV1(ctx context.Context, cc *ggrpc.ClientConn, _ string) []attempt {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	if err == nil {
		// A rejection may arrive before the request is sent; Recv returns it.
		_ = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
		_, err = stream.Recv()
	}
	return []attempt{{"reflection", err}}
}

func reflectV1Alpha(ctx context.Context, cc *ggrpc.ClientConn, _ string) []attempt {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := grpc_reflection_v1alpha.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	if err == nil {
		// A rejection may arrive before the request is sent; Recv returns it.
		//nolint:staticcheck // deprecated, and served for older clients
		_ = stream.Send(&grpc_reflection_v1alpha.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1alpha.ServerReflectionRequest_ListServices{}})
		_, err = stream.Recv()
	}
	return []attempt{{"reflection", err}}
}
