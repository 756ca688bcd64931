package grpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// caller is a client that can reach the port.
type caller struct {
	name  string // role, or a key of refusals
	scope string // the cluster of the agent, the id of the source
	creds credentials.TransportCredentials
	token string // "": no token

	addr string
}

// connect opens a connection, which done closes. Each attempt uses its own, because too many rejected calls end
// a connection.
func (c caller) connect(t *testing.T) (cc *ggrpc.ClientConn, done func()) {
	t.Helper()
	options := []ggrpc.DialOption{ggrpc.WithTransportCredentials(c.creds)}
	if c.token != "" {
		options = append(options, ggrpc.WithPerRPCCredentials(bearing(c.token)))
	}
	cc, err := ggrpc.NewClient(c.addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	return cc, func() {
		if err := cc.Close(); err != nil {
			t.Error(err)
		}
	}
}

// role returns the role of the caller, or its name if it has no role.
func (c caller) role() string { return strings.TrimSuffix(c.name, " by token") }

// mayCall reports whether the caller may make any call.
func (c caller) mayCall() bool {
	for _, roles := range decisions {
		if slices.Contains(roles, c.role()) {
			return true
		}
	}
	return false
}

// probes call each RPC as a client that claims the scope, and return the results. An RPC without a probe fails
// the test.
var probes = map[string]func(ctx context.Context, c *ggrpc.ClientConn, scope string) []attempt{
	"/io.cloudevents.v1.CloudEventService/Publish":                   publishEverything,
	"/io.cloudevents.v1.CloudEventService/Subscribe":                 subscribeBothWays,
	"/grpc.health.v1.Health/Check":                                   checkHealth,
	"/grpc.health.v1.Health/List":                                    listHealth,
	"/grpc.health.v1.Health/Watch":                                   watchHealth,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      reflectV1,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": reflectV1Alpha,

	authz.ListClusters: listed("list clusters", func(ctx context.Context, c adminClient) (ggrpc.ServerStreamingClient[hawserv1.ListClustersResponse], error) {
		return c.ListClusters(ctx, &hawserv1.ListClustersRequest{})
	}),
	authz.ListWorks: listed("list works", func(ctx context.Context, c adminClient) (ggrpc.ServerStreamingClient[hawserv1.ListWorksResponse], error) {
		return c.ListWorks(ctx, &hawserv1.ListWorksRequest{})
	}),
	authz.ListDiscrepancies: listed("list discrepancies", func(ctx context.Context, c adminClient) (ggrpc.ServerStreamingClient[hawserv1.ListDiscrepanciesResponse], error) {
		return c.ListDiscrepancies(ctx, &hawserv1.ListDiscrepanciesRequest{})
	}),
	authz.ListQuotas: listed("list quotas", func(ctx context.Context, c adminClient) (ggrpc.ServerStreamingClient[hawserv1.ListQuotasResponse], error) {
		return c.ListQuotas(ctx, &hawserv1.ListQuotasRequest{})
	}),
	authz.Backup: listed("backup", func(ctx context.Context, c adminClient) (ggrpc.ServerStreamingClient[hawserv1.BackupResponse], error) {
		return c.Backup(ctx, &hawserv1.BackupRequest{})
	}),
	authz.ListDenials: listed("list denials", func(ctx context.Context, c adminClient) (ggrpc.ServerStreamingClient[hawserv1.ListDenialsResponse], error) {
		return c.ListDenials(ctx, &hawserv1.ListDenialsRequest{})
	}),
	authz.Deny: requestedCall("deny", func(ctx context.Context, c adminClient) error {
		_, err := c.Deny(ctx, &hawserv1.DenyRequest{Subject: "agent/unknown"})
		return err
	}),
	authz.Allow: requestedCall("allow", func(ctx context.Context, c adminClient) error {
		_, err := c.Allow(ctx, &hawserv1.AllowRequest{Subject: "agent/unknown"})
		return err
	}),
	authz.ForceDeleteWork: requestedCall("force-delete work", func(ctx context.Context, c adminClient) error {
		_, err := c.ForceDeleteWork(ctx, &hawserv1.ForceDeleteWorkRequest{Cluster: "me", ResourceId: "nothing"})
		return err
	}),
	authz.UnbindCluster: requestedCall("unbind cluster", func(ctx context.Context, c adminClient) error {
		_, err := c.UnbindCluster(ctx, &hawserv1.UnbindClusterRequest{Cluster: "nowhere"})
		return err
	}),
	authz.TransferWork: requestedCall("transfer work", func(ctx context.Context, c adminClient) error {
		_, err := c.TransferWork(ctx, &hawserv1.TransferWorkRequest{Cluster: "me", ResourceId: "nothing", Source: "me"})
		return err
	}),
	authz.Approve: requestedCall("approve", func(ctx context.Context, c adminClient) error {
		_, err := c.Approve(ctx, &hawserv1.ApproveRequest{Source: "me", Cluster: "me"})
		return err
	}),
	authz.ResolveOrphan: requestedCall("resolve orphan", func(ctx context.Context, c adminClient) error {
		_, err := c.ResolveOrphan(ctx, &hawserv1.ResolveOrphanRequest{Cluster: "me"}) // without a uid
		return err
	}),
}

type adminClient = hawserv1.AdminServiceClient

// requestedCall probes a unary call of the admin service. NotFound and InvalidArgument mean that the call was
// permitted.
func requestedCall(what string, call func(context.Context, adminClient) error) func(context.Context, *ggrpc.ClientConn, string) []attempt {
	return func(ctx context.Context, cc *ggrpc.ClientConn, _ string) []attempt {
		err := call(ctx, hawserv1.NewAdminServiceClient(cc))
		if code := status.Code(err); code == codes.NotFound || code == codes.InvalidArgument {
			err = nil
		}
		return []attempt{{what, err}}
	}
}

// listed probes a streaming call of the admin service.
func listed[T any](what string, call func(context.Context, adminClient) (ggrpc.ServerStreamingClient[T], error)) func(context.Context, *ggrpc.ClientConn, string) []attempt {
	return requestedCall(what, func(ctx context.Context, c adminClient) error {
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

// attempt is the name of one call, and its error.
type attempt struct {
	what string
	err  error
}

// decisions lists the roles that may make a call in their own scope. All other calls are rejected, also those
// in a foreign scope.
var decisions = map[string][]string{
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
	"publish request":                {},
	"publish objects":                {"source"},
	"publish answer":                 {"source"},
	"publish keys":                   {"source"},
	"subscribe to requests":          {"source"},
	"subscribe to specs":             {"agent"},
	"subscribe to statuses":          {"source"},
	"health check":                   {"agent", "source", "operator", "viewer", "bootstrap"},
	"health list":                    {"agent", "source", "operator", "viewer", "bootstrap"},
	"health watch":                   {"agent", "source", "operator", "viewer", "bootstrap"},
	"reflection":                     {"agent", "source", "operator", "viewer", "bootstrap"},
	"list clusters":                  {"operator", "viewer"},
	"list works":                     {"operator", "viewer"},
	"list discrepancies":             {"operator", "viewer"},
	"list denials":                   {"operator", "viewer"},
	"deny":                           {"operator"},
	"allow":                          {"operator"},
	"list quotas":                    {"operator", "viewer"},
	"backup":                         {"operator"},
	"force-delete work":              {"operator"},
	"unbind cluster":                 {"operator"},
	"transfer work":                  {"operator"},
	"approve":                        {"operator"},
	"resolve orphan":                 {"operator"},
}

// addRegistration adds the calls of the registration data types. A cluster that joins may request any name,
// because an operator checks the name before accepting it.
func addRegistration() {
	for _, d := range codec.RegistrationTypes() {
		row, _ := codec.Registration(d)
		result := func(what string, agent, bootstrap bool) {
			decisions[what] = []string{}
			for client, may := range map[string]bool{"agent": agent, "bootstrap": bootstrap} {
				if may {
					decisions[what] = append(decisions[what], client)
				}
			}
		}
		for _, e := range eventTypes(d) {
			result("publish "+e.String(), row.MayPublish(e, false), row.MayPublish(e, true))
		}
		result("subscribe to "+d.String(), row.Streamed, row.Joining)
	}
}

// eventTypes returns all event types of a data type.
func eventTypes(d codec.DataType) (all []codec.EventType) {
	for _, sub := range []codec.Subresource{codec.Spec, codec.Status} {
		for _, a := range []codec.Action{codec.CreateRequest, codec.UpdateRequest, codec.DeleteRequest, codec.ResyncRequest, codec.ResyncResponse} {
			all = append(all, codec.EventType{DataType: d, Subresource: sub, Action: a})
		}
	}
	return all
}

// scoped reports whether a call is about the works or the cluster of one client.
func scoped(client, what string) bool {
	return (what[:3] == "pub" || what[:3] == "sub") && client != "bootstrap"
}

// refusals are the codes for callers that may call nothing. All other rejected calls get PermissionDenied.
var refusals = map[string]codes.Code{
	"anonymous": codes.Unauthenticated, "unmapped": codes.Unauthenticated, "denied": codes.Unauthenticated, "denied certificate": codes.Unauthenticated,
	"several names": codes.Unauthenticated, "names in one": codes.Unauthenticated,
	"unmapped token": codes.Unauthenticated, "expired token": codes.Unauthenticated, "endless token": codes.Unauthenticated, "early token": codes.Unauthenticated,
	"wrong audience": codes.Unauthenticated, "no audience": codes.Unauthenticated, "other issuer": codes.Unauthenticated, "other key": codes.Unauthenticated,
	"alg none": codes.Unauthenticated, "deleted account": codes.Unauthenticated, "opaque token": codes.Unauthenticated, "no token": codes.Unauthenticated,
	"denied account": codes.Unauthenticated,
	"expired":        codes.Unavailable, "not yet valid": codes.Unavailable, "other CA": codes.Unavailable,
}

// refused returns callers with a certificate that would be valid for an operator or another role, except for
// one defect.
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
		all = append(all, caller{name: name, scope: scope, creds: b.CA.Showing(cert)})
	}
	add("expired", "me", b.CA.Sign(expired))
	add("not yet valid", "me", b.CA.Sign(early))
	add("other CA", "me", testkit.NewCA(t).Sign(good))
	add("several names", "me", b.CA.Sign(several))
	add("names in one", "me", b.CA.Sign(inOne))
	banned := identity.Identity{Role: identity.Operator, Name: "banned"}
	all = append(all, caller{name: "denied", scope: "me", creds: b.CA.Client(banned)})
	cert := b.CA.Sign(good)
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	add("denied certificate", "me", cert)
	for _, subject := range []string{banned.String(), leaf.SerialNumber.Text(16)} {
		if _, err := b.Deny(t.Context(), &hawserv1.DenyRequest{Subject: subject}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// bearingCallers returns callers with a token. There is one for each role that a token can give, and operators
// whose token has one defect.
func bearingCallers(t *testing.T, h *bearers, ca *testkit.CA) (all []caller) {
	t.Helper()
	add := func(name, text string) {
		all = append(all, caller{name: name, scope: "me", creds: ca.Anonymous(), token: text})
	}
	for _, role := range []string{"bootstrap", "source", "operator", "viewer"} {
		add(role+" by token", h.token(role))
	}
	signed := func(by *testkit.Issuer, edit func(map[string]any)) string {
		return h.add(by.Token("ns", "operator", edit), accountOf+"operator")
	}
	with := func(key string, value any) string {
		return signed(h.issuer, func(c map[string]any) {
			if c[key] = value; value == nil {
				delete(c, key)
			}
		})
	}
	good := strings.Split(h.token("operator"), ".")
	add("unmapped token", h.token("unmapped"))
	add("expired token", with("exp", time.Now().Add(-time.Minute).Unix()))
	add("endless token", with("exp", nil))
	add("early token", with("nbf", time.Now().Add(time.Hour).Unix()))
	add("wrong audience", with("aud", "https://kubernetes.default.svc"))
	add("no audience", with("aud", nil))
	add("other issuer", with("iss", "https://other.example"))
	add("other key", signed(testkit.NewIssuer(t, h.issuer.Name), nil))
	add("alg none", base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"key1"}`))+"."+good[1]+".")
	add("deleted account", h.issuer.Token("ns", "operator", nil))
	add("opaque token", "abcdef.0123456789abcdef")
	add("no token", "Bearer")
	add("denied account", h.token("banned"))
	return all
}

// TestAuthorization_EveryRPCByEveryRole calls every RPC that the port lists, with every role, in its own and in
// a foreign scope. It also calls them with certificates and tokens that are invalid.
func TestAuthorization_EveryRPCByEveryRole(t *testing.T) {
	addRegistration()
	h := newBearers(t, tokens.Rule{User: accountOf + "banned", Role: identity.Operator, Name: "banned"})
	kept := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	if err := store.WriteBookmarks(t.Context(), kept, map[string][]byte{"accepted/me": []byte("1")}); err != nil {
		t.Fatal(err)
	}
	b := testkit.StartBroker(t, testkit.Options{
		Broker: broker.Config{Store: kept, Registration: "me"}, Port: true, Tokens: h.Tokens, HandshakesPerAddress: 1 << 14,
		Known: []identity.Identity{
			{Role: identity.Source, Name: "me"}, {Role: identity.Operator, Name: "me"}, {Role: identity.Viewer, Name: "me"},
			{Role: identity.Operator, Name: "banned"},
		},
	})
	by := func(role identity.Role) credentials.TransportCredentials {
		return b.CA.Client(identity.Identity{Role: role, Name: "me"})
	}
	callers := []caller{
		{name: "agent", scope: "me", creds: by(identity.Agent)}, {name: "source", scope: "me", creds: by(identity.Source)},
		{name: "operator", scope: "me", creds: by(identity.Operator)}, {name: "viewer", scope: "me", creds: by(identity.Viewer)},
		{name: "anonymous", scope: "me", creds: b.CA.Anonymous()},
		{name: "unmapped", scope: "unmapped", creds: b.CA.Client(identity.Identity{Role: identity.Source, Name: "unmapped"})},
	}
	callers = slices.Concat(callers, refused(t, b), bearingCallers(t, h, b.CA))
	seen := map[string]bool{}
	for _, m := range methodsOf(t, b.Addr, callers[0]) {
		for _, c := range callers {
			c.addr = b.Addr
			walk(t, c, m, c.scope, seen)
			// Short tests skip this, because each attempt needs a handshake. The broker rejects such a caller before it
			// reads the scope.
			if !testing.Short() || c.mayCall() {
				walk(t, c, m, "foreign", seen)
			}
		}
	}
	for what := range decisions {
		if !seen[what] {
			t.Errorf("%q has an expected result and is never tried", what)
		}
	}
	for what := range seen {
		if decisions[what] == nil {
			t.Errorf("%q is tried and has no expected result", what)
		}
	}
}

// methodsOf returns the methods that the port serves.
func methodsOf(t *testing.T, addr string, c caller) []string {
	t.Helper()
	c.addr = addr
	cc, done := c.connect(t)
	defer done()
	methods := served(t, cc)
	if len(methods) != len(probes) {
		t.Errorf("%d methods are served, %d have a probe", len(methods), len(probes))
	}
	return methods
}

// walk calls one method in a scope as a caller, and checks the results.
func walk(t *testing.T, c caller, method, scope string, seen map[string]bool) {
	t.Helper()
	probe := probes[method]
	if probe == nil {
		t.Errorf("%s is served, and no rule names its callers", method)
		return
	}
	cc, done := c.connect(t)
	defer done()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, a := range probe(ctx, cc, scope) {
		seen[a.what] = true
		allowed := slices.Contains(decisions[a.what], c.role()) && (scope == c.scope || !scoped(c.role(), a.what))
		decide(t, c.name, scope, a, allowed)
	}
}

func decide(t *testing.T, client, scope string, a attempt, allowed bool) {
	t.Helper()
	refusal, isAnonymous := refusals[client]
	if !isAnonymous {
		refusal = codes.PermissionDenied
	}
	switch code := status.Code(a.err); {
	case allowed && code != codes.OK:
		t.Errorf("%s, scope %s: %s: %v, want it allowed", client, scope, a.what, a.err)
	case !allowed && code != refusal:
		t.Errorf("%s, scope %s: %s: %v, want %v", client, scope, a.what, a.err, refusal)
	}
}

// served asks the port for its services, and the registry for their methods.
func served(t *testing.T, cc *ggrpc.ClientConn) (methods []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // an identity may have only one reflection stream
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

// TestAuthorization_UnknownCertificateIsNamed checks that the error names the subject, so that an operator can
// add the missing rule.
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

// TestViewer_IsShownNoPayload checks that no method that a viewer may call returns a field of bytes, because
// works and statuses are such fields.
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
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(hawserv1.AdminService_ServiceDesc.ServiceName))
	if err != nil {
		t.Fatal(err)
	}
	methods := d.(protoreflect.ServiceDescriptor).Methods()
	may := 0
	for i := range methods.Len() {
		m := methods.Get(i)
		if authz.CheckMethod(viewer, fmt.Sprintf("/%s/%s", d.FullName(), m.Name())) != nil {
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
