// Package authz decides which identity may make which call on the broker's port. It is a table of method ×
// role, whose entries check the scope in which a role may call the method. Without an entry a call is rejected.
//
// The check applies to the parsed event that will be executed, never to its encoding. An agent acts for its own
// cluster and a source under its own id. Each may publish only its half of a resource, spec or status, as the
// table of data types defines.
package authz

import (
	"cmp"
	"fmt"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// The methods, as gRPC names them. Other protocols use the same names.
const (
	Publish         = cloudeventsv1.CloudEventService_Publish_FullMethodName
	Subscribe       = cloudeventsv1.CloudEventService_Subscribe_FullMethodName
	HealthCheck     = grpc_health_v1.Health_Check_FullMethodName
	HealthList      = grpc_health_v1.Health_List_FullMethodName
	HealthWatch     = grpc_health_v1.Health_Watch_FullMethodName
	Reflection      = grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName
	ReflectionAlpha = grpc_reflection_v1alpha.ServerReflection_ServerReflectionInfo_FullMethodName

	ListClusters      = hawserv1.AdminService_ListClusters_FullMethodName
	ListWorks         = hawserv1.AdminService_ListWorks_FullMethodName
	ListDiscrepancies = hawserv1.AdminService_ListDiscrepancies_FullMethodName
	ListQuotas        = hawserv1.AdminService_ListQuotas_FullMethodName
	ForceDeleteWork   = hawserv1.AdminService_ForceDeleteWork_FullMethodName
	UnbindCluster     = hawserv1.AdminService_UnbindCluster_FullMethodName
	TransferWork      = hawserv1.AdminService_TransferWork_FullMethodName
	Approve           = hawserv1.AdminService_Approve_FullMethodName
	ResolveOrphan     = hawserv1.AdminService_ResolveOrphan_FullMethodName
	Deny              = hawserv1.AdminService_Deny_FullMethodName
	Allow             = hawserv1.AdminService_Allow_FullMethodName
	ListDenials       = hawserv1.AdminService_ListDenials_FullMethodName
	Backup            = hawserv1.AdminService_Backup_FullMethodName
)

// Call is a call to be authorized. Fields other than Method are set for Publish and Subscribe only.
type Call struct {
	Method string
	// Type is the type of the event or, for Subscribe, of the events to receive (any action). RawType is set if the
	// type does not follow the grammar.
	Type    codec.EventType
	RawType string
	// Source is the source attribute of the event, or the source that subscribes.
	Source string
	// Cluster is the clustername of the event, or the cluster that subscribes.
	Cluster string
	// Namespace is the namespace in the metadata of the event, "" without one.
	Namespace string
	// Deleting: the event is a deletion.
	Deleting bool
	// AllowedClusters is the allowed clusters of the event's source.
	AllowedClusters identity.AllowedClusters
}

// scope checks whether a client with the role and a name may make the call; nil means yes.
type scope func(name string, c Call) *transport.Error

// anonymous is the role of a peer without an identity.
const anonymous identity.Role = ""

var table = map[string]map[identity.Role]scope{
	Publish: {
		identity.Agent:     publishAsAgent,
		identity.Source:    publishAsSource,
		identity.Bootstrap: publishToJoin,
	},
	Subscribe: {
		identity.Agent:     subscribeAsAgent,
		identity.Source:    subscribeAsSource,
		identity.Bootstrap: subscribeToJoin,
	},
	// Load balancers have no certificate; they use the admin port.
	HealthCheck:     anyScope(identity.Agent, identity.Source, identity.Operator, identity.Viewer, identity.Bootstrap),
	HealthList:      anyScope(identity.Agent, identity.Source, identity.Operator, identity.Viewer, identity.Bootstrap),
	HealthWatch:     anyScope(identity.Agent, identity.Source, identity.Operator, identity.Viewer, identity.Bootstrap),
	Reflection:      anyScope(identity.Agent, identity.Source, identity.Operator, identity.Viewer, identity.Bootstrap),
	ReflectionAlpha: anyScope(identity.Agent, identity.Source, identity.Operator, identity.Viewer, identity.Bootstrap),

	ListClusters:      anyScope(identity.Operator, identity.Viewer),
	ListWorks:         anyScope(identity.Operator, identity.Viewer),
	ListDiscrepancies: anyScope(identity.Operator, identity.Viewer),
	ListQuotas:        anyScope(identity.Operator, identity.Viewer),
	ForceDeleteWork:   anyScope(identity.Operator),
	UnbindCluster:     anyScope(identity.Operator),
	TransferWork:      anyScope(identity.Operator),
	Approve:           anyScope(identity.Operator),
	ResolveOrphan:     anyScope(identity.Operator),
	Deny:              anyScope(identity.Operator),
	Allow:             anyScope(identity.Operator),
	ListDenials:       anyScope(identity.Operator, identity.Viewer),
	Backup:            anyScope(identity.Operator),
}

func anyScope(roles ...identity.Role) map[identity.Role]scope {
	row := map[identity.Role]scope{}
	for _, r := range roles {
		row[r] = func(string, Call) *transport.Error { return nil }
	}
	return row
}

// CheckMethod returns nil if id may make some calls of the method; Authorize decides which. It is for callers
// that know only the method. The errors are those of Authorize.
func CheckMethod(id identity.Identity, method string) error {
	_, err := scopeOf(id, method)
	return err
}

// Authorize returns nil if id may make the call. The error is a *transport.Error: CodeUnauthenticated for a
// peer without an identity, which is the zero Identity, else CodeDenied.
func Authorize(id identity.Identity, c Call) error {
	allowed, err := scopeOf(id, c.Method)
	if err != nil {
		return err
	}
	if err := allowed(id.Name, c); err != nil {
		return err
	}
	return nil
}

func scopeOf(id identity.Identity, method string) (scope, error) {
	allowed, ok := table[method][id.Role]
	if !ok && id.Role == anonymous {
		return nil, transport.Unauthenticated("the call needs an identity",
			"connect with a client certificate that the broker's CA signed and its configuration maps to a role")
	}
	if !ok {
		return nil, denied("", "%s has no right to call %s", id, method)
	}
	return allowed, nil
}

func denied(attribute, format string, args ...any) *transport.Error {
	return transport.Refused(transport.CodeDenied, attribute, fmt.Sprintf(format, args...), "")
}

func publishAsAgent(name string, c Call) *transport.Error {
	if err := mayPublish(codec.FromAgent, "agent/"+name, c); err != nil {
		return err
	}
	if c.Cluster != name {
		return denied(codec.ExtClusterName, "agent/%s publishes for cluster %q", name, c.Cluster)
	}
	return sameNamespace(c)
}

func publishAsSource(name string, c Call) *transport.Error {
	if err := mayPublish(codec.FromSource, "source/"+name, c); err != nil {
		return err
	}
	if c.Source != name {
		return denied("source", "source/%s publishes as source %q", name, c.Source)
	}
	if err := mayHave(name, c); err != nil {
		return err
	}
	return sameNamespace(c)
}

// mayHave returns why a source may not have a work on a cluster, nil if it may. A source may delete works on
// clusters that it is no longer allowed to use.
func mayHave(name string, c Call) *transport.Error {
	if c.Type.Subresource != codec.Spec || c.Deleting || c.Cluster == "" {
		return nil
	}
	if !c.AllowedClusters.Covers(c.Cluster) {
		return denied(codec.ExtClusterName, "source/%s may have no works on cluster %q", name, c.Cluster)
	}
	return namesCluster(c)
}

// namesCluster rejects an invalid cluster name.
func namesCluster(c Call) *transport.Error {
	err := identity.CheckCluster(c.Cluster)
	if err == nil {
		return nil
	}
	return transport.Refused(transport.CodeInvalid, codec.ExtClusterName, err.Error(), "")
}

// sameNamespace rejects an object in another namespace than that of the event's cluster.
func sameNamespace(c Call) *transport.Error {
	if c.Namespace != "" && c.Namespace != c.Cluster {
		return denied(codec.ExtMetadata, "metadata is of namespace %q, the event for cluster %q", c.Namespace, c.Cluster)
	}
	return nil
}

// mayPublish checks the type: a resync request comes from the receiver of that half of a resource, all other
// events from its sender.
func mayPublish(p codec.Senders, client string, c Call) *transport.Error {
	if c.RawType != "" {
		if !syncEvents[c.RawType].Has(p) {
			return denied("type", "%s has no right to publish %s", client, c.RawType)
		}
		return nil
	}
	if row, ok := codec.Registration(c.Type.DataType); ok {
		if p != codec.FromAgent || !row.MayPublish(c.Type, false) {
			return denied("type", "%s has no right to publish %s", client, c.Type)
		}
		return nil
	}
	row, ok := codec.Lookup(c.Type.DataType)
	if !ok {
		return denied("type", "data type %s is not served", c.Type.DataType)
	}
	sends := senders(row, c.Type.Subresource).Has(p)
	if sends == (c.Type.Action == codec.ResyncRequest) {
		return denied("type", "%s has no right to publish %s.%s of %s", client, c.Type.Subresource, c.Type.Action, c.Type.DataType)
	}
	return nil
}

// publishToJoin checks publishes with a bootstrap token, which acts for no cluster. It may request that a
// cluster of any valid name joins; an operator decides.
func publishToJoin(name string, c Call) *transport.Error {
	row, ok := codec.Registration(c.Type.DataType)
	if !ok || c.RawType != "" || !row.MayPublish(c.Type, true) {
		return denied("type", "bootstrap/%s has no right to publish %s", name, cmp.Or(c.RawType, c.Type.String()))
	}
	return namesCluster(c)
}

func subscribeToJoin(name string, c Call) *transport.Error {
	row, ok := codec.Registration(c.Type.DataType)
	if !ok || !row.Joining || c.Source != "" {
		return denied("type", "bootstrap/%s has no right to receive %s", name, c.Type.DataType)
	}
	return namesCluster(c)
}

// syncEvents lists the publishers of each sync event. Acks come from receivers of events; the others are about
// the works of a source.
var syncEvents = map[string]codec.Senders{
	codec.TypeAck:              codec.FromAgent | codec.FromSource,
	codec.TypeOrphanReport:     codec.FromAgent,
	codec.TypeInventoryRequest: codec.FromSource,
	codec.TypeSyncReport:       codec.FromSource,
	codec.TypeRelease:          codec.FromSource,

	codec.TypeRegistrationObjects: codec.FromSource,
	codec.TypeRegistrationAnswer:  codec.FromSource,
	codec.TypeRegistrationKeys:    codec.FromSource,
}

func senders(row codec.Row, s codec.Subresource) codec.Senders {
	if s == codec.Status {
		return row.StatusFrom
	}
	return row.SpecFrom
}

func subscribeAsAgent(name string, c Call) *transport.Error {
	if c.Cluster != name || c.Source != "" {
		return denied(codec.ExtClusterName, "agent/%s subscribes for cluster %q, source %q", name, c.Cluster, c.Source)
	}
	if err := namesCluster(c); err != nil {
		return err
	}
	return mayReceive(codec.FromAgent, "agent/"+name, c)
}

func subscribeAsSource(name string, c Call) *transport.Error {
	if c.Source != name || c.Cluster != "" {
		return denied("source", "source/%s subscribes for source %q, cluster %q", name, c.Source, c.Cluster)
	}
	return mayReceive(codec.FromSource, "source/"+name, c)
}

func mayReceive(p codec.Senders, client string, c Call) *transport.Error {
	if c.Type.DataType == codec.Registrations && p == codec.FromSource {
		return nil
	}
	if row, ok := codec.Registration(c.Type.DataType); ok && p == codec.FromAgent && row.Streamed {
		return nil
	}
	row, ok := codec.Lookup(c.Type.DataType)
	if !ok {
		return denied("type", "%s has no right to receive %s", client, c.Type.DataType)
	}
	if senders(row, c.Type.Subresource).Has(p) {
		return denied("type", "%s has no right to receive %s of %s", client, c.Type.Subresource, c.Type.DataType)
	}
	return nil
}

// Identify returns the identity of a peer. If insecure is true, a peer without an identity gets the identity
// that its call implies; see [Claimed].
func Identify(p transport.Peer, requested Call, insecure bool) identity.Identity {
	id := identity.Identity{Role: identity.Role(p.Role), Name: p.Name}
	if id == (identity.Identity{}) && insecure {
		return Claimed(requested)
	}
	return id
}

// Subscriber returns the client of a subscription to events of a type, or the reason to reject the subscription. See
// [Identify] for insecure.
func Subscriber(p transport.Peer, raw transport.RawSubscription, t codec.EventType, insecure bool) (identity.Identity, error) {
	c := Call{Method: Subscribe, Type: t, Source: raw.Source, Cluster: raw.Cluster}
	id := Identify(p, c, insecure)
	return id, Authorize(id, c)
}

func registers(d codec.DataType) bool {
	_, ok := codec.Registration(d)
	return ok
}

// Claimed returns the identity that a call implies: the source of the event if sources send such events, else
// the agent of its cluster. It is only for insecure brokers, whose peers are not authenticated.
func Claimed(c Call) identity.Identity {
	kind := codec.FromAgent
	switch {
	case c.Method == Subscribe && c.Source != "":
		kind = codec.FromSource
	case c.RawType != "":
		// The ack of an agent names its cluster; that of a source names none.
		if sends := syncEvents[c.RawType]; sends == codec.FromSource || sends.Has(codec.FromSource) && c.Cluster == "" {
			kind = codec.FromSource
		}
	case c.Method == Publish && c.RawType == "" && !registers(c.Type.DataType):
		row, _ := codec.Lookup(c.Type.DataType)
		if senders(row, c.Type.Subresource).Has(codec.FromSource) != (c.Type.Action == codec.ResyncRequest) {
			kind = codec.FromSource
		}
	}
	if kind == codec.FromSource {
		return identity.Identity{Role: identity.Source, Name: c.Source}
	}
	return identity.Identity{Role: identity.Agent, Name: c.Cluster}
}
