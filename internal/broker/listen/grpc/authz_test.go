package grpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// caller is somebody with a connection to the port.
type caller struct {
	name  string // role, or a key of refusals
	cc    *ggrpc.ClientConn
	scope string // the cluster of the agent, the id of the source
}

// probes call each RPC as a party that claims the scope, and return what came
// of it. An RPC that is served and has no probe fails the test.
var probes = map[string]func(ctx context.Context, c *ggrpc.ClientConn, scope string) []attempt{
	"/io.cloudevents.v1.CloudEventService/Publish":                   publishEverything,
	"/io.cloudevents.v1.CloudEventService/Subscribe":                 subscribeBothWays,
	"/grpc.health.v1.Health/Check":                                   checkHealth,
	"/grpc.health.v1.Health/List":                                    listHealth,
	"/grpc.health.v1.Health/Watch":                                   watchHealth,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      reflectV1,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": reflectV1Alpha,

	authz.ListClusters: listed("list clusters", func(ctx context.Context, c inspector) (ggrpc.ServerStreamingClient[hawserv1.ListClustersResponse], error) {
		return c.ListClusters(ctx, &hawserv1.ListClustersRequest{})
	}),
	authz.ListWorks: listed("list works", func(ctx context.Context, c inspector) (ggrpc.ServerStreamingClient[hawserv1.ListWorksResponse], error) {
		return c.ListWorks(ctx, &hawserv1.ListWorksRequest{})
	}),
	authz.ListOrphans: listed("list orphans", func(ctx context.Context, c inspector) (ggrpc.ServerStreamingClient[hawserv1.ListOrphansResponse], error) {
		return c.ListOrphans(ctx, &hawserv1.ListOrphansRequest{})
	}),
	authz.ListLimits: listed("list limits", func(ctx context.Context, c inspector) (ggrpc.ServerStreamingClient[hawserv1.ListLimitsResponse], error) {
		return c.ListLimits(ctx, &hawserv1.ListLimitsRequest{})
	}),
	authz.Backup: listed("backup", func(ctx context.Context, c inspector) (ggrpc.ServerStreamingClient[hawserv1.BackupResponse], error) {
		return c.Backup(ctx, &hawserv1.BackupRequest{})
	}),
	authz.ListDenials: listed("list denials", func(ctx context.Context, c inspector) (ggrpc.ServerStreamingClient[hawserv1.ListDenialsResponse], error) {
		return c.ListDenials(ctx, &hawserv1.ListDenialsRequest{})
	}),
	authz.Deny: asked("deny", func(ctx context.Context, c inspector) error {
		_, err := c.Deny(ctx, &hawserv1.DenyRequest{Subject: "agent/nobody"})
		return err
	}),
	authz.Allow: asked("allow", func(ctx context.Context, c inspector) error {
		_, err := c.Allow(ctx, &hawserv1.AllowRequest{Subject: "agent/nobody"})
		return err
	}),
	authz.ForgetWork: asked("forget work", func(ctx context.Context, c inspector) error {
		_, err := c.ForgetWork(ctx, &hawserv1.ForgetWorkRequest{Cluster: "me", ResourceId: "nothing"})
		return err
	}),
	authz.ForgetCluster: asked("forget cluster", func(ctx context.Context, c inspector) error {
		_, err := c.ForgetCluster(ctx, &hawserv1.ForgetClusterRequest{Cluster: "nowhere"})
		return err
	}),
	authz.Adopt: asked("adopt", func(ctx context.Context, c inspector) error {
		_, err := c.Adopt(ctx, &hawserv1.AdoptRequest{Cluster: "me", ResourceId: "nothing", Source: "me"})
		return err
	}),
	authz.Approve: asked("approve", func(ctx context.Context, c inspector) error {
		_, err := c.Approve(ctx, &hawserv1.ApproveRequest{Source: "me", Cluster: "me"})
		return err
	}),
	authz.Resolve: asked("resolve", func(ctx context.Context, c inspector) error {
		_, err := c.Resolve(ctx, &hawserv1.ResolveRequest{Cluster: "me"}) // without a uid
		return err
	}),
}

type inspector = hawserv1.InspectionServiceClient

// asked probes a unary call of the inspection service. That there is nothing to
// do it with is an answer for those who may ask.
func asked(what string, call func(context.Context, inspector) error) func(context.Context, *ggrpc.ClientConn, string) []attempt {
	return func(ctx context.Context, cc *ggrpc.ClientConn, _ string) []attempt {
		err := call(ctx, hawserv1.NewInspectionServiceClient(cc))
		if code := status.Code(err); code == codes.NotFound || code == codes.InvalidArgument {
			err = nil
		}
		return []attempt{{what, err}}
	}
}

// listed probes a streaming call of it.
func listed[T any](what string, call func(context.Context, inspector) (ggrpc.ServerStreamingClient[T], error)) func(context.Context, *ggrpc.ClientConn, string) []attempt {
	return asked(what, func(ctx context.Context, c inspector) error {
		s, err := call(ctx, c)
		for err == nil {
			_, err = s.Recv()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
}

// attempt is one call: what was tried, and how it was answered.
type attempt struct {
	what string
	err  error
}

// verdicts says who may make a call in its own scope; everybody else, and these
// in a foreign scope, are refused.
var verdicts = map[string][]string{
	"publish spec create_request":    {"source"},
	"publish spec update_request":    {"source"},
	"publish spec delete_request":    {"source"},
	"publish spec resync_request":    {"agent"},
	"publish spec resync_response":   {"source"},
	"publish status create_request":  {"agent"},
	"publish status update_request":  {"agent"},
	"publish status delete_request":  {"agent"},
	"publish status resync_request":  {"source"},
	"publish status resync_response": {"agent"},
	"publish release":                {"source"},
	"publish ack":                    {"agent", "source"},
	"publish inventory request":      {"source"},
	"publish compared":               {"source"},
	"publish checkpoint":             {},
	"publish inventory":              {},
	"subscribe to specs":             {"agent"},
	"subscribe to statuses":          {"source"},
	"health check":                   {"agent", "source", "operator", "viewer"},
	"health list":                    {"agent", "source", "operator", "viewer"},
	"health watch":                   {"agent", "source", "operator", "viewer"},
	"reflection":                     {"agent", "source", "operator", "viewer"},
	"list clusters":                  {"operator", "viewer"},
	"list works":                     {"operator", "viewer"},
	"list orphans":                   {"operator", "viewer"},
	"list denials":                   {"operator", "viewer"},
	"deny":                           {"operator"},
	"allow":                          {"operator"},
	"list limits":                    {"operator", "viewer"},
	"backup":                         {"operator"},
	"forget work":                    {"operator"},
	"forget cluster":                 {"operator"},
	"adopt":                          {"operator"},
	"approve":                        {"operator"},
	"resolve":                        {"operator"},
}

// scoped reports whether a call concerns one party's works.
func scoped(what string) bool { return what[:3] == "pub" || what[:3] == "sub" }

// refusals are the answers to who may call nothing at all; a party whose role
// lacks the right gets PermissionDenied.
var refusals = map[string]codes.Code{
	"nobody": codes.Unauthenticated, "stranger": codes.Unauthenticated, "denied": codes.Unauthenticated, "denied certificate": codes.Unauthenticated,
	"several names": codes.Unauthenticated, "names in one": codes.Unauthenticated,
	"expired": codes.Unavailable, "not yet valid": codes.Unavailable, "other CA": codes.Unavailable,
}

// refused are those who hold a certificate that would make them an operator, or
// somebody else, but for one thing.
func refused(t *testing.T, b *testkit.Broker) (all []caller) {
	t.Helper()
	named := func(names ...string) (s pkix.Name) {
		for _, n := range names {
			s.ExtraNames = append(s.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: n})
		}
		return s
	}
	const operator, agent = "hawser:operator:me", "system:open-cluster-management:me"
	good := x509.Certificate{Subject: named(operator)}
	expired, early, several, inOne := good, good, good, good
	expired.NotAfter, expired.NotBefore = time.Now().Add(-time.Minute), time.Now().Add(-time.Hour)
	early.NotBefore = time.Now().Add(30 * time.Minute)
	several.Subject = named(agent, operator)
	inOne.Subject = named(operator + "," + "CN=" + agent)
	add := func(name, scope string, cert tls.Certificate) {
		all = append(all, caller{name, dial(t, b.Addr, b.CA.Showing(cert)), scope})
	}
	add("expired", "me", b.CA.Sign(expired))
	add("not yet valid", "me", b.CA.Sign(early))
	add("other CA", "me", testkit.NewCA(t).Sign(good))
	add("several names", "me", b.CA.Sign(several))
	add("names in one", "me", b.CA.Sign(inOne))
	banned := identity.Identity{Role: identity.Operator, Name: "banned"}
	all = append(all, caller{"denied", dial(t, b.Addr, b.CA.Client(banned)), "me"})
	cert := b.CA.Sign(good)
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	add("denied certificate", "me", cert)
	for _, subject := range []string{banned.String(), leaf.SerialNumber.Text(16)} {
		if _, err := b.Deny(t.Context(), identity.Identity{}, &hawserv1.DenyRequest{Subject: subject}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestAuthorization_EveryRPCByEveryRole walks every RPC the port serves, as it
// lists them itself, by every role, in its own and in a foreign scope, and by who
// has a certificate that does not count.
func TestAuthorization_EveryRPCByEveryRole(t *testing.T) {
	b := testkit.StartBroker(t, testkit.Options{Port: true, Known: []identity.Identity{
		{Role: identity.Source, Name: "me"}, {Role: identity.Operator, Name: "me"}, {Role: identity.Viewer, Name: "me"},
		{Role: identity.Operator, Name: "banned"},
	}})
	callers := []caller{
		{"agent", dial(t, b.Addr, b.CA.Client(identity.Identity{Role: identity.Agent, Name: "me"})), "me"},
		{"source", dial(t, b.Addr, b.CA.Client(identity.Identity{Role: identity.Source, Name: "me"})), "me"},
		{"operator", dial(t, b.Addr, b.CA.Client(identity.Identity{Role: identity.Operator, Name: "me"})), "me"},
		{"viewer", dial(t, b.Addr, b.CA.Client(identity.Identity{Role: identity.Viewer, Name: "me"})), "me"},
		{"nobody", dial(t, b.Addr, b.CA.Anonymous()), "me"},
		{"stranger", dial(t, b.Addr, b.CA.Client(identity.Identity{Role: identity.Source, Name: "unmapped"})), "unmapped"},
	}
	callers = append(callers, refused(t, b)...)
	methods := served(t, callers[0].cc)
	if len(methods) != len(probes) {
		t.Errorf("%d methods are served, %d have a probe", len(methods), len(probes))
	}
	seen := map[string]bool{}
	for _, m := range methods {
		probe := probes[m]
		if probe == nil {
			t.Errorf("%s is served and nobody says who may call it", m)
			continue
		}
		for _, c := range callers {
			for _, scope := range []string{c.scope, "foreign"} {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				for _, a := range probe(ctx, c.cc, scope) {
					seen[a.what] = true
					allowed := slices.Contains(verdicts[a.what], c.name) && (scope == c.scope || !scoped(a.what))
					judge(t, c.name, scope, a, allowed)
				}
				cancel()
			}
		}
	}
	for what := range verdicts {
		if !seen[what] {
			t.Errorf("%q has a verdict and is never tried", what)
		}
	}
	for what := range seen {
		if verdicts[what] == nil {
			t.Errorf("%q is tried and has no verdict", what)
		}
	}
}

func judge(t *testing.T, who, scope string, a attempt, allowed bool) {
	t.Helper()
	refusal, nobody := refusals[who]
	if !nobody {
		refusal = codes.PermissionDenied
	}
	switch code := status.Code(a.err); {
	case allowed && code != codes.OK:
		t.Errorf("%s, scope %s: %s: %v, want it allowed", who, scope, a.what, a.err)
	case !allowed && code != refusal:
		t.Errorf("%s, scope %s: %s: %v, want %v", who, scope, a.what, a.err, refusal)
	}
}

// served asks the port for its services, and the registry for their methods.
func served(t *testing.T, cc *ggrpc.ClientConn) (methods []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // one identity has one such stream at a time
	stream, err := grpc_reflection_v1.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.GetListServicesResponse().GetService() {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(s.GetName()))
		if err != nil {
			t.Fatal(err)
		}
		all := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range all.Len() {
			methods = append(methods, fmt.Sprintf("/%s/%s", s.GetName(), all.Get(i).Name()))
		}
	}
	return methods
}

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
	for _, sub := range []codec.Subresource{codec.Spec, codec.Status} {
		for _, a := range []codec.Action{codec.CreateRequest, codec.UpdateRequest, codec.DeleteRequest, codec.ResyncRequest, codec.ResyncResponse} {
			x := map[string]any{
				codec.ExtResourceID: "w", codec.ExtResourceVersion: 1, codec.ExtSequenceID: "1",
				codec.ExtMetadata: fmt.Sprintf(`{"name":"w","namespace":%q}`, scope),
			}
			if sub == codec.Spec && a == codec.DeleteRequest {
				x[codec.ExtDeletionTimestamp] = time.Now()
			}
			e, err := codec.Builder{
				ID: "1", Time: time.Now(), Source: scope, Cluster: scope, Extensions: x,
				Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: sub, Action: a}.String(),
				ContentType: codec.ContentTypeJSON, Data: []byte(`{}`),
			}.Event()
			all = append(all, attempt{fmt.Sprintf("publish %s %s", sub, a), publish(e, err)})
		}
	}
	e, err := codec.NewRelease("1", time.Now(), scope, scope)
	all = append(all, attempt{"publish release", publish(e, err)})
	return append(all, publishSync(publish, scope)...)
}

// publishSync publishes what belongs to a subscription, without one: that there
// is none is an answer for those who may.
func publishSync(publish func(codec.Event, error) error, scope string) (all []attempt) {
	p := codec.SyncParams{ID: "1", Time: time.Now(), Source: scope, Cluster: scope}
	cursor := codec.Cursor{Epoch: "e", Term: "t"}
	for what, event := range map[string]func() (codec.Event, error){
		"ack":               func() (codec.Event, error) { return codec.NewAck(p, codec.Ack{Cursor: cursor}) },
		"inventory request": func() (codec.Event, error) { return codec.NewInventoryRequest(p, codec.InventoryRequest{}) },
		"compared":          func() (codec.Event, error) { return codec.NewCompared(p, codec.Compared{AllClusters: true}) },
		"checkpoint":        func() (codec.Event, error) { return codec.NewCheckpoint(p, codec.Checkpoint{Cursor: cursor}) },
		"inventory":         func() (codec.Event, error) { return codec.NewInventory(p, codec.Inventory{Revision: 1}) },
	} {
		err := publish(event())
		if status.Code(err) == codes.InvalidArgument {
			err = nil
		}
		all = append(all, attempt{"publish " + what, err})
	}
	return all
}

func subscribeBothWays(ctx context.Context, cc *ggrpc.ClientConn, scope string) (all []attempt) {
	c := cloudeventsv1.NewCloudEventServiceClient(cc)
	for what, r := range map[string]*cloudeventsv1.SubscriptionRequest{
		"subscribe to specs":    {ClusterName: scope, DataType: codec.ManifestBundles.String()},
		"subscribe to statuses": {Source: scope, DataType: codec.ManifestBundles.String()},
	} {
		ctx, cancel := context.WithCancel(ctx)
		stream, err := c.Subscribe(ctx, r)
		if err == nil {
			var header map[string][]string
			if header, err = stream.Header(); err == nil && len(header[codec.HeaderSubscriptionID]) != 1 {
				_, err = stream.Recv() // says why
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
		// A refusal may arrive before the request is sent; Recv says it.
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
		// A refusal may arrive before the request is sent; Recv says it.
		//nolint:staticcheck // deprecated, and served for older clients
		_ = stream.Send(&grpc_reflection_v1alpha.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1alpha.ServerReflectionRequest_ListServices{}})
		_, err = stream.Recv()
	}
	return []attempt{{"reflection", err}}
}

// TestAuthorization_UnknownCertificateIsNamed, so that an operator knows which
// rule is missing.
func TestAuthorization_UnknownCertificateIsNamed(t *testing.T) {
	b := testkit.StartBroker(t, testkit.Options{Port: true})
	cc := dial(t, b.Addr, b.CA.Client(identity.Identity{Role: identity.Source, Name: "unmapped"}))
	c := cloudeventsv1.NewCloudEventServiceClient(cc)
	_, err := c.Publish(t.Context(), &cloudeventsv1.PublishRequest{})
	stream, streamErr := c.Subscribe(t.Context(), &cloudeventsv1.SubscriptionRequest{})
	if streamErr == nil {
		_, streamErr = stream.Recv()
	}
	for _, err := range []error{err, streamErr, reflectV1(t.Context(), cc, "")[0].err} {
		if e := transportgrpc.FromStatus(err); !strings.Contains(e.Message, "hawser:source:unmapped") || e.Hint == "" || e.Next != transport.NextRefreshCredentials {
			t.Errorf("%+v", e)
		}
	}
}

// TestViewer_IsShownNoPayload: nothing that a viewer may call returns bytes, which
// is what works and statuses are to a broker.
func TestViewer_IsShownNoPayload(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var bytesIn func(m protoreflect.MessageDescriptor) []protoreflect.FullName
	bytesIn = func(m protoreflect.MessageDescriptor) (found []protoreflect.FullName) {
		if seen[m.FullName()] {
			return nil
		}
		seen[m.FullName()] = true
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			switch f.Kind() { //nolint:exhaustive // the others are values
			case protoreflect.BytesKind:
				found = append(found, f.FullName())
			case protoreflect.MessageKind:
				found = append(found, bytesIn(f.Message())...)
			}
		}
		return found
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(hawserv1.InspectionService_ServiceDesc.ServiceName))
	if err != nil {
		t.Fatal(err)
	}
	methods := d.(protoreflect.ServiceDescriptor).Methods()
	may := 0
	for i := range methods.Len() {
		m := methods.Get(i)
		if authz.May(viewer, fmt.Sprintf("/%s/%s", d.FullName(), m.Name())) != nil {
			continue
		}
		may++
		for _, f := range bytesIn(m.Output()) {
			t.Errorf("a viewer may call %s, whose answer has %s", m.Name(), f)
		}
	}
	if may == 0 {
		t.Error("a viewer may call nothing")
	}
	if found := bytesIn((&hawserv1.BackupResponse{}).ProtoReflect().Descriptor()); len(found) != 1 {
		t.Errorf("a backup has %v", found)
	}
}
