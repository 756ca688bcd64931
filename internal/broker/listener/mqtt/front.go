package mqtt

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// Defaults of [Config].
const (
	DefaultPublishTimeout = 30 * time.Second
	DefaultDrainTimeout   = 10 * time.Second
)

// Config is the configuration of a [Front]. Server is required.
type Config struct {
	Server listener.Server
	// Announce returns what each CONNACK states about the broker; nil: only that it is a Hawser broker.
	Announce func() property.Announcement
	// MaxPacketBytes is the maximum size of one packet.
	MaxPacketBytes int
	// PublishTimeout is the maximum duration of a publish, and of the rest of a packet that has begun.
	PublishTimeout time.Duration
	// DrainTimeout is the maximum duration of Run after its context ended. Connections that are still open then are
	// cut.
	DrainTimeout time.Duration

	Log *slog.Logger // nil: slog.Default()
	// OnPanic is called for every connection and every publish that panicked; may be nil.
	OnPanic func()
}

// Front serves connections that the port accepted. Create it with [New], run it once with [Front.Run].
type Front struct {
	cfg Config
	web *webSockets

	mu      sync.Mutex // guards the fields below
	closing bool
	conns   map[*conn]struct{}
	clients map[client]*conn
	groups  map[groupKey]*sharedSubscription

	serving sync.WaitGroup
}

// client is the key of a session: a client id is unique within the identity that uses it.
type client struct {
	client identity.Identity
	id     string
}

// New returns a front. It starts nothing. An error names the wrong field of cfg.
func New(cfg Config) (*Front, error) {
	switch {
	case cfg.Server == nil:
		return nil, errors.New("mqtt listener: no server to hand calls to")
	case min(int64(cfg.MaxPacketBytes), int64(cfg.PublishTimeout), int64(cfg.DrainTimeout)) < 0:
		return nil, errors.New("mqtt listener: sizes and timeouts must not be negative")
	}
	cfg.MaxPacketBytes = cmp.Or(cfg.MaxPacketBytes, listener.DefaultMaxMessageBytes)
	cfg.PublishTimeout = cmp.Or(cfg.PublishTimeout, DefaultPublishTimeout)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, DefaultDrainTimeout)
	if cfg.Announce == nil {
		cfg.Announce = func() property.Announcement { return property.Announcement{} }
	}
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.OnPanic == nil {
		cfg.OnPanic = func() {}
	}
	f := &Front{cfg: cfg, conns: map[*conn]struct{}{}, clients: map[client]*conn{}, groups: map[groupKey]*sharedSubscription{}}
	f.web = newWebSockets(f)
	return f, nil
}

// Serve takes over a connection with protocol p, and does not block. If p is "", Serve reads the protocol from
// the first byte.
func (f *Front) Serve(raw net.Conn, conn *listener.Connection, p listener.Protocol) {
	if !f.begin() {
		conn.Leave()
		_ = raw.Close() // the connection was not served
		return
	}
	go func() { // Run waits for this goroutine, and for the connection
		first := &listener.PeekedConn{Conn: raw}
		c := f.arrive(first, conn, func() {
			conn.Leave()
			f.serving.Done()
		})
		if p == "" {
			var err error
			if p, err = first.DetectProtocol(); err != nil {
				c.leave()
				return
			}
		}
		if p == listener.WebSocket {
			f.depart(c)
			f.web.take(first, conn)
			f.serving.Done()
			return
		}
		conn.SetTransport(listener.CleartextMQTT)
		c.serve()
	}()
}

// begin counts a connection. It returns false if the front drains.
func (f *Front) begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		return false
	}
	f.serving.Add(1)
	return true
}

// Run waits until ctx ends. Then it accepts no connection; each ends with its last subscription. Connections
// that are still open after DrainTimeout are cut. It returns when all have ended.
func (f *Front) Run(ctx context.Context) error {
	web := make(chan error, 1)
	go func() { web <- f.web.server.Serve(f.web) }() // received below
	<-ctx.Done()
	f.mu.Lock()
	f.closing = true
	for c := range f.conns {
		c.do(draining)
	}
	f.mu.Unlock()
	cut := time.AfterFunc(f.cfg.DrainTimeout, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for c := range f.conns {
			_ = c.Close() // its reader gets an error
		}
	})
	defer cut.Stop()
	err := f.web.server.Close() // closes the connections before their upgrade
	f.serving.Wait()
	if e := <-web; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// arrive adds a connection to the set that a drain ends. left is called after its end.
func (f *Front) arrive(raw net.Conn, connection *listener.Connection, left func()) *conn {
	c := newConn(f, raw, connection, left)
	_ = raw.SetReadDeadline(time.Now().Add(listener.HandshakeTimeout)) // fails if it is closed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns[c] = struct{}{}
	if f.closing {
		c.do(draining)
	}
	return c
}

// enter makes c the connection of its client id. The older connection with this client id is ended (session
// takeover).
func (f *Front) enter(c *conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.client.id == "" {
		return
	}
	if before := f.clients[c.client]; before != nil {
		before.do(takenOver)
	}
	f.clients[c.client] = c
}

func (f *Front) depart(c *conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
	if f.clients[c.client] == c {
		delete(f.clients, c.client)
	}
}
