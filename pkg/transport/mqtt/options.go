package mqtt

import (
	"cmp"
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
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// Defaults of [Options].
const (
	// DefaultMaxEventBytes equals that of the gRPC transport.
	DefaultMaxEventBytes    = 16 << 20
	DefaultDialTimeout      = 20 * time.Second
	DefaultPublishTimeout   = 30 * time.Second
	DefaultSubscribeTimeout = 30 * time.Second
	DefaultKeepAlive        = 30 * time.Second
)

// Login is a user name and a password; both may be empty.
type Login struct{ User, Password string }

// Options configures the connection to a broker and the client's identity.
type Options struct {
	// Broker is "host:port", or a URL with the scheme mqtt, mqtts, ws or wss; the last two allow a path. Several
	// brokers of one hub have commas between them; see [transport.SplitAddresses]. The host must be in the broker's
	// certificate, unless TLS uses another name. It is resolved at each Dial, and all its IP addresses are tried.
	Broker string
	// ClientID must be the same for all connections of this client, and unique. A broker ends the connection of a
	// client when another one with its id connects. See [ClientID].
	ClientID string
	// Topics are the patterns of the configuration file.
	Topics topic.Set

	// Proxy configures the proxy to the broker, if any.
	Proxy transport.Proxy
	// DialContext opens the byte stream to host:port of Broker. nil means TCP, with Proxy.
	DialContext transport.DialContext
	// TLS is called at each Dial, so that renewed certificates are used; see identity.Files.TLS.
	TLS func() *tls.Config
	// Insecure allows plaintext: TLS must then be nil, and the broker must run on this machine.
	Insecure bool
	// Login is called at each Dial; nil means no login.
	Login func() Login

	// MaxEventBytes bounds the sent and received packets, in bytes. 0 means DefaultMaxEventBytes. A smaller limit
	// of the broker also applies to sending.
	MaxEventBytes int
	// KeepAlive is the maximum silence of this client, in whole seconds; the broker ends the connection after 1.5
	// times that. Brokers count whole packets, so it must be longer than the largest packet takes. 0 means
	// DefaultKeepAlive. The client pings a broker that is silent for 10 s.
	KeepAlive time.Duration
	// Will returns, at each Dial, the last will: an OCM broker publishes this event when the client has been gone
	// for 30 s. ok is false if there is none. It is only a hint: brokers drop it on a session takeover. A Hawser
	// broker ignores it. nil means none.
	Will func() (e codec.Event, ok bool)

	// Fleeting: after the connection has ended, the broker stores neither messages nor a will for this client.
	Fleeting bool

	// DialTimeout bounds a Dial, to the broker's answer. Several brokers share it. 0 means DefaultDialTimeout.
	DialTimeout time.Duration
	// PublishTimeout is the deadline of one Publish. 0 means DefaultPublishTimeout.
	PublishTimeout time.Duration
	// SubscribeTimeout bounds the wait for the broker's answer to a Subscribe. 0 means
	// DefaultSubscribeTimeout.
	SubscribeTimeout time.Duration

	// Log receives dropped messages. nil means slog.Default().
	Log *slog.Logger
	// Metrics counts the activity of the connections; nil counts nothing.
	Metrics *Metrics
}

// ClientID returns the client id of a client. It contains the identity, so that rules of a broker can refer to
// it.
func ClientID(filter transport.Filter) string {
	if filter.Source != "" {
		return "hawser-source-" + filter.Source
	}
	return "hawser-agent-" + filter.Cluster
}

// maxClientID is the limit of AWS IoT Core, in bytes.
const maxClientID = 128

// endpoint is the address of a broker and the protocols below MQTT.
type endpoint struct {
	host, port string
	websocket  bool
	path       string
}

func (e endpoint) addr() string { return net.JoinHostPort(e.host, e.port) }

// withDefaults returns o with its zero values filled in and the endpoints of the brokers, or an error that names
// the invalid field.
func (o Options) withDefaults() (Options, []endpoint, error) {
	e, err := o.endpoints()
	if err != nil {
		return o, e, err
	}
	if o.ClientID == "" || len(o.ClientID) > maxClientID || codec.CheckName("client id", o.ClientID) != nil {
		return o, e, fmt.Errorf("mqtt: client id %.40q: use 1 to %d bytes that can be printed", o.ClientID, maxClientID)
	}
	if o.KeepAlive < 0 || o.KeepAlive/time.Second > 1<<16-1 || o.KeepAlive%time.Second != 0 {
		return o, e, fmt.Errorf("mqtt: keep alive is %v: use whole seconds, 65535 at most", o.KeepAlive)
	}
	if _, err := o.Proxy.Server(); err != nil {
		return o, e, fmt.Errorf("mqtt: %w", err)
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	return o, e, errors.Join(
		o.Topics.Validate(),
		positiveOr(&o.MaxEventBytes, DefaultMaxEventBytes, "largest event"),
		positiveOr(&o.KeepAlive, DefaultKeepAlive, "keep alive"),
		positiveOr(&o.DialTimeout, DefaultDialTimeout, "dial timeout"),
		positiveOr(&o.PublishTimeout, DefaultPublishTimeout, "publish timeout"),
		positiveOr(&o.SubscribeTimeout, DefaultSubscribeTimeout, "subscribe timeout"),
	)
}

// endpoints returns the endpoints of all brokers.
func (o Options) endpoints() (all []endpoint, err error) {
	for _, broker := range transport.SplitAddresses(o.Broker) {
		e, secure, err := parseBroker(broker)
		if err == nil {
			err = o.checkSecurity(broker, e, secure)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// checkSecurity requires TLS, or plaintext on this machine. secure is the value from the scheme of a URL, nil
// without one.
func (o Options) checkSecurity(broker string, e endpoint, secure *bool) error {
	switch {
	case o.TLS == nil && !o.Insecure:
		return errors.New("mqtt: no credentials: give TLS credentials, or allow plaintext to a loopback address")
	case o.TLS != nil && o.Insecure:
		return errors.New("mqtt: credentials and insecure exclude each other: drop one of them")
	case o.Insecure && !cmdline.Loopback(e.host):
		return fmt.Errorf("mqtt: broker %q is not on a loopback address: plaintext is allowed only there", broker)
	case secure != nil && *secure == o.Insecure:
		return fmt.Errorf("mqtt: broker %q: the scheme is mqtts or wss with TLS, mqtt or ws without", broker)
	}
	return nil
}

// schemes maps the scheme of a URL to its protocols.
var schemes = map[string]struct {
	secure, websocket bool
	port              string
}{
	"mqtt": {false, false, "1883"}, "mqtts": {true, false, "8883"},
	"ws": {false, true, "80"}, "wss": {true, true, "443"},
}

// Address returns host:port of one of the brokers in Options.Broker, and whether MQTT runs over WebSocket there.
func Address(broker string) (addr string, websocket bool, err error) {
	e, _, err := parseBroker(broker)
	if err != nil {
		return "", false, err
	}
	return e.addr(), e.websocket, nil
}

// parseBroker parses host:port or a URL; secure is nil if the text has no scheme.
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
	e = endpoint{host: u.Hostname(), port: cmp.Or(u.Port(), scheme.port), websocket: scheme.websocket, path: path}
	return e, &scheme.secure, nil
}

// positiveOr sets *v to def if it is 0, and rejects a negative value.
func positiveOr[T int | time.Duration](v *T, def T, name string) error {
	if *v < 0 {
		return fmt.Errorf("mqtt: %s is %v: it must be positive, or 0 for %v", name, *v, def)
	}
	if *v == 0 {
		*v = def
	}
	return nil
}
