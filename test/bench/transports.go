package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/local/thirdparty"
	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// road is a path from a source to an agent, both with the transports of Hawser.
type road struct {
	name string
	dial func(role pki.Role, name string) (transport.Dialer, error)
	// restart restarts the broker of this path; pid returns its process id.
	restart func(ctx context.Context) error
	pid     func() int

	publish1, publish64, delivered50, deliver3000 sample
	opened, perSession                            float64 // KiB per session, at first and at rest
}

const (
	// manySessions is the number of concurrent subscriptions.
	manySessions = 3000
	// rest is longer than the 20 seconds after which Hawser's programs return unused memory to the system.
	rest = 30 * time.Second
)

// transports measures gRPC, MQTT at the Hawser broker, and MQTT through Mosquitto without a disk, in alternating
// rounds.
func (b *bench) transports(ctx context.Context) (err error) {
	m := &mosquittoProcess{}
	defer func() { err = errors.Join(err, m.stop()) }()
	if err := m.prepare(ctx, b); err != nil {
		return err
	}
	broker := b.fleet.Program(fleet.Broker)
	again := func(ctx context.Context) error { return errors.Join(broker.Stop(), broker.Start(ctx)) }
	b.results.roads = []*road{
		{name: "gRPC", dial: b.overGRPC, restart: again, pid: broker.PID},
		{name: "MQTT", dial: b.overMQTT(b.fleet.BrokerAddr()), restart: again, pid: broker.PID},
		{name: "Mosquitto", dial: b.overMQTT(m.config.Addr), restart: m.restart, pid: m.pid},
	}
	for i := range rounds {
		b.printf("transports: round %d of %d", i+1, rounds)
		for _, r := range b.results.roads {
			if err := b.travel(ctx, r); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	for _, r := range b.results.roads {
		if err := b.crowd(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// overGRPC and overMQTT return dialers with newly issued certificates.
func (b *bench) overGRPC(role pki.Role, name string) (transport.Dialer, error) {
	c, err := b.tlsOf(role, name)
	if err != nil {
		return nil, err
	}
	return transportgrpc.NewDialer(transportgrpc.Options{Target: b.fleet.BrokerAddr(), Credentials: credentials.NewTLS(c), Log: discard})
}

func (b *bench) overMQTT(addr string) func(role pki.Role, name string) (transport.Dialer, error) {
	return func(role pki.Role, name string) (transport.Dialer, error) {
		c, err := b.tlsOf(role, name)
		if err != nil {
			return nil, err
		}
		return transportmqtt.NewDialer(transportmqtt.Options{
			Broker: addr, ClientID: string(role) + "-" + name, Topics: mqttacl.DefaultLayout(source).Topics,
			TLS: func() *tls.Config { return c }, Log: discard,
		})
	}
}

var discard = slog.New(slog.DiscardHandler)

func (b *bench) tlsOf(role pki.Role, name string) (*tls.Config, error) {
	pair, err := b.ca.Issue(pki.Request{Role: role, Name: name, Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		return nil, err
	}
	cert, err := pair.TLS()
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: b.ca.Pool(), Certificates: []tls.Certificate{cert}}, err
}

// travel measures one round: publishes on one connection, and single deliveries.
func (b *bench) travel(ctx context.Context, r *road) error {
	conn, err := r.connect(ctx, pki.Source, source)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all results have arrived
	for n, s := range map[int]*sample{1: &r.publish1, 64: &r.publish64} {
		rate, err := b.publishOn(ctx, conn, n)
		if err != nil {
			return err
		}
		*s = append(*s, rate)
	}
	a, err := openAgent(ctx, r, "bench-latency")
	if err != nil {
		return err
	}
	defer a.close()
	var took []time.Duration
	for range latencySamples {
		d, err := a.deliver(ctx, conn, b.version.Add(1))
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	r.delivered50 = append(r.delivered50, milliseconds(percentile(took, 50)))
	return nil
}

func (r *road) connect(ctx context.Context, role pki.Role, name string) (transport.Conn, error) {
	d, err := r.dial(role, name)
	if err != nil {
		return nil, err
	}
	return d.Dial(ctx)
}

// publishOn keeps n publishes in flight on one connection. It returns the answers per second.
func (b *bench) publishOn(ctx context.Context, conn transport.Conn, n int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*cellTime)
	defer cancel()
	var done atomic.Int64
	errs := make([]error, n)
	var wg sync.WaitGroup
	began := time.Now()
	for w := range n {
		wg.Go(func() {
			for i := 0; time.Since(began) < cellTime && errs[w] == nil; i++ {
				e, err := codec.FromProto(b.freshSpec(w, i).GetEvent())
				if err == nil {
					_, err = conn.Publish(ctx, e, "")
				}
				errs[w] = err
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}

// crowd opens many sessions at a restarted broker. It measures their memory, and the rate of deliveries to all
// of them.
func (b *bench) crowd(ctx context.Context, r *road) error {
	b.printf("transports: %d sessions over %s", manySessions, r.name)
	if err := r.restart(ctx); err != nil {
		return err
	}
	before, err := vmRSS(r.pid())
	if err != nil {
		return err
	}
	agents, err := openAgents(ctx, r, manySessions)
	defer func() {
		for _, a := range agents {
			a.close()
		}
	}()
	if err != nil {
		return err
	}
	if err := r.remember(ctx, before); err != nil {
		return err
	}
	conn, err := r.connect(ctx, pki.Source, source)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all results have arrived
	if _, err := b.deliverAll(ctx, conn, agents, func(done int) bool { return done >= manySessions }); err != nil {
		return err
	}
	for range rounds {
		began := time.Now()
		rate, err := b.deliverAll(ctx, conn, agents, func(int) bool { return time.Since(began) >= cellTime })
		if err != nil {
			return err
		}
		r.deliver3000 = append(r.deliver3000, rate)
	}
	return nil
}

// remember measures the memory of the new sessions, and again after a rest.
func (r *road) remember(ctx context.Context, before int64) (err error) {
	if r.opened, err = sessionMemory(r.pid(), before, manySessions); err != nil {
		return err
	}
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return ctx.Err()
	}
	r.perSession, err = sessionMemory(r.pid(), before, manySessions)
	return err
}

// deliverAll keeps 64 deliveries in flight, each to another agent, until enough returns true. It returns the
// deliveries per second.
func (b *bench) deliverAll(ctx context.Context, conn transport.Conn, agents []*benchAgent, enough func(done int) bool) (float64, error) {
	const workers = 64
	var done atomic.Int64
	errs := make([]error, workers)
	var wg sync.WaitGroup
	began := time.Now()
	for w := range workers {
		wg.Go(func() {
			for i := w; errs[w] == nil && !enough(int(done.Load())); i += workers {
				if i >= len(agents) {
					i = w
				}
				_, errs[w] = agents[i].deliver(ctx, conn, b.version.Add(1))
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}

// benchAgent is the subscription of one agent.
type benchAgent struct {
	cluster string
	conn    transport.Conn
	arrived chan time.Time
	stop    context.CancelFunc
	ended   chan struct{}
}

func openAgents(ctx context.Context, r *road, n int) ([]*benchAgent, error) {
	const atOnce = 16
	agents, errs := make([]*benchAgent, n), make([]error, n)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		wg.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				agents[i], errs[i] = openAgent(ctx, r, clusterName(i))
			}
		})
	}
	wg.Wait()
	return agents, errors.Join(errs...)
}

// openAgent subscribes as an OCM agent without works does. It returns when the agent would receive the next
// event.
func openAgent(ctx context.Context, r *road, cluster string) (*benchAgent, error) {
	conn, err := r.connect(ctx, pki.Agent, cluster)
	if err != nil {
		return nil, fmt.Errorf("session of %s: %w", cluster, err)
	}
	lifetime, stop := context.WithCancel(context.WithoutCancel(ctx))
	a := &benchAgent{cluster: cluster, conn: conn, arrived: make(chan time.Time, 1), stop: stop, ended: make(chan struct{})}
	ready, failed := make(chan struct{}), make(chan error, 1)
	go func() { // close waits for it
		defer close(a.ended)
		failed <- conn.Subscribe(lifetime, transport.Subscription{Filter: transport.Filter{Cluster: cluster, DataType: codec.ManifestBundles}},
			func(transport.Accepted) { close(ready) }, a.take)
	}()
	select {
	case <-ready:
	case err = <-failed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		var e codec.Event
		if e, err = codec.FromProto(resyncRequest(cluster).GetEvent()); err == nil {
			_, err = conn.Publish(ctx, e, "")
		}
	}
	if err != nil {
		a.close()
		return nil, fmt.Errorf("session of %s: %w", cluster, err)
	}
	return a, nil
}

func (a *benchAgent) take(_ context.Context, e codec.Event) error {
	if e.Type() != bundles+".status.resync_request" {
		select {
		case a.arrived <- time.Now():
		default: // the delivery of an earlier run
		}
	}
	return nil
}

func (a *benchAgent) close() {
	if a == nil {
		return
	}
	a.stop()
	_ = a.conn.Close() // all results have arrived
	<-a.ended
}

// deliver publishes a new version and waits for its delivery; see [session.deliver].
func (a *benchAgent) deliver(ctx context.Context, conn transport.Conn, version int32) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case <-a.arrived:
	default:
	}
	e, err := codec.FromProto(spec(a.cluster, "work", version).GetEvent())
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := conn.Publish(ctx, e, ""); err != nil {
		return 0, err
	}
	select {
	case at := <-a.arrived:
		return at.Sub(began), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s: version %d was not delivered: %w", a.cluster, version, ctx.Err())
	}
}

// mosquittoProcess is a Mosquitto beside the fleet, with access for all clients with a certificate.
type mosquittoProcess struct {
	config  thirdparty.Config
	process *childproc.Process
}

func (m *mosquittoProcess) prepare(ctx context.Context, b *bench) (err error) {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if m.config.Program, err = thirdparty.FetchMosquitto(ctx, root, os.Stderr); err != nil {
		return err
	}
	keys := b.fleet.PKI()
	m.config.Dir = filepath.Join(b.dir, "mosquitto")
	m.config.Text = fmt.Sprintf("cafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate true\nuse_identity_as_username true\nset_tcp_nodelay true\nmax_queued_messages 10000\n",
		keys.CACert(), keys.Cert(pki.Broker, fleet.Broker), keys.Key(pki.Broker, fleet.Broker))
	host, _, _ := net.SplitHostPort(b.fleet.BrokerAddr()) // always host:port
	m.config.Addr = net.JoinHostPort(host, "8883")
	return m.restart(ctx)
}

func (m *mosquittoProcess) restart(ctx context.Context) (err error) {
	if err := m.stop(); err != nil {
		return err
	}
	m.process, _, err = thirdparty.Start(ctx, m.config)
	return err
}

func (m *mosquittoProcess) pid() int { return m.process.PID() }

func (m *mosquittoProcess) stop() error {
	if m.process == nil {
		return nil
	}
	return m.process.Stop()
}
