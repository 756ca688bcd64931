package grpc

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Defaults of [Options].
const (
	// DefaultMaxEventBytes is four times the limit of OCM brokers, so that no event of a broker breaks a stream at
	// the client.
	DefaultMaxEventBytes    = 16 << 20
	DefaultDialTimeout      = 20 * time.Second
	DefaultPublishTimeout   = 30 * time.Second
	DefaultSubscribeTimeout = 30 * time.Second
	// DefaultHealthTimeout is for the heartbeats of a broker, one every 10 s.
	DefaultHealthTimeout = transport.MissedHeartbeats * 10 * time.Second
)

// Options configures the connection to a broker.
type Options struct {
	// Target is "host:port", or several of them with commas between them, for the brokers of one hub; see
	// [transport.SplitAddresses]. The host must be in the broker's certificate, unless Credentials use another name.
	// It is resolved at each Dial, and all its IP addresses are tried.
	Target string
	// Proxy configures the proxy to Target, if any.
	Proxy transport.Proxy
	// DialContext opens the byte stream to an address of Target. nil means TCP, with Proxy.
	DialContext transport.DialContext
	// Credentials secure the connection; see identity.Files.Client. They are read at each Dial, so that renewed
	// certificates are used.
	Credentials credentials.TransportCredentials
	// Token returns the bearer token for each call, "" for none; nil means none. It is called at each Dial.
	Token func() (string, error)
	// Insecure allows plaintext: Credentials must then be nil, and Target a
	// loopback address.
	Insecure bool

	// MaxEventBytes is the largest event sent or received, in bytes of its protobuf form. 0 means
	// DefaultMaxEventBytes. A smaller limit of the broker also applies to sending.
	MaxEventBytes int

	// DialTimeout bounds a Dial, from name resolution to the end of the TLS
	// handshake. Several addresses share it. 0 means DefaultDialTimeout.
	DialTimeout time.Duration
	// PublishTimeout is the deadline of one Publish. 0 means
	// DefaultPublishTimeout.
	PublishTimeout time.Duration
	// SubscribeTimeout bounds the wait for the broker's answer to a Subscribe.
	// 0 means DefaultSubscribeTimeout.
	SubscribeTimeout time.Duration
	// HealthTimeout ends a subscription with CodeUnavailable if neither event nor heartbeat arrives within it while
	// the client is ready to receive. A subscription that asks for fewer heartbeats gets more time. 0 means
	// DefaultHealthTimeout. A negative value disables it, for OCM brokers without heartbeats.
	HealthTimeout time.Duration

	// StatsHandler observes the RPCs, for traces; may be nil.
	StatsHandler stats.Handler
	// Log receives events that cannot be decoded, which are dropped. nil means slog.Default().
	Log *slog.Logger
}

// withDefaults returns o with its zero values filled in, or an error that names the invalid field.
func (o Options) withDefaults() (Options, error) {
	addresses, err := transport.Addresses(o.Target)
	if err != nil {
		return o, fmt.Errorf("grpc: target %w", err)
	}
	switch {
	case o.Credentials == nil && !o.Insecure:
		return o, errors.New("grpc: no credentials: give TLS credentials, or allow plaintext to a loopback address")
	case o.Credentials != nil && o.Insecure:
		return o, errors.New("grpc: credentials and insecure exclude each other: drop one of them")
	case o.Insecure && !cmdline.LoopbackOnly(addresses):
		return o, fmt.Errorf("grpc: target %q is not a loopback address: plaintext is allowed only there", o.Target)
	case o.Insecure:
		o.Credentials = insecure.NewCredentials()
	}
	if _, err := o.Proxy.Server(); err != nil {
		return o, fmt.Errorf("grpc: %w", err)
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	o.HealthTimeout = cmp.Or(o.HealthTimeout, DefaultHealthTimeout)
	return o, errors.Join(
		positiveOr(&o.MaxEventBytes, DefaultMaxEventBytes, "largest event"),
		positiveOr(&o.DialTimeout, DefaultDialTimeout, "dial timeout"),
		positiveOr(&o.PublishTimeout, DefaultPublishTimeout, "publish timeout"),
		positiveOr(&o.SubscribeTimeout, DefaultSubscribeTimeout, "subscribe timeout"),
	)
}

// positiveOr sets *v to def if it is 0, and rejects a negative value.
func positiveOr[T int | time.Duration](v *T, def T, name string) error {
	if *v < 0 {
		return fmt.Errorf("grpc: %s is %v: it must be positive, or 0 for %v", name, *v, def)
	}
	if *v == 0 {
		*v = def
	}
	return nil
}
