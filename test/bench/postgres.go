package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/internal/pki"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

const (
	partPostgres = "postgres"
	// toDatabase and toStandby are the delays, in each direction, of the row with a network.
	toDatabase = time.Millisecond
	toStandby  = 2 * time.Millisecond
	// storeSessions is the number of subscribed agents.
	storeSessions = 100
)

// The targets of the part.
const (
	postgresShare = 0.6  // of the publishes of the embedded store, at 64
	replicasShare = 0.5  // of the publishes of one broker over the same server, at 64
	delayedRate   = 3000 // publishes a second at 64 with the delays
	delayedWithin = 50   // their 99th percentile, in ms
	stoppedWithin = 2000 // the longest publish beside a broker that is stopped in a commit, in ms
)

// site is one or several brokers over one store.
type site struct {
	name     string
	brokers  []*replica
	conns    []*grpc.ClientConn
	clients  []cloudeventsv1.CloudEventServiceClient
	sessions []*session
	servers  []*postgres.Server

	brokerCPU, databaseCPU              sample // per publish at 64
	publish1, publish64, took50, took99 sample
	delivered50, delivered99, deliver   sample
	stopped                             sample // the longest publish beside a stopped broker
}

// storeBench is a run of the part.
type storeBench struct {
	broker    string // path of the program
	dir       string
	keys      pki.Dir
	ca        *pki.Authority
	version   atomic.Int32
	fdatasync sample
	databases []*postgres.Server
	sites     []*site
}

// postgresPart measures publishes with the stores in alternating rounds.
func postgresPart(ctx context.Context, root string, o options, out io.Writer) error {
	b := &storeBench{broker: filepath.Join(root, "bin", "hawser-broker")}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the delayed connections
	measured := withKeys(func(keys pki.Dir) error { return b.run(ctx, root, keys) })
	if len(b.fdatasync) == 0 {
		return measured
	}
	// A failure must not lose the earlier results.
	goals := b.write(out)
	if measured == nil && o.check {
		return checkGoals(goals)
	}
	return measured
}

// run starts databases and brokers, and ends them after the rounds.
func (b *storeBench) run(ctx context.Context, root string, keys pki.Dir) (err error) {
	b.keys = keys
	if b.ca, err = keys.Authority(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "hawser-bench-postgres-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop(), os.RemoveAll(b.dir)) }()
	if err := b.startSites(ctx, root); err != nil {
		return err
	}
	for round := range rounds {
		d, err := fdatasync(b.dir)
		if err != nil {
			return err
		}
		b.fdatasync = append(b.fdatasync, milliseconds(d))
		for _, s := range b.sites {
			fmt.Fprintf(os.Stderr, "bench: round %d of %d: %s\n", round+1, rounds, s.name)
			if err := b.measure(ctx, s); err != nil {
				return fmt.Errorf("%s: %w\n%s", s.name, err, s.brokers[0].process.LogTail())
			}
		}
	}
	return nil
}

// startSites starts one server for the brokers without delays, and another one with a standby.
func (b *storeBench) startSites(ctx context.Context, root string) error {
	programs, err := postgres.Fetch(ctx, root, os.Stderr)
	if err != nil {
		return err
	}
	near, err := b.startDatabase(ctx, programs, "near")
	if err != nil {
		return err
	}
	if err := near.Exec(ctx, postgres.Superuser, "CREATE DATABASE one", "CREATE DATABASE three"); err != nil {
		return err
	}
	distant, err := b.startDelayed(ctx, programs)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		site
		url     string
		brokers int
	}{
		{site{name: "embedded store"}, "", 1},
		{site{name: "PostgreSQL × 1", servers: b.databases[:1]}, near.URL("one"), 1},
		{site{name: "PostgreSQL × 3", servers: b.databases[:1]}, near.URL("three"), replicaCount},
		{site{name: "with delays", servers: b.databases[1:]}, distant, 1},
	} {
		b.sites = append(b.sites, &s.site)
		if err := b.startSite(ctx, &s.site, s.url, s.brokers); err != nil {
			return err
		}
	}
	return nil
}

func (b *storeBench) startDatabase(ctx context.Context, programs, name string) (*postgres.Server, error) {
	s, err := postgres.Create(ctx, postgres.Config{
		Programs: programs, Dir: filepath.Join(b.dir, name),
		Settings: map[string]string{"min_wal_size": "'1GB'", "max_wal_size": "'4GB'", "shared_buffers": "'256MB'"},
	})
	if err != nil {
		return nil, err
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	b.databases = append(b.databases, s)
	return s, s.WarmUp(ctx)
}

// startDelayed starts a server and its synchronous standby, both behind delays. It returns the delayed URL.
func (b *storeBench) startDelayed(ctx context.Context, programs string) (string, error) {
	primary, err := b.startDatabase(ctx, programs, "primary")
	if err != nil {
		return "", err
	}
	const name = "standby"
	standby, err := primary.Standby(ctx, filepath.Join(b.dir, name))
	if err != nil {
		return "", err
	}
	if err := standby.Start(ctx); err != nil {
		return "", err
	}
	b.databases = append(b.databases, standby)
	addr, err := delayed(ctx, primary.Addr(), toStandby)
	if err != nil {
		return "", err
	}
	host, port, _ := net.SplitHostPort(addr) // always host:port
	conninfo := fmt.Sprintf("host=%s port=%s user=%s password=%s sslmode=disable application_name=%s", host, port, postgres.Superuser, primary.Password(), name)
	if err := standby.Exec(ctx, postgres.Superuser, "ALTER SYSTEM SET primary_conninfo = '"+conninfo+"'", "SELECT pg_reload_conf()"); err != nil {
		return "", err
	}
	if err := primary.Synchronous(ctx, name); err != nil {
		return "", err
	}
	addr, err = delayed(ctx, primary.Addr(), toDatabase)
	return postgres.URL(addr, postgres.Superuser, primary.Password(), postgres.Superuser), err
}

// startSite starts the brokers of a store, and connects publishers and agents to all of them.
func (b *storeBench) startSite(ctx context.Context, s *site, url string, brokers int) (err error) {
	for range brokers {
		r := &replica{dir: filepath.Join(b.dir, fmt.Sprintf("broker-%d-%d", len(b.sites), len(s.brokers)+1))}
		s.brokers = append(s.brokers, r)
		if err := b.startBroker(ctx, r, url); err != nil {
			return err
		}
	}
	for n := range publisherConns {
		c, err := client(b.ca, s.brokers[n%brokers].addr, pki.Source, source)
		if err != nil {
			return err
		}
		s.conns, s.clients = append(s.conns, c), append(s.clients, cloudeventsv1.NewCloudEventServiceClient(c))
	}
	for n := range storeSessions {
		c, err := openSession(ctx, b.ca, s.brokers[n%brokers].addr, clusterName(n))
		if err != nil {
			return err
		}
		s.sessions = append(s.sessions, c)
	}
	return warmUp(ctx, s.clients, s.sessions, &b.version)
}

func (b *storeBench) startBroker(ctx context.Context, r *replica, url string) (err error) {
	if r.addr, err = freeAddr(rigHost); err != nil {
		return err
	}
	if r.admin, err = freeAddr(rigHost); err != nil {
		return err
	}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return err
	}
	text := brokerConfig(b.keys, r.addr, r.admin, filepath.Join(r.dir, "data"))
	if url != "" {
		text += fmt.Sprintf("store: {engine: postgres, url: %q}\n", url)
	}
	config := filepath.Join(r.dir, "broker.yaml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	r.process, err = childproc.Start(ctx, childproc.Spec{
		Name: filepath.Base(r.dir), Path: b.broker, Args: []string{"--config", config}, LogFile: filepath.Join(r.dir, "log"), Ready: readyAt(r.admin),
	})
	return err
}

// stop ends brokers and databases, each standby before its primary.
func (b *storeBench) stop() (err error) {
	for _, s := range b.sites {
		closeSessions(s.sessions)
		for _, c := range s.conns {
			_ = c.Close() // fails only if it is closed already
		}
		for _, r := range s.brokers {
			if r.running() {
				r.process.Kill()
			}
		}
	}
	for n := range b.databases {
		err = errors.Join(err, b.databases[len(b.databases)-1-n].Stop())
	}
	return err
}

// fresh returns a new version of one of many works, of a cluster without subscribers.
func (b *storeBench) fresh(worker, i int) *cloudeventsv1.PublishRequest {
	return spec("bench-unsubscribed", "w"+strconv.Itoa(worker)+"-"+strconv.Itoa(i%64), b.version.Add(1))
}

// measure measures one store once.
func (b *storeBench) measure(ctx context.Context, s *site) error {
	rate, _, err := publishRate(ctx, s.clients, 1, b.fresh)
	if err != nil {
		return err
	}
	s.publish1 = append(s.publish1, rate)
	brokers, database := s.spent()
	rate, took, err := publishRate(ctx, s.clients, 64, b.fresh)
	if err != nil {
		return err
	}
	brokersAfter, databaseAfter := s.spent()
	s.brokerCPU = append(s.brokerCPU, cost{cpu: brokersAfter - brokers}.per(len(took)).microseconds())
	s.databaseCPU = append(s.databaseCPU, cost{cpu: databaseAfter - database}.per(len(took)).microseconds())
	s.publish64 = append(s.publish64, rate)
	s.took50, s.took99 = append(s.took50, milliseconds(percentile(took, 50))), append(s.took99, milliseconds(percentile(took, 99)))
	took = nil
	for n := range latencySamples {
		// The agent of a delivery is mostly at another broker than its publisher.
		d, err := s.sessions[n%storeSessions].deliver(ctx, s.clients[n%publisherConns], b.version.Add(1))
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	s.delivered50, s.delivered99 = append(s.delivered50, milliseconds(percentile(took, 50))), append(s.delivered99, milliseconds(percentile(took, 99)))
	if rate, err = deliveryRate(ctx, s.clients, s.sessions, &b.version); err != nil {
		return err
	}
	s.deliver = append(s.deliver, rate)
	if len(s.brokers) == 1 {
		return nil
	}
	took, err = b.stopFirst(ctx, s)
	s.stopped = append(s.stopped, milliseconds(percentile(took, 100)))
	return err
}

// stopFirst stops the first broker of a site (SIGSTOP) while all commit without a pause. It returns the times of
// publishes at the others before and after the stop.
func (b *storeBench) stopFirst(ctx context.Context, s *site) (took []time.Duration, err error) {
	const clients = 32
	var first, others []cloudeventsv1.CloudEventServiceClient
	for n, c := range s.clients {
		if n%len(s.brokers) == 0 {
			first = append(first, c)
		} else {
			others = append(others, c)
		}
	}
	var load sync.WaitGroup
	defer load.Wait()
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	for w := range clients {
		load.Go(func() {
			for i := 0; loading.Err() == nil; i++ {
				_, _ = first[w%len(first)].Publish(loading, b.fresh(w, i)) // fails while the broker is stopped
			}
		})
	}
	process, stopped := s.brokers[0].process, make(chan error, 1)
	go func() { // ends before publishRate
		err := pass(ctx, cellTime/4)
		if err == nil {
			err = process.Signal(syscall.SIGSTOP)
		}
		stopped <- err
	}()
	_, took, err = publishRate(ctx, others, clients, func(w, i int) *cloudeventsv1.PublishRequest { return b.fresh(clients+w, i) })
	return took, errors.Join(err, <-stopped, process.Signal(syscall.SIGCONT))
}

// spent returns the processor seconds of brokers and database so far.
func (s *site) spent() (brokers, database float64) {
	for _, r := range s.brokers {
		brokers += secondsOf(r.process.PID())
	}
	for _, server := range s.servers {
		for _, pid := range server.PIDs() {
			database += secondsOf(pid)
		}
	}
	return brokers, database
}

// secondsOf returns the processor seconds of a process, 0 if it has ended: PostgreSQL ends workers at any time.
func secondsOf(pid int) float64 {
	seconds, _ := cpuSeconds(pid)
	return seconds
}

// write writes the table and the targets.
func (b *storeBench) write(out io.Writer) []goal {
	fmt.Fprintf(out, "works of %d bytes; PostgreSQL on the same machine; the delays are %s to the database and %s to its synchronous standby, in each direction\n\n", payloadBytes, toDatabase, toStandby)
	rows := [][]string{{""}}
	for _, s := range b.sites {
		rows[0] = append(rows[0], s.name)
	}
	for _, f := range []struct {
		name, format string
		of           func(*site) sample
	}{
		{"durable publishes a second, 1 in flight", "%.0f", func(s *site) sample { return s.publish1 }},
		{"durable publishes a second, 64 in flight", "%.0f", func(s *site) sample { return s.publish64 }},
		{"publish p50, 64 in flight, ms", "%.1f", func(s *site) sample { return s.took50 }},
		{"publish p99, 64 in flight, ms", "%.1f", func(s *site) sample { return s.took99 }},
		{"processor of the brokers per publish, 64 in flight, µs", "%.0f", func(s *site) sample { return s.brokerCPU }},
		{"processor of PostgreSQL per publish, 64 in flight, µs", "%.0f", func(s *site) sample { return s.databaseCPU }},
		{"publish → delivered p50, ms", "%.2f", func(s *site) sample { return s.delivered50 }},
		{"publish → delivered p99, ms", "%.2f", func(s *site) sample { return s.delivered99 }},
		{"deliveries a second, 100 sessions, loop of 64", "%.0f", func(s *site) sample { return s.deliver }},
	} {
		row := []string{f.name}
		for _, s := range b.sites {
			row = append(row, f.of(s).text(f.format))
		}
		rows = append(rows, row)
	}
	writeMarkdown(out, rows)
	fmt.Fprintf(out, "longest publish at two brokers while the third is stopped in a commit (SIGSTOP): %s ms\n", b.sites[2].stopped.text("%.0f"))
	fmt.Fprintf(out, "fdatasync of 4 KiB: %s ms\n\n", b.fdatasync.text("%.3f"))
	embedded, one, three, slow := b.sites[0], b.sites[1], b.sites[2], b.sites[3]
	goals := []goal{
		{name: "publishes at 64, PostgreSQL × 1 : embedded store", got: ratios(one.publish64, embedded.publish64).median(), want: postgresShare},
		{name: "publishes at 64, PostgreSQL × 3 : × 1", got: ratios(three.publish64, one.publish64).median(), want: replicasShare},
		{name: "publishes a second at 64 with delays", got: slow.publish64.median(), want: delayedRate},
		{name: "their p99, ms", got: slow.took99.median(), want: delayedWithin, atMost: true},
		{name: "longest publish beside a stopped broker, ms", got: slices.Max(append(sample{0}, three.stopped...)), want: stoppedWithin, atMost: true},
	}
	writeGoals(out, goals)
	return goals
}
