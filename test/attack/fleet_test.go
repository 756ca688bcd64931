//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

const (
	// publishEvery is the interval of the well-behaved source.
	publishEvery = 5 * time.Millisecond
	// connectEvery is the interval at which a well-behaved agent reconnects.
	connectEvery = 100 * time.Millisecond
	// worksEach is the number of works of each cluster.
	worksEach = 16
	// givenUp is the timeout of a delivery or a connection, and the reported time of a failed one.
	givenUp = 5 * time.Second
)

// fleet is one source and its agents. It runs until the test stops it.
type fleet struct {
	addr  string
	files pki.Dir

	mu    sync.Mutex
	acked map[string]int // the last acknowledged version, by work
	seen  map[string]int // the last version that the agent received, by work
	// waits are the waiters for a delivery, by work and version.
	waits map[string]map[int]chan struct{}
	conn  transport.Conn // of the source; nil: it is opened again
}

func runFleet(ctx context.Context) error {
	f := &fleet{
		addr: os.Getenv("HAWSER_HOSTILE_ADDR"), files: pki.Dir(os.Getenv("HAWSER_HOSTILE_PKI")),
		acked: map[string]int{}, seen: map[string]int{}, waits: map[string]map[int]chan struct{}{},
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range clusters {
		wg.Go(func() { f.serve(working, cluster(i)) })
	}
	wg.Go(func() { f.publish(working) })
	wg.Go(func() { f.reconnect(working) })
	wg.Go(func() { f.report(working) })
	wg.Go(func() {
		if err := f.request(working); err != nil {
			fmt.Fprintln(os.Stderr, err) // the test fails without the expected lines
		}
	})
	return ordered(ctx, func(what string) error {
		switch what {
		case "stop":
			stop()
			wg.Wait()
			return emit(outputLine{What: "stopped"})
		case "verify":
			return emit(outputLine{What: "verified", Text: f.dropped(ctx)})
		}
		return fmt.Errorf("unknown order %q", what)
	})
}

func (f *fleet) dial(ctx context.Context, role pki.Role, name string) (transport.Conn, error) {
	d, err := f.dialer(role, name)
	if err != nil {
		return nil, err
	}
	return d.Dial(ctx)
}

func (f *fleet) dialer(role pki.Role, name string) (transport.Dialer, error) {
	creds, err := identity.Files{CA: f.files.CACert(), Cert: f.files.Cert(role, name), Key: f.files.Key(role, name)}.Client("", func(error) {})
	if err != nil {
		return nil, err
	}
	return transportgrpc.NewDialer(transportgrpc.Options{Target: f.addr, Credentials: creds, Log: slog.New(slog.DiscardHandler), DialTimeout: givenUp})
}

// subscribe connects one agent that lists no works, and calls up when it is subscribed.
func (f *fleet) subscribe(ctx context.Context, name string, up func(), got func(id string, version int)) error {
	c, err := f.dial(ctx, pki.Agent, name)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // every delivery has arrived or failed
	ready := func(a transport.Accepted) {
		r, err := codec.NewSpecResyncRequest(codec.ResyncParams{ID: "r", Time: time.Now(), Source: "agent", Cluster: name, DataType: codec.ManifestBundles}, nil)
		if err == nil {
			_, err = c.Publish(ctx, r, a.SubscriptionID)
		}
		if err == nil {
			up()
		}
	}
	return c.Subscribe(ctx, transport.Subscription{Filter: transport.Filter{Cluster: name, DataType: codec.ManifestBundles}}, ready,
		func(_ context.Context, e codec.Event) error {
			id, _, err := codec.StringExtension(e, codec.ExtResourceID)
			version, _, err2 := codec.IntegerExtension(e, codec.ExtResourceVersion)
			if errors.Join(err, err2) == nil && id != "" {
				got(id, int(version))
			}
			return nil
		})
}

// serve keeps one agent subscribed.
func (f *fleet) serve(ctx context.Context, name string) {
	_ = every(ctx, 50*time.Millisecond, func() error { // until ctx ends
		_ = f.subscribe(ctx, name, func() {}, f.got) // a broken connection shows in the deliveries
		return nil
	})
}

func (f *fleet) got(id string, version int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[id] = max(f.seen[id], version)
	for v, w := range f.waits[id] {
		if v <= version { // the latest version replaces all earlier ones
			close(w)
			delete(f.waits[id], v)
		}
	}
}

// publish publishes at its interval, without waiting for earlier publishes. It reports the time of each delivery
// to the agent.
func (f *fleet) publish(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ready := sync.OnceValue(func() error { return emit(outputLine{What: "ready"}) })
	n := 0
	_ = every(ctx, publishEvery, func() error { // until ctx ends
		c := f.source(ctx)
		if c == nil {
			return emit(outputLine{At: time.Now(), What: "delivery", Took: givenUp, Text: "no connection"})
		}
		n++
		// The works are published in turn, so that no two versions of one work are in flight.
		i, version := n%(clusters*worksEach), n
		wg.Go(func() {
			began := time.Now()
			took, err := f.deliver(ctx, c, i, version)
			if ctx.Err() != nil {
				return
			}
			if transport.CodeOf(err) == transport.CodeUnavailable {
				f.drop(c)
			}
			if err == nil {
				err = ready()
			}
			_ = emit(outputLine{At: began, What: "delivery", Took: took, Of: cluster(i % clusters), Text: fmt.Sprint(err)}) // without this line the test fails
		})
		return nil
	})
}

// source returns the connection of the source, nil if it cannot connect.
func (f *fleet) source(ctx context.Context) transport.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == nil {
		c, err := f.dial(ctx, pki.Source, source)
		if err != nil {
			return nil
		}
		f.conn = c
	}
	return f.conn
}

func (f *fleet) drop(c transport.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == c {
		_ = c.Close() // the connection has ended already
		f.conn = nil
	}
}

func workID(i int) string { return fmt.Sprintf("w%d-of-%d", i/clusters, i%clusters) }

// deliver publishes a version and waits until the agent has received it.
func (f *fleet) deliver(ctx context.Context, c transport.Conn, i, version int) (time.Duration, error) {
	id, name := workID(i), cluster(i%clusters)
	e, err := specOf(source, name, id, version, `{"manifests":[]}`)
	if err != nil {
		return givenUp, err
	}
	delivered := make(chan struct{})
	f.mu.Lock()
	if f.waits[id] == nil {
		f.waits[id] = map[int]chan struct{}{}
	}
	f.waits[id][version] = delivered
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, givenUp)
	defer cancel()
	began := time.Now()
	if _, err := c.Publish(ctx, e, ""); err != nil {
		return givenUp, err
	}
	f.mu.Lock()
	f.acked[id] = max(f.acked[id], version)
	f.mu.Unlock()
	select {
	case <-delivered:
		return time.Since(began), nil
	case <-ctx.Done():
		return givenUp, ctx.Err()
	}
}

// reconnect reconnects the agents in turn, because new clients must be served during an attack too.
func (f *fleet) reconnect(ctx context.Context) {
	n := 0
	_ = every(ctx, connectEvery, func() error { // until ctx ends
		n++
		began := time.Now()
		up := make(chan struct{})
		lifetime, end := context.WithTimeout(ctx, givenUp)
		defer end()
		go func() {
			select {
			case <-up:
			case <-lifetime.Done():
			}
			end()
		}()
		err := f.subscribe(lifetime, cluster(n%clusters), sync.OnceFunc(func() { close(up) }), func(string, int) {})
		took := time.Since(began)
		select {
		case <-up:
			err = nil
		default:
			took = givenUp
		}
		if ctx.Err() != nil { // the test stopped it
			return nil
		}
		return emit(outputLine{At: began, What: "connect", Took: took, Of: cluster(n % clusters), Text: fmt.Sprint(err)})
	})
}

// dropped subscribes every agent again and names the acknowledged works that do not arrive.
func (f *fleet) dropped(ctx context.Context) string {
	f.mu.Lock()
	f.seen = map[string]int{}
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*givenUp)
	defer cancel()
	var wg sync.WaitGroup
	for i := range clusters {
		wg.Go(func() { f.serve(ctx, cluster(i)) })
	}
	missing := ""
	_ = every(ctx, 20*time.Millisecond, func() error { // until all works have arrived, or the time is over
		f.mu.Lock()
		defer f.mu.Unlock()
		missing = ""
		for id, version := range f.acked {
			if f.seen[id] < version {
				missing += fmt.Sprintf(" %s: %d acknowledged, %d there;", id, version, f.seen[id])
			}
		}
		if missing == "" {
			cancel()
		}
		return nil
	})
	wg.Wait()
	return missing
}

// runSink accepts connections and discards all data.
func runSink(ctx context.Context) error {
	l, err := net.Listen("tcp", os.Getenv("HAWSER_HOSTILE_ADDR"))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		c, err := l.Accept()
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		go func() {
			_, _ = io.Copy(io.Discard, c) // until the attacker closes it
			_ = c.Close()
		}()
	}
}
