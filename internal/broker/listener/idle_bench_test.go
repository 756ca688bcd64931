package listener_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

const (
	idleSessions = 1000
	// idleBeat is the interval of heartbeats, and idleBeats the number of intervals that are measured.
	idleBeat, idleBeats = time.Second, 5
	// idleSeparator is between the certificate and the key in idleCA.
	idleSeparator = "\n\n"
	// The names of the variables with which the process of the clients is started.
	idleAddr, idleOver, idleCA = "HAWSER_BENCH_ADDR", "HAWSER_BENCH_OVER", "HAWSER_BENCH_CA"
)

// BenchmarkIdleSession measures what an idle session costs the broker: memory, goroutines, and the processor
// time and allocations between two heartbeats. The clients run in another process, which is this benchmark again.
func BenchmarkIdleSession(b *testing.B) {
	if addr := os.Getenv(idleAddr); addr != "" {
		if err := clients(b.Context(), addr, os.Getenv(idleOver)); err != nil {
			b.Fatal(err)
		}
		return
	}
	for _, over := range []string{transport.GRPC, transport.MQTT} {
		b.Run(over, func(b *testing.B) { benchmarkIdle(b, over) })
	}
}

func benchmarkIdle(b *testing.B, over string) {
	k := testkit.StartBroker(b, testkit.Options{Port: true, Broker: broker.Config{Heartbeat: idleBeat}})
	certificate, key := k.CA.PEM()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkIdleSession$", "-test.benchtime=1x")
	cmd.Env, cmd.Stderr = append(os.Environ(), idleAddr+"="+k.Addr, idleOver+"="+over, idleCA+"="+certificate+idleSeparator+key), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	before := usageNow()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	open := false
	for lines := bufio.NewScanner(out); !open && lines.Scan(); {
		open = lines.Text() == "open"
	}
	if !open {
		b.Fatal("the clients did not connect")
	}
	<-time.After(2 * idleBeat)
	opened := usageNow()
	start := costNow()
	<-time.After(idleBeats * idleBeat)
	end := costNow()
	_ = in.Close() // the clients end
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	per := func(n uint64, unit string, each float64) { b.ReportMetric(float64(n)/each, unit) }
	per(opened.heap-before.heap, "heap-B/session", idleSessions)
	per(opened.stacks-before.stacks, "stack-B/session", idleSessions)
	per(opened.resident-before.resident, "resident-B/session", idleSessions)
	per(opened.goroutines-before.goroutines, "goroutines/session", idleSessions)
	per(end.allocs-start.allocs, "allocs/beat", idleSessions*idleBeats)
	per(end.cpu-start.cpu, "cpu-ns/beat", idleSessions*idleBeats)
}

// usage is the memory of the process after a collection.
type usage struct{ heap, stacks, resident, goroutines uint64 }

func usageNow() usage {
	for range 6 { // each collection halves stacks that are too large
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var total, resident uint64
	if b, err := os.ReadFile("/proc/self/statm"); err == nil { // pages; other systems do not have it
		_, _ = fmt.Sscan(string(b), &total, &resident)
	}
	return usage{heap: m.HeapAlloc, stacks: m.StackInuse, resident: resident * uint64(os.Getpagesize()), goroutines: uint64(runtime.NumGoroutine())}
}

// cost is all that the process has allocated, and the processor time that it has used.
type cost struct{ allocs, cpu uint64 }

func costNow() cost {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(s)
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // fails only for other arguments
	return cost{allocs: s[0].Value.Uint64(), cpu: uint64(r.Utime.Nano() + r.Stime.Nano())}
}

// clients opens the sessions, and keeps them open until standard input ends.
func clients(ctx context.Context, addr, over string) error {
	certificate, key, _ := strings.Cut(os.Getenv(idleCA), idleSeparator)
	ca, err := pki.ParseAuthority([]byte(certificate), []byte(key))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	next, failed := make(chan int), make(chan error, idleSessions)
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			for n := range next {
				failed <- openSession(ctx, ca, addr, over, fmt.Sprintf("c%d", n), &running)
			}
		})
	}
	for n := range idleSessions {
		next <- n
	}
	close(next)
	for range idleSessions {
		if err := <-failed; err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(os.Stdout, "\nopen"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	stop()
	running.Wait()
	return err
}

// openSession subscribes as an OCM agent without works does.
func openSession(ctx context.Context, ca *pki.Authority, addr, over, cluster string, running *sync.WaitGroup) error {
	pair, err := ca.Issue(pki.Request{Role: pki.Agent, Name: cluster, Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		return err
	}
	certificate, err := pair.TLS()
	if err != nil {
		return err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool(), Certificates: []tls.Certificate{certificate}}
	discard := slog.New(slog.DiscardHandler)
	var dialer transport.Dialer
	if over == transport.GRPC {
		dialer, err = transportgrpc.NewDialer(transportgrpc.Options{Target: addr, Credentials: credentials.NewTLS(config), Log: discard})
	} else {
		dialer, err = transportmqtt.NewDialer(transportmqtt.Options{
			Broker: addr, ClientID: cluster, Topics: mqttacl.DefaultLayout("source").Topics, TLS: func() *tls.Config { return config }, Log: discard,
		})
	}
	if err != nil {
		return err
	}
	conn, err := dialer.Dial(ctx)
	if err != nil {
		return err
	}
	accepted := make(chan error, 2)
	running.Go(func() {
		err := conn.Subscribe(ctx, transport.Subscription{Filter: transport.Filter{Cluster: cluster, DataType: codec.ManifestBundles}},
			func(transport.Accepted) { accepted <- nil }, func(context.Context, codec.Event) error { return nil })
		accepted <- err
		_ = conn.Close() // the benchmark is over
	})
	if err := <-accepted; err != nil {
		return err
	}
	event, err := codec.Builder{
		ID: "1", Time: time.Now(), Source: cluster + "-agent", Cluster: cluster, ContentType: codec.ContentTypeJSON, Data: []byte(`{"resourceVersions":[]}`),
		Type: codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.ResyncRequest}.String(),
	}.Event()
	if err == nil {
		_, err = conn.Publish(ctx, event, "")
	}
	return err
}
