package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/controlplane"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

const (
	defaultIdle = time.Minute
	// cellTime is the duration of the measurement of one rate in one round.
	cellTime = 2 * time.Second
	cluster  = "cluster1"
	// publisherConns is the number of connections of the 64 publishers.
	publisherConns = 8
	// latencySamples and applySamples are the numbers of deliveries and of kubectl apply in each round.
	latencySamples = 300
	applySamples   = 10
)

// The parts of a run.
const (
	partCore  = "core"
	partWorks = "works"
	partMQTT  = "mqtt"
)

type options struct {
	check    bool
	only     string // the only part; "": all
	idle     time.Duration
	clusters int // number of clusters that join
	// fleet is the size of the light fleet. base is the commit that the gate compares with. ownAgents: the broker of
	// another commit gets agents with the client code of that commit.
	fleet     size
	base      string
	ownAgents bool
}

func (o options) measures(part string) bool { return o.only == "" || o.only == part }

// bench is one run: a fleet, the echo service, and the results.
type bench struct {
	options
	dir   string
	fleet *fleet.Fleet
	ca    *pki.Authority
	// echo and broker are the publishers' connections.
	echo, broker []cloudeventsv1.CloudEventServiceClient
	version      atomic.Int32
	audit        *audit
	results      results
}

func run(ctx context.Context, o options) error {
	if parts := []string{partCore, partWorks, partMQTT, partRegistration, partFleet, partGate, partReplicas, partPostgres}; o.only != "" && !slices.Contains(parts, o.only) {
		return fmt.Errorf("--only %q: use one of %s", o.only, strings.Join(parts, ", "))
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	switch o.only { // these run only when they are named; the first two compare commits
	case partFleet:
		return fleetPart(ctx, root, o, os.Stdout)
	case partGate:
		return gatePart(ctx, root, o, os.Stdout)
	case partReplicas:
		return replicasPart(ctx, root, o, os.Stdout)
	case partPostgres:
		return postgresPart(ctx, root, o, os.Stdout)
	}
	b := &bench{options: o}
	if o.only != partRegistration {
		if err := b.onFleet(ctx, root); err != nil {
			return err
		}
	}
	var failed error
	if o.measures(partRegistration) { // last, without the fleet, because it needs the whole machine
		b.results.hubRequests, failed = registers(ctx, root, o.clusters, o.idle, os.Stdout)
	}
	// A failure must not lose the earlier results.
	b.results.parts = func(part string) bool { return o.measures(part) && (part != partRegistration || failed == nil) }
	b.results.write(os.Stdout)
	if failed == nil && o.check {
		return b.results.check()
	}
	return failed
}

// onFleet starts a fleet and measures the parts that need it.
func (b *bench) onFleet(ctx context.Context, root string) (err error) {
	dir, err := os.MkdirTemp("", "hawser-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs, err := controlplane.Build(ctx, root, os.Stderr)
	if err != nil {
		return err
	}
	b.dir = dir
	var auditFlags []string
	if b.audit, auditFlags, err = newAudit(dir); err != nil {
		return err
	}
	b.fleet = fleet.New(fleet.Config{
		Root: root, Dir: dir, Bin: filepath.Join(root, "bin"), ControlPlane: programs,
		Clusters: []string{cluster}, APIServerArgs: auditFlags,
		Printf: b.printf,
	})
	if err := b.fleet.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.fleet.Stop()) }()
	if b.ca, err = b.fleet.PKI().Authority(); err != nil {
		return err
	}
	if b.measures(partCore) {
		if err := b.core(ctx); err != nil {
			return err
		}
	}
	if b.measures(partWorks) {
		if err := b.works(ctx); err != nil {
			return err
		}
	}
	if b.measures(partMQTT) {
		return b.transports(ctx)
	}
	return nil
}

// core measures publishes and deliveries, beside the echo service.
func (b *bench) core(ctx context.Context) error {
	echo, err := b.startEcho(ctx)
	if err != nil {
		return err
	}
	defer echo.Kill()
	return b.measure(ctx)
}

// echoAddr returns an address on the broker's IP, because the echo service uses the broker's certificate.
func (b *bench) echoAddr() string {
	host, _, _ := net.SplitHostPort(b.fleet.BrokerAddr()) // always host:port
	return net.JoinHostPort(host, "8190")
}

// startEcho starts this program as the echo server.
func (b *bench) startEcho(ctx context.Context) (*childproc.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return childproc.Start(ctx, childproc.Spec{
		Name: "echo", Path: self, Args: []string{"-serve-echo", string(b.fleet.PKI()), "-echo-addr", b.echoAddr()}, LogFile: echoLog(b.dir),
		Ready: func(ctx context.Context) error {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", b.echoAddr())
			if err != nil {
				return err
			}
			return c.Close()
		},
	})
}

func (b *bench) measure(ctx context.Context) error {
	b.printf("the fleet rests for %s", b.idle)
	select {
	case <-time.After(b.idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := b.memory(); err != nil {
		return err
	}
	conns, err := b.connect()
	defer func() {
		for _, c := range conns {
			_ = c.Close() // fails only if it is closed already
		}
	}()
	if err != nil {
		return err
	}
	for i := range rounds {
		b.printf("round %d of %d", i+1, rounds)
		for _, step := range []func(context.Context) error{b.limits, b.publishes, b.latency, b.apply} {
			if err := step(ctx); err != nil {
				return err
			}
		}
	}
	return b.deliveries(ctx)
}

// connect opens the publishers' connections to echo and broker.
func (b *bench) connect() (conns []*grpc.ClientConn, err error) {
	for range publisherConns {
		for _, to := range []struct {
			addr string
			list *[]cloudeventsv1.CloudEventServiceClient
		}{{b.echoAddr(), &b.echo}, {b.fleet.BrokerAddr(), &b.broker}} {
			c, err := client(b.ca, to.addr, pki.Source, source)
			if err != nil {
				return conns, err
			}
			conns = append(conns, c)
			*to.list = append(*to.list, cloudeventsv1.NewCloudEventServiceClient(c))
		}
	}
	return conns, nil
}

func (b *bench) limits(ctx context.Context) error {
	d, err := fdatasync(b.dir)
	if err != nil {
		return err
	}
	r := &b.results
	r.fdatasync = append(r.fdatasync, milliseconds(d))
	_, took, err := publishRate(ctx, b.echo, 1, b.freshSpec)
	if err != nil {
		return err
	}
	r.echoRTT = append(r.echoRTT, milliseconds(percentile(took, 50)))
	rate, _, err := publishRate(ctx, b.echo, 64, b.freshSpec)
	r.echo64 = append(r.echo64, rate)
	return err
}

// freshSpec returns a new version of one of many works, of a cluster without subscribers.
func (b *bench) freshSpec(worker, i int) *cloudeventsv1.PublishRequest {
	return spec("bench-unsubscribed", fmt.Sprintf("w%d-%d", worker, i%64), b.version.Add(1))
}

func (b *bench) publishes(ctx context.Context) error {
	r := &b.results
	rate, _, err := publishRate(ctx, b.broker, 1, b.freshSpec)
	if err != nil {
		return err
	}
	r.publish1 = append(r.publish1, rate)
	rate, _, err = publishRate(ctx, b.broker, 64, b.freshSpec)
	r.publish64 = append(r.publish64, rate)
	return err
}

func (b *bench) latency(ctx context.Context) error {
	s, err := openSession(ctx, b.ca, b.fleet.BrokerAddr(), "bench-latency")
	if err != nil {
		return err
	}
	defer closeSessions([]*session{s})
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var took []time.Duration
	for range latencySamples {
		d, err := s.deliver(ctx, b.broker[0], b.version.Add(1))
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	r := &b.results
	r.delivered50 = append(r.delivered50, milliseconds(percentile(took, 50)))
	r.delivered99 = append(r.delivered99, milliseconds(percentile(took, 99)))
	return nil
}

// deliveries compares 100 sessions with 3,000 sessions, in alternating rounds.
func (b *bench) deliveries(ctx context.Context) error {
	const few, many = 100, 3000
	b.printf("opening %d sessions", many)
	before, err := vmRSS(b.fleet.Program(fleet.Broker).PID())
	if err != nil {
		return err
	}
	for i := range rounds {
		for _, n := range []int{few, many} {
			sessions, err := openSessions(ctx, b.ca, b.fleet.BrokerAddr(), n)
			if err != nil {
				return err
			}
			rate := 0.0
			if err = warmUp(ctx, b.broker, sessions, &b.version); err == nil {
				rate, err = deliveryRate(ctx, b.broker, sessions, &b.version)
			}
			if err == nil && n == many && i == 0 {
				b.results.perSession, err = sessionMemory(b.fleet.Program(fleet.Broker).PID(), before, n)
			}
			closeSessions(sessions)
			if err != nil {
				return err
			}
			if n == few {
				b.results.deliver100 = append(b.results.deliver100, rate)
			} else {
				b.results.deliver3000 = append(b.results.deliver3000, rate)
			}
		}
	}
	return nil
}
