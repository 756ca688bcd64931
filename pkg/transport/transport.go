// Package transport is the seam between Hawser's parties and whatever carries
// their events: a [Conn] publishes events and subscribes to them, a [Server] is
// the broker's end of the same calls. Implementations live in the packages
// below (gRPC, in process); transporttest holds the suite that every one of
// them must pass.
//
// What an implementation promises:
//
//   - Publish returns nil only after the peer accepted the event; for durable
//     data types accepted means on disk. An event is delivered at least once.
//   - Per (data type, cluster, resource id) the newest accepted state wins;
//     there is no order between resources.
//   - The handler of one subscription is called serially. Its nil return means
//     the event was accepted by the receiver; an error ends the subscription.
//   - Nothing reconnects, retries or queues here: a Conn that failed stays
//     failed, and package session is the one place that dials again.
package transport

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// DialContext opens the byte stream below a transport; tests and proxies
// replace it. nil means TCP, through the proxy that is configured if there is one.
type DialContext func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer opens connections to one broker.
type Dialer interface {
	// Dial returns a usable connection or an *Error. The caller closes it.
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
	// Publish returns when the peer has accepted e, or with an *Error whose
	// code says whether the same event may be tried again. subscriptionID may
	// be empty; a Hawser party gives the id of its running subscription, so
	// that an answer (of a resync request) reaches that stream.
	// Of the receipt of a refused event the outcome is "".
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

// Receipt is what an accepting broker said about a published event.
type Receipt struct {
	// Outcome is the "hawser-outcome" trailer, "" from a stock broker.
	Outcome string
	// Revision is the "hawser-revision" trailer: that of the broker's store when
	// it decided about the event, also when it refused it. 0 when it is not known,
	// as from a stock broker, or when no answer came.
	Revision uint64
	// NoSubscribers: a stock MQTT broker said that nobody has subscribed to what was published. It is a
	// hint: brokers leave it out, and say it falsely.
	NoSubscribers bool
}

// Subscriber receives events.
type Subscriber interface {
	// Subscribe delivers matching events to h, one at a time, until ctx ends,
	// the peer goes away or h fails. It always returns a non-nil *Error (or
	// h's error, or ctx's). ready is called once, before the first event, when
	// every event accepted by the broker from now on will be seen. Heartbeats
	// are consumed here and not given to h.
	Subscribe(ctx context.Context, s Subscription, ready func(Accepted), h Handler) error
}

// Handler takes one event; nil means it was accepted.
type Handler func(ctx context.Context, e codec.Event) error

// Filter selects the events of a subscription. Exactly one of Source and
// Cluster is set: a source receives the status events of its works, an agent
// the spec events of its cluster.
type Filter struct {
	Source   string
	Cluster  string
	DataType codec.DataType
}

// Subscription is what a party asks for.
type Subscription struct {
	Filter
	Hello Hello
}

// Hello is what a Hawser party says about itself when it subscribes; the zero
// value is a stock party.
type Hello struct {
	// Protocol is the constant Protocol for a Hawser client, 0 for an OCM client.
	Protocol int
	// Cursor is where the party wants to continue, "<epoch>/<term>/<revision>"; may be empty.
	Cursor string
	// ClusterUID is the uid of the cluster's kube-system namespace; agents only, may be empty.
	ClusterUID string
	// Version is which release the party is, for people; may be empty.
	Version string
}

// Accepted is the broker's answer to a subscription.
type Accepted struct {
	SubscriptionID string
	// Protocol is the constant Protocol for a Hawser broker, else 0.
	Protocol int
	// Stateless: nobody keeps anything between the parties, as with a stock MQTT broker. What is
	// published reaches who is there, and may be lost all the same after it was accepted.
	Stateless bool
	// Resync is codec.ResyncList (send me what you hold) or codec.ResyncCursor (I
	// continue from yours); "" from a stock broker, which means list.
	Resync string
	// StoreID is the identity of the store behind the broker; "" if it says none.
	StoreID string
	// Roots are the SHA-256 hashes, in hexadecimal digits, of the certificates that
	// the broker's was verified by; nil without TLS.
	Roots []string
	// MaxEventBytes is the largest event the broker takes, 0 when unknown.
	MaxEventBytes int
	// Transport is what the connection is over, [GRPC] or [MQTT], for people; "" within a process.
	Transport string
}

// The transports that people are told of.
const (
	GRPC = "grpc"
	MQTT = "mqtt"
)

// Peer is who is at the other end of a call, as the front authenticated it.
type Peer struct {
	// Role and Name are the identity; both empty when the peer gave none.
	Role, Name string
	// User and Groups are who the peer is for the API of the hub: common name and organizations of
	// its certificate, or what its token says.
	User   string
	Groups []string
	// Addr is the remote address, for logs.
	Addr string
	// Transport is how the peer is connected, [GRPC] or [MQTT], for people, and because
	// clusters do not join over MQTT; "" is not known.
	Transport string
	// Conn identifies the connection the call came on, unique per process:
	// calls with the same value share a connection.
	Conn uint64
	// CertificateEnds is when the certificate ends that it showed; zero without one.
	CertificateEnds time.Time
	// CertificateIssued is when the certificate of an agent was issued; zero without one.
	CertificateIssued time.Time
}

// Server is the broker's end: what a front (the gRPC listener, the in-process
// transport) calls. Methods are called concurrently, one goroutine per call.
type Server interface {
	// Publish takes the protobuf bytes of one CloudEvent, which are the server's
	// until it returns. The error is an *Error.
	Publish(ctx context.Context, p Peer, event []byte, subscriptionID string) (Receipt, error)
	// Subscribe runs until ctx ends, the server drains or out fails; it calls
	// out.Accept exactly once before the first Send. The error is an *Error.
	Subscribe(ctx context.Context, p Peer, s RawSubscription, out Stream) error
}

// RawSubscription is a subscription as it arrived: nothing is validated.
type RawSubscription struct {
	Source, Cluster, DataType string
	Hello                     Hello
}

// Stream is the sending side of one subscription. Its methods are called from
// one goroutine.
type Stream interface {
	// Accept sends the header.
	Accept(a Accepted) error
	// Send blocks while the peer does not read. The event is the concatenation
	// of the parts, protobuf bytes of one CloudEvent. Nobody modifies the bytes
	// after the call, so the stream may keep them until they are on the wire.
	Send(parts ...[]byte) error
}
