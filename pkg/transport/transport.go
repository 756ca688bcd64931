// Package transport is the interface between Hawser's clients and the carrier of their events. A [Conn]
// publishes events and subscribes to them; a [Server] is the broker's end of the same calls. The packages below
// implement it (gRPC, MQTT, in process). transporttest has the test suite that all implementations must pass.
//
// An implementation promises:
//
//   - Publish returns nil only after the peer accepted the event. For durable data types, accepted means on
//     disk. Delivery is at least once.
//   - Per (data type, cluster, resource id) the newest accepted state wins. There is no order between resources.
//   - The handler of one subscription is called serially. A nil result means that the receiver accepted the
//     event; an error ends the subscription.
//   - It does not reconnect, retry or queue. A failed Conn stays failed; only package session dials again.
package transport

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// DialContext opens the byte stream below a transport; tests and proxies replace it. nil means TCP, through the
// configured proxy if there is one.
type DialContext func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer opens connections to the broker of one hub, or to any of its brokers.
type Dialer interface {
	// Dial returns a usable connection or an *Error. The caller closes it. With several addresses it tries all before
	// it fails.
	Dial(ctx context.Context) (Conn, error)
}

// Conn is one connection to a broker. All methods may be called concurrently.
type Conn interface {
	Publisher
	Subscriber
	// Close ends running calls with CodeUnavailable and releases the
	// connection; it is idempotent.
	Close() error
}

// Publisher sends events.
type Publisher interface {
	// Publish returns when the peer has accepted e, or with an *Error whose code shows whether the same event may
	// be retried. subscriptionID may be empty. A Hawser client sets the id of its running subscription, so that the
	// answer of a resync request reaches that stream. The receipt of a rejected event has the outcome "".
	Publish(ctx context.Context, e codec.Event, subscriptionID string) (Receipt, error)
}

// Protocol is the version of the Hawser extensions of the protocol of OCM that this release speaks, the
// value of the header [codec.HeaderProtocol]. A release speaks exactly one version: version 1 was never
// released.
const Protocol = 2

// SpeaksHawser reports whether the header [codec.HeaderProtocol] of a client or a broker has the version
// [Protocol]. A broker treats a client of another version, or without the header, as an OCM client. A
// client treats such a broker as an OCM broker. They exchange the events of OCM alone.
func SpeaksHawser(header string) bool { return header == strconv.Itoa(Protocol) }

// Receipt is a broker's answer to an accepted event.
type Receipt struct {
	// Outcome is the "hawser-outcome" trailer, "" from an OCM broker.
	Outcome string
	// Revision is the "hawser-revision" trailer: the revision of the broker's store at its decision about the
	// event, also for a rejection. It is 0 if unknown, as from an OCM broker, or if no answer arrived.
	Revision uint64
	// NoSubscribers: a third-party MQTT broker reported that no client has subscribed to the topic. It is a hint: brokers
	// omit it, and report it wrongly.
	NoSubscribers bool
}

// Subscriber receives events.
type Subscriber interface {
	// Subscribe delivers matching events to h, one at a time, until ctx ends, the peer goes away or h fails. It
	// always returns a non-nil *Error, or the error of h or ctx. ready is called once, before the first event. From
	// then on all events that the broker accepts are delivered. Heartbeats are consumed and not passed to h.
	Subscribe(ctx context.Context, s Subscription, ready func(Accepted), h Handler) error
}

// Handler processes one event; nil means that it was accepted.
type Handler func(ctx context.Context, e codec.Event) error

// Filter selects the events of a subscription. Exactly one of Source and
// Cluster is set: a source receives the status events of its works, an agent
// the spec events of its cluster.
type Filter struct {
	Source   string
	Cluster  string
	DataType codec.DataType
}

// Subscription is a client's request to subscribe.
type Subscription struct {
	Filter
	Hello Hello
}

// Hello is the part of a subscription that describes a Hawser client; the zero value is an OCM client.
type Hello struct {
	// Protocol is the constant Protocol for a Hawser client, 0 for an OCM client.
	Protocol int
	// Cursor is the position to continue from, "<store-id>/<incarnation>/<revision>"; may be empty.
	Cursor string
	// ClusterUID is the uid of the cluster's kube-system namespace; agents only, may be empty.
	ClusterUID string
	// Version is the release of the client, for display; may be empty.
	Version string
	// Heartbeat asks for heartbeats at this interval, in whole seconds; 0 is the interval of the broker. A broker sends
	// them at least as often, and over MQTT sends none. The health timeout of the subscription is at least
	// [MissedHeartbeats] intervals.
	Heartbeat time.Duration
	// Former is the id of the subscription that the client had before, "" if there was none in this process. The broker
	// of an agent ends it where it still runs, at any replica. A session sets it.
	Former string
	// SubscribedAt are the ids of the replicas at which the source that serves registration is subscribed already,
	// separated by commas. Such a replica rejects the subscription with [NextUseAnotherServer].
	SubscribedAt string
}

// MissedHeartbeats is the number of heartbeat intervals without an event or heartbeat after which a broker counts as
// gone.
const MissedHeartbeats = 3

// Accepted is the broker's answer to a subscription.
type Accepted struct {
	SubscriptionID string
	// Protocol is the constant Protocol for a Hawser broker, else 0.
	Protocol int
	// Stateless: the broker stores nothing, as a third-party MQTT broker. A published event reaches only connected
	// clients, and may be lost even after it was accepted.
	Stateless bool
	// Resync is codec.ResyncList (the client sends the list of what it holds) or codec.ResyncCursor (the broker
	// continues from the client's cursor). "" from an OCM broker means list.
	Resync string
	// StoreID is the identity of the broker's store; "" if unknown.
	StoreID string
	// Roots are the SHA-256 hashes, in hexadecimal, of the certificates that verified the broker's; nil without
	// TLS.
	Roots []string
	// MaxEventBytes is the largest event that the broker accepts, in bytes, 0 if unknown.
	MaxEventBytes int
	// Transport is the protocol of the connection, [GRPC] or [MQTT], and Broker the used address, for display. Both
	// are "" within a process.
	Transport, Broker string
}

// The transports, for display.
const (
	GRPC = "grpc"
	MQTT = "mqtt"
)

// Peer is the other end of a call, as the listener authenticated it.
type Peer struct {
	// Role and Name are the identity; both are empty if the peer has none.
	Role, Name string
	// User and Groups are the peer's user and groups for the API of the hub. They are common name and organizations
	// of its certificate, or come from its token.
	User   string
	Groups []string
	// Addr is the remote address, for logs.
	Addr string
	// Transport is the protocol of the peer's connection, [GRPC] or [MQTT], "" if unknown. It is for display,
	// and to reject clusters that join over MQTT.
	Transport string
	// Conn identifies the connection of the call, unique per process. Calls with the same value share a
	// connection.
	Conn uint64
	// CertificateEnds is the notAfter of the shown certificate; zero without one.
	CertificateEnds time.Time
	// CertificateIssued is when the certificate of an agent was issued; zero without one.
	CertificateIssued time.Time
}

// Server is the broker's end, called by a listener or the in-process transport. Methods are called
// concurrently, one goroutine per call.
type Server interface {
	// Publish accepts the protobuf bytes of one CloudEvent. The server owns them until it returns. The error is an
	// *Error.
	Publish(ctx context.Context, p Peer, event []byte, subscriptionID string) (Receipt, error)
	// Subscribe runs until ctx ends, the server drains or out fails; it calls
	// out.Accept exactly once before the first Send. The error is an *Error.
	Subscribe(ctx context.Context, p Peer, s RawSubscription, out Stream) error
}

// RawSubscription is a subscription as received, not validated.
type RawSubscription struct {
	Source, Cluster, DataType string
	Hello                     Hello
}

// Stream is the sending side of one subscription. Its methods are called from
// one goroutine.
type Stream interface {
	// Accept sends the header.
	Accept(a Accepted) error
	// Send blocks while the peer does not read. The event is the concatenation of the parts, protobuf bytes of one
	// CloudEvent. The bytes must not be modified after the call, so the stream may keep them until they are sent.
	Send(parts ...[]byte) error
}
