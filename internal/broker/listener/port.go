package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
)

// Defaults of [Config].
const (
	DefaultMaxMessageBytes = 16 << 20
	// DefaultHandshakesPerAddress is enough for all that the broker computes while the clients answer within 50 ms.
	DefaultHandshakesPerAddress = 64
)

const (
	// HandshakeTimeout bounds the time before the first call of a connection.
	HandshakeTimeout = 10 * time.Second
	// IdleConnection is how long a connection without a call stays open: every client has a stream.
	IdleConnection = time.Minute
)

// Config is the configuration of a [Port]. Either Listener or Addr is required, and Credentials unless
// Insecure.
type Config struct {
	// Addr is the host:port to listen on. It is ignored if Listener is set.
	Addr     string
	Listener net.Listener
	// Credentials of the port. If an *identity.Server changes, the port ends each connection whose client
	// certificate its CAs no longer cover.
	Credentials credentials.TransportCredentials
	// Mapping maps certificates to identities.
	Mapping identity.Mapping
	// Tokens identify clients with a bearer token and no certificate; nil: tokens are rejected.
	Tokens *tokens.Tokens
	// Insecure allows plaintext, on loopback addresses only. Peers then have no identity, have the rights of an
	// operator, and have no limits.
	Insecure bool

	// MaxMessageBytes is the maximum size of one Publish request. The broker has a limit of its own for events;
	// lists of versions may be larger.
	MaxMessageBytes int
	// BodyBytes is the maximum number of bytes of calls that are read or served, BodyBytesEach that of one
	// identity. 0: derived from the memory of the process.
	BodyBytes, BodyBytesEach int64
	// HandshakesPerAddress is the maximum number of handshakes in progress of one address, with and without a
	// session ticket. More of them wait. Failed handshakes are limited to a quarter of it per second.
	HandshakesPerAddress int
	// Proxies are the addresses of load balancers that send the client address in the PROXY protocol, version 1 or
	// 2. Only these are trusted.
	Proxies []netip.Prefix

	// Denials are the denied identities and certificates; nil: none.
	Denials *denylist.List
	// Audit records connections, rejections, and the calls of operators and viewers; nil: no audit.
	Audit *audit.Log

	Log      *slog.Logger          // nil: slog.Default()
	Registry prometheus.Registerer // nil: metrics are not exported
	Now      func() time.Time      // nil: time.Now
}

// Port is one port for all its protocols. Create it with [New]. Methods may be called concurrently.
type Port struct {
	cfg        Config
	limiter    *limiter
	metrics    metrics
	handshakes chan struct{}    // slots of concurrent handshakes
	files      *identity.Server // nil if the credentials do not change

	looking sync.Mutex    // guards the fields below
	seen    []*Connection // reused buffer of look
	serving string        // the last problem of the port's own certificate, "" if none
	trusted identity.Authorities
}

// New returns a port, and its configuration with defaults. It opens nothing. An error names the wrong field of
// cfg.
func New(cfg Config) (*Port, Config, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, cfg, err
	}
	l := limitsFor(available(), cfg.MaxMessageBytes, cfg.HandshakesPerAddress)
	switch {
	case cfg.Insecure:
		l = l.trusting()
	case cfg.Tokens != nil:
		l = l.bearing()
	}
	p := &Port{cfg: cfg, metrics: newMetrics(cfg.Registry), handshakes: make(chan struct{}, handshakesAtOnce())}
	p.limiter = newLimiter(l.holding(cfg.BodyBytes, cfg.BodyBytesEach), func(reason string) { p.metrics.endedConnections.WithLabelValues(reason).Inc() })
	p.limiter.now = cfg.Now
	if cfg.Denials != nil {
		p.limiter.denied = func(id identity.Identity, c *Connection) *refusal {
			if d, ok := cfg.Denials.Of(id, c.serial()); ok {
				return keptOut(id, d)
			}
			if c.issued.IsZero() {
				return nil
			}
			if from := cfg.Denials.Earliest(id.Name); c.issued.Before(from) {
				return issuedTooEarly(id, c.issued, from)
			}
			return nil
		}
		cfg.Denials.OnChange(p.Look)
	}
	if cfg.Tokens != nil {
		cfg.Tokens.OnEnd(p.Look)
	}
	p.files, _ = cfg.Credentials.(*identity.Server)
	p.show(cfg.Registry)
	return p, cfg, nil
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Listener == nil && c.Addr == "":
		return c, errors.New("listener: no address to listen on")
	case c.Credentials == nil && !c.Insecure:
		return c, errors.New("listener: no TLS credentials: give certificate, key and client CA, or allow plaintext on loopback with --insecure")
	case c.Credentials != nil && c.Insecure:
		return c, errors.New("listener: TLS credentials and insecure exclude each other: drop one of them")
	case min(int64(c.MaxMessageBytes), int64(c.HandshakesPerAddress), c.BodyBytes, c.BodyBytesEach) < 0:
		return c, errors.New("listener: sizes and numbers must not be negative")
	}
	if c.Insecure {
		c.Credentials = insecure.NewCredentials()
	}
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, DefaultMaxMessageBytes)
	c.HandshakesPerAddress = cmp.Or(c.HandshakesPerAddress, DefaultHandshakesPerAddress)
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// Listen opens the port. Accepted connections must go through [Port.Handshake]. The function fill must run while
// connections are accepted; it returns when the listener is closed.
func (p *Port) Listen(ctx context.Context) (accepted net.Listener, fill func(), err error) {
	l := p.cfg.Listener
	if l == nil {
		// The protocols detect dead peers with pings of their own. Without TCP keepalive, the broker spends less on a
		// rejected connection.
		lc := net.ListenConfig{KeepAlive: -1, Control: deferAccept}
		if l, err = lc.Listen(ctx, "tcp", p.cfg.Addr); err != nil {
			return nil, nil, fmt.Errorf("listener: %w (choose another address with --listen)", err)
		}
	}
	if p.cfg.Insecure && !isLoopback(l.Addr()) {
		err := fmt.Errorf("listener: %s is not a loopback address: plaintext is allowed only there, give TLS files or listen on 127.0.0.1", l.Addr())
		return nil, nil, errors.Join(err, l.Close())
	}
	arranged := p.arranged(l)
	return arranged, arranged.fill, nil
}

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return !ok || t.IP.IsLoopback() // connections that are not TCP stay within the process
}

// refused counts a rejected handshake; err may be nil.
func (p *Port) refused(reason string, from net.Addr, err error) {
	p.metrics.refusedHandshakes.WithLabelValues(reason).Inc()
	p.cfg.Audit.Refused(audit.Client{Addr: from.String()}, prefixOf(from).String(), "", reason, err)
}

// Peers are the peers of one role on one transport.
type Peers struct {
	Role      identity.Role
	Transport Transport // "" until it is known
}

// Usage is what peers use of a port at one moment.
type Usage struct {
	Connections map[Peers]int
	Calls       int
	Bodies      int64
}

// Usage returns the current usage.
func (p *Port) Usage() Usage { return p.limiter.usage() }
