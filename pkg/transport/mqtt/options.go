package mqtt

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/internal/dialing"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// Defaults of [Options].
const (
	// DefaultMaxEventBytes is that of the gRPC transport.
	DefaultMaxEventBytes    = 16 << 20
	DefaultDialTimeout      = 20 * time.Second
	DefaultPublishTimeout   = 30 * time.Second
	DefaultSubscribeTimeout = 30 * time.Second
	DefaultKeepAlive        = 30 * time.Second
)

// Login is a user name and a password; both may be empty.
type Login struct{ User, Password string }

// Options says how to reach a broker, and as whom.
type Options struct {
	// Broker is "host:port", or a URL with one of the schemes mqtt, mqtts, ws and wss and, for
	// the last two, a path. The host is what the broker's certificate must be for, unless TLS
	// says otherwise. It is resolved at every Dial.
	Broker string
	// ClientID is the same whenever this party connects, and no one else's: a broker ends the
	// connection of a client when another one with its id comes. See [ClientID].
	ClientID string
	// Topics are the patterns of the configuration file.
	Topics topic.Set

	// Proxy says through which proxy the broker is reached, if through one.
	Proxy transport.Proxy
	// DialContext opens the byte stream. nil means TCP, by Proxy.
	DialContext transport.DialContext
	// TLS is asked at every Dial, so that renewed certificates are used; see identity.Files.TLS.
	TLS func() *tls.Config
	// Insecure allows plaintext: TLS must then be nil, and the broker on this machine.
	Insecure bool
	// Login is asked at every Dial; nil means that there is none.
	Login func() Login

	// MaxEventBytes bounds the packets that are sent or taken. 0 means DefaultMaxEventBytes. What
	// the broker says it takes limits sending further.
	MaxEventBytes int
	// KeepAlive is how long the broker lets this party be silent, in whole seconds; it ends the
	// connection after one and a half times that. Brokers count whole packets, so it must be longer
	// than the largest takes. 0 means DefaultKeepAlive. The broker itself is asked whether it is
	// there after 10 s.
	KeepAlive time.Duration
	// Will is asked at every Dial for the event that a stock broker publishes when this party has
	// been gone for 30 seconds, in whatever way; ok is false if there is none. It is a hint at best:
	// brokers lose it when a connection takes the place of another. A Hawser broker ignores it. nil
	// means none.
	Will func() (e codec.Event, ok bool)

	// Fleeting: the broker keeps nothing of this party once the connection has ended, neither what
	// arrives for it nor a will.
	Fleeting bool

	// DialTimeout bounds a Dial, to the broker's answer. 0 means DefaultDialTimeout.
	DialTimeout time.Duration
	// PublishTimeout is the deadline of one Publish. 0 means DefaultPublishTimeout.
	PublishTimeout time.Duration
	// SubscribeTimeout bounds the wait for the broker's answer to a Subscribe. 0 means
	// DefaultSubscribeTimeout.
	SubscribeTimeout time.Duration

	// Log hears of messages that are dropped. nil means slog.Default().
	Log *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
}

// ClientID returns the client id of a party: it says who it is, so that rules of a broker can
// be about it.
func ClientID(filter transport.Filter) string {
	if filter.Source != "" {
		return "hawser-source-" + filter.Source
	}
	return "hawser-agent-" + filter.Cluster
}

// maxClientID is what AWS IoT Core takes.
const maxClientID = 128

// endpoint is where a broker is, and what is spoken below MQTT.
type endpoint struct {
	host, port string
	websocket  bool
	path       string
}

func (e endpoint) addr() string { return net.JoinHostPort(e.host, e.port) }

// withDefaults returns o with its zero values filled in, and where the broker is, or says which
// field is wrong.
func (o Options) withDefaults() (Options, endpoint, error) {
	e, secure, err := parseBroker(o.Broker)
	if err != nil {
		return o, e, err
	}
	if o.ClientID == "" || len(o.ClientID) > maxClientID || codec.CheckName("client id", o.ClientID) != nil {
		return o, e, fmt.Errorf("mqtt: client id %.40q: use 1 to %d bytes that can be printed", o.ClientID, maxClientID)
	}
	if o.KeepAlive < 0 || o.KeepAlive/time.Second > 1<<16-1 || o.KeepAlive%time.Second != 0 {
		return o, e, fmt.Errorf("mqtt: keep alive is %v: use whole seconds, 65535 at most", o.KeepAlive)
	}
	if err := o.checkSecurity(e, secure); err != nil {
		return o, e, err
	}
	if _, err := o.Proxy.Server(); err != nil {
		return o, e, fmt.Errorf("mqtt: %w", err)
	}
	if o.DialContext == nil {
		o.DialContext = dialing.Dial(o.Proxy)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o, e, errors.Join(
		o.Topics.Validate(),
		positiveOr(&o.MaxEventBytes, DefaultMaxEventBytes, "largest event"),
		positiveOr(&o.KeepAlive, DefaultKeepAlive, "keep alive"),
		positiveOr(&o.DialTimeout, DefaultDialTimeout, "dial timeout"),
		positiveOr(&o.PublishTimeout, DefaultPublishTimeout, "publish timeout"),
		positiveOr(&o.SubscribeTimeout, DefaultSubscribeTimeout, "subscribe timeout"),
	)
}

// checkSecurity: TLS, or plaintext on this machine. secure is what the scheme of a URL says.
func (o Options) checkSecurity(e endpoint, secure *bool) error {
	switch {
	case o.TLS == nil && !o.Insecure:
		return errors.New("mqtt: no credentials: give TLS credentials, or allow plaintext to a loopback address")
	case o.TLS != nil && o.Insecure:
		return errors.New("mqtt: credentials and insecure exclude each other: drop one of them")
	case o.Insecure && !cmdline.Loopback(e.host):
		return fmt.Errorf("mqtt: broker %q is not on a loopback address: plaintext is allowed only there", o.Broker)
	case secure != nil && *secure == o.Insecure:
		return fmt.Errorf("mqtt: broker %q: the scheme is mqtts or wss with TLS, mqtt or ws without", o.Broker)
	}
	return nil
}

// schemes says what is spoken for each scheme of a URL.
var schemes = map[string]struct {
	secure, websocket bool
	port              string
}{
	"mqtt": {false, false, "1883"}, "mqtts": {true, false, "8883"},
	"ws": {false, true, "80"}, "wss": {true, true, "443"},
}

// Address returns host:port of what Options.Broker names, and whether MQTT is spoken over WebSocket
// there.
func Address(broker string) (addr string, websocket bool, err error) {
	e, _, err := parseBroker(broker)
	if err != nil {
		return "", false, err
	}
	return e.addr(), e.websocket, nil
}

// parseBroker reads host:port or a URL; secure is nil when the text does not say it.
func parseBroker(s string) (e endpoint, secure *bool, err error) {
	wrong := fmt.Errorf("mqtt: broker %.200q: use host:port, such as broker.example.com:8883, or a URL that begins with mqtt://, mqtts://, ws:// or wss://", s)
	if !strings.Contains(s, "://") {
		e.host, e.port, err = net.SplitHostPort(s)
		if err != nil || e.host == "" || e.port == "" || strings.ContainsAny(s, "/ ") {
			return e, nil, wrong
		}
		return e, nil, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.User != nil || u.Fragment != "" {
		return e, nil, wrong
	}
	scheme, known := schemes[u.Scheme]
	path := u.RequestURI()
	if !known || u.Hostname() == "" || !scheme.websocket && path != "/" {
		return e, nil, wrong
	}
	e = endpoint{host: u.Hostname(), port: u.Port(), websocket: scheme.websocket, path: path}
	if e.port == "" {
		e.port = scheme.port
	}
	return e, &scheme.secure, nil
}

// positiveOr sets *v to def if it is 0, and refuses a negative one.
func positiveOr[T int | time.Duration](v *T, def T, name string) error {
	if *v < 0 {
		return fmt.Errorf("mqtt: %s is %v: it must be positive, or 0 for %v", name, *v, def)
	}
	if *v == 0 {
		*v = def
	}
	return nil
}
