package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
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
	// DefaultHandshakesPerAddress lets a fleet come back that is behind one address.
	DefaultHandshakesPerAddress = 64
)

const (
	// HandshakeTimeout bounds what comes before the first call of a connection.
	HandshakeTimeout = 10 * time.Second
	// IdleConnection is how long a connection without a call stays open: every
	// party has a stream.
	IdleConnection = time.Minute
)

// Config is what a [Port] is made of. Either Listener or Addr is required, and
// Credentials unless Insecure.
type Config struct {
	// Addr is the host:port to listen on, unless Listener is given.
	Addr     string
	Listener net.Listener
	// Credentials of the port. Of an *identity.Server the changes are followed:
	// connections of clients end that its CAs cover no more.
	Credentials credentials.TransportCredentials
	// Mapping says which certificates are whose.
	Mapping identity.Mapping
	// Tokens say who shows a bearer token and no certificate; nil: none is taken.
	Tokens *tokens.Tokens
	// Insecure allows plaintext, on loopback addresses only. Peers then have no
	// identity, may do what an operator may, and are not limited.
	Insecure bool

	// MaxMessageBytes bounds what is read for one Publish. The broker has a
	// limit of its own for events; lists of versions may be larger.
	MaxMessageBytes int
	// BodyBytes bounds what is held of calls that are read or served, and
	// BodyBytesEach that of one identity; 0: the memory of the process does.
	BodyBytes, BodyBytesEach int64
	// HandshakesPerAddress bounds the handshakes that are under way of one address,
	// and with that those that lead to nothing: a quarter of it in a second.
	HandshakesPerAddress int
	// Proxies are the addresses of load balancers that say in the PROXY protocol,
	// versions 1 and 2, who connects; nobody else is believed.
	Proxies []netip.Prefix

	// Denials say who is kept out; nil: nobody is.
	Denials *denylist.List
	// Audit hears of connections, refusals, and what operators and viewers call;
	// nil: nobody does.
	Audit *audit.Log

	Log      *slog.Logger          // nil: slog.Default()
	Registry prometheus.Registerer // nil: metrics are kept and not shown
	Now      func() time.Time      // nil: time.Now
}

// Port is one port, whatever is spoken on it. Create it with [New]; methods may be
// called concurrently.
type Port struct {
	cfg        Config
	limiter    *limiter
	metrics    metrics
	handshakes chan struct{}    // of handshakes
	files      *identity.Server // nil where the credentials do not change

	looking sync.Mutex    // guards what follows
	seen    []*Connection // room for all
	serving string        // what was wrong with the port's own certificate
	trusted identity.Authorities
}

// New returns a port, and its configuration with what was left to defaults. It opens
// nothing; the error says which field of cfg is wrong.
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
	p := &Port{cfg: cfg, metrics: newMetrics(cfg.Registry), handshakes: make(chan struct{}, runtime.GOMAXPROCS(0))}
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

// Listen opens the port. What is accepted there has to go through [Port.Handshake].
func (p *Port) Listen(ctx context.Context) (net.Listener, error) {
	l := p.cfg.Listener
	if l == nil {
		// Whether a peer is there, the fronts ask with pings; connections that are
		// refused should not cost what it takes to ask otherwise.
		lc := net.ListenConfig{KeepAlive: -1, Control: deferAccept}
		var err error
		if l, err = lc.Listen(ctx, "tcp", p.cfg.Addr); err != nil {
			return nil, fmt.Errorf("listener: %w (choose another address with --listen)", err)
		}
	}
	if p.cfg.Insecure && !isLoopback(l.Addr()) {
		err := fmt.Errorf("listener: %s is not a loopback address: plaintext is allowed only there, give TLS files or listen on 127.0.0.1", l.Addr())
		return nil, errors.Join(err, l.Close())
	}
	return &listener{Listener: l, limiter: p.limiter, proxies: p.cfg.Proxies, refused: p.refused}, nil
}

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return !ok || t.IP.IsLoopback() // what is not TCP never leaves the process
}

// refused counts a handshake that is refused; err may be nil.
func (p *Port) refused(reason string, from net.Addr, err error) {
	p.metrics.refusedHandshakes.WithLabelValues(reason).Inc()
	p.cfg.Audit.Refused(audit.Client{Addr: from.String()}, prefixOf(from).String(), "", reason, err)
}

// Peers are all of one role that come in the same way.
type Peers struct {
	Role      identity.Role
	Transport Transport // "" before it is known
}

// Usage is what peers use of a port at a moment.
type Usage struct {
	Connections map[Peers]int
	Calls       int
	Bodies      int64
}

// Usage returns what is in use.
func (p *Port) Usage() Usage { return p.limiter.usage() }
