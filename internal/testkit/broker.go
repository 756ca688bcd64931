package testkit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/changefeed"
	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/listener"
	listengrpc "github.com/hawser-io/hawser/internal/broker/listener/grpc"
	listenmqtt "github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	transportmem "github.com/hawser-io/hawser/pkg/transport/mem"
)

// Options of [StartBroker].
type Options struct {
	// Broker configures the broker. A nil Store is replaced by one in memory, a nil Log by one that discards.
	Broker broker.Config
	// Port opens a port with TLS on 127.0.0.1. Known are the identities whose certificates it maps; agents are
	// always mapped.
	Port  bool
	Known []identity.Identity
	// HandshakesPerAddress is the limit of the port; 0 means the default.
	HandshakesPerAddress int
	// Tokens are accepted at the port; nil: none.
	Tokens *tokens.Tokens
}

// Broker is a running broker.
type Broker struct {
	*broker.Broker
	Store store.Store
	// Addr and CA are set if there is a port.
	Addr string
	CA   *CA

	t    testing.TB
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// Denylist returns the denylist of a store. It follows the store until the test ends or the store is closed.
func Denylist(t testing.TB, s store.Store) *denylist.List {
	t.Helper()
	f := changefeed.New(s)
	l, err := denylist.New(s, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrClosed) {
			t.Error(err)
		}
	})
	return l
}

// StartBroker starts a broker that runs until the test ends or Stop is called. The test fails if the broker
// does not end cleanly. The store is closed after it, unless the caller passed it.
func StartBroker(t testing.TB, o Options) *Broker {
	t.Helper()
	b := &Broker{t: t, done: make(chan struct{})}
	own := o.Broker.Store == nil
	if own {
		o.Broker.Store = mem.Open(mem.Options{NewID: NewIDs("store")})
	}
	if o.Broker.Log == nil {
		o.Broker.Log = slog.New(slog.DiscardHandler)
	}
	b.Store = o.Broker.Store
	var err error
	if b.Broker, err = broker.New(o.Broker); err != nil {
		t.Fatalf("broker: %v", err)
	}
	tasks := []taskgroup.Task{{Name: "broker", Run: b.Broker.Run}}
	if o.Port {
		tasks = append(tasks, b.fronts(o)...)
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	go func() { // Stop waits for it
		defer close(b.done)
		b.err = taskgroup.Group(ctx, tasks...)
		if own && b.err == nil {
			b.err = b.Store.Close()
		}
	}()
	t.Cleanup(b.Stop)
	return b
}

// fronts returns the tasks that serve the port.
func (b *Broker) fronts(o Options) []taskgroup.Task {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatalf("port: %v", err)
	}
	b.Addr, b.CA = l.Addr().String(), NewCA(b.t)
	m, err := listenmqtt.New(listenmqtt.Config{Server: b.Broker, Log: o.Broker.Log, DrainTimeout: o.Broker.DrainTimeout})
	if err != nil {
		b.t.Fatalf("port: %v", err)
	}
	f, err := listengrpc.New(listengrpc.Config{
		Config: listener.Config{Listener: l, Credentials: b.CA.Server(), Mapping: Mapping(o.Known...), Denials: b.Denials(), Tokens: o.Tokens, HandshakesPerAddress: o.HandshakesPerAddress, Log: o.Broker.Log},
		Server: b.Broker, Admin: b.Broker, DrainTimeout: o.Broker.DrainTimeout, Other: m.Serve,
	})
	if err != nil {
		b.t.Fatalf("port: %v", err)
	}
	return []taskgroup.Task{{Name: "port", Run: f.Run}, {Name: "mqtt", Run: m.Run}}
}

// Stop drains the broker and waits for its end. It may be called repeatedly.
func (b *Broker) Stop() {
	b.stop()
	<-b.done
	if b.err != nil {
		b.t.Errorf("broker: %v", b.err)
		b.err = nil
	}
}

// Dialer returns an in-process dialer of id.
func (b *Broker) Dialer(id identity.Identity) *transportmem.Dialer {
	return transportmem.New(b.Broker, transport.Peer{Role: string(id.Role), Name: id.Name, Transport: transport.GRPC})
}

// PortDialer returns a dialer of id to the port, with a certificate of its own.
func (b *Broker) PortDialer(id identity.Identity) transport.Dialer {
	b.t.Helper()
	d, err := transportgrpc.NewDialer(transportgrpc.Options{
		Target: b.Addr, Credentials: b.CA.Client(id), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.t.Fatalf("dialer: %v", err)
	}
	return d
}

// NewIDs returns a source of ids that counts: prefix-1, prefix-2 and so on. It may be called concurrently.
func NewIDs(prefix string) func() string {
	var n atomic.Int64
	return func() string { return fmt.Sprintf("%s-%d", prefix, n.Add(1)) }
}
