package grpc

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/internal/dialing"
)

// Defaults of [Options].
const (
	// DefaultMaxEventBytes is four times what stock brokers take, so that no
	// broker's event breaks a stream at the client.
	DefaultMaxEventBytes    = 16 << 20
	DefaultDialTimeout      = 20 * time.Second
	DefaultPublishTimeout   = 30 * time.Second
	DefaultSubscribeTimeout = 30 * time.Second
	// DefaultHealthTimeout is three of the 10 s at which brokers send heartbeats.
	DefaultHealthTimeout = 30 * time.Second
)

// Options says how to reach a broker.
type Options struct {
	// Target is "host:port". The host is what the broker's certificate must be
	// for, unless Credentials say otherwise. It is resolved at every Dial.
	Target string
	// Proxy says through which proxy Target is reached, if through one.
	Proxy transport.Proxy
	// DialContext opens the byte stream. nil means TCP, by Proxy.
	DialContext transport.DialContext
	// Credentials secure the connection; see identity.Files.Client. They are
	// asked at every Dial, so that renewed certificates are used.
	Credentials credentials.TransportCredentials
	// Token returns the bearer token that goes with each call, "" for none; nil: none. It is
	// asked at every Dial.
	Token func() (string, error)
	// Insecure allows plaintext: Credentials must then be nil, and Target a
	// loopback address.
	Insecure bool

	// MaxEventBytes is the largest event sent or received, in bytes of its
	// protobuf form. 0 means DefaultMaxEventBytes. What the broker says it takes
	// limits sending further.
	MaxEventBytes int

	// DialTimeout bounds a Dial, from name resolution to the end of the TLS
	// handshake. 0 means DefaultDialTimeout.
	DialTimeout time.Duration
	// PublishTimeout is the deadline of one Publish. 0 means
	// DefaultPublishTimeout.
	PublishTimeout time.Duration
	// SubscribeTimeout bounds the wait for the broker's answer to a Subscribe.
	// 0 means DefaultSubscribeTimeout.
	SubscribeTimeout time.Duration
	// HealthTimeout ends a subscription with CodeUnavailable when nothing,
	// neither event nor heartbeat, arrived within it although the party was
	// ready to receive. 0 means DefaultHealthTimeout; a negative value switches
	// it off, for stock brokers that send no heartbeats.
	HealthTimeout time.Duration

	// StatsHandler observes the RPCs, for traces; may be nil.
	StatsHandler stats.Handler
	// Log hears of events that cannot be decoded, which are dropped. nil means
	// slog.Default().
	Log *slog.Logger
}

// withDefaults returns o with its zero values filled in, or says which field is
// wrong.
func (o Options) withDefaults() (Options, error) {
	host, port, err := net.SplitHostPort(o.Target)
	if err != nil || host == "" || port == "" {
		return o, fmt.Errorf("grpc: target %q is not host:port, as in broker.example:8090", o.Target)
	}
	switch {
	case o.Credentials == nil && !o.Insecure:
		return o, errors.New("grpc: no credentials: give TLS credentials, or allow plaintext to a loopback address")
	case o.Credentials != nil && o.Insecure:
		return o, errors.New("grpc: credentials and insecure exclude each other: drop one of them")
	case o.Insecure && !isLoopback(host):
		return o, fmt.Errorf("grpc: target %q is not a loopback address: plaintext is allowed only there", o.Target)
	case o.Insecure:
		o.Credentials = insecure.NewCredentials()
	}
	if _, err := o.Proxy.Server(); err != nil {
		return o, fmt.Errorf("grpc: %w", err)
	}
	// The library's own dialer reads the proxies of the environment only once per
	// process, and knows none that is reached by https.
	if o.DialContext == nil {
		o.DialContext = dialing.Dial(o.Proxy)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.HealthTimeout == 0 {
		o.HealthTimeout = DefaultHealthTimeout
	}
	return o, errors.Join(
		positiveOr(&o.MaxEventBytes, DefaultMaxEventBytes, "largest event"),
		positiveOr(&o.DialTimeout, DefaultDialTimeout, "dial timeout"),
		positiveOr(&o.PublishTimeout, DefaultPublishTimeout, "publish timeout"),
		positiveOr(&o.SubscribeTimeout, DefaultSubscribeTimeout, "subscribe timeout"),
	)
}

// positiveOr sets *v to def if it is 0, and refuses a negative one.
func positiveOr[T int | time.Duration](v *T, def T, name string) error {
	if *v < 0 {
		return fmt.Errorf("grpc: %s is %v: it must be positive, or 0 for %v", name, *v, def)
	}
	if *v == 0 {
		*v = def
	}
	return nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
