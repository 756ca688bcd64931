package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// inSync is the number of works of an agent that reconnects and misses none.
const inSync = 10_000

// BenchmarkResume compares the CPU time of brokers when an agent reconnects that has all of its 10,000 works.
// The Hawser broker resumes by cursor and by version list, the OCM broker only by list. The Hawser broker runs
// in the test's process, so its time includes that of the agent.
func BenchmarkResume(b *testing.B) {
	b.Run("hawser/cursor", func(b *testing.B) {
		agent, held := syncedAgent(b)
		c := agent.resume(b, "", held)
		measureCPU(b, ownCPU, func() { c = agent.resume(b, c.Cursor.String(), nil) })
	})
	b.Run("hawser/list", func(b *testing.B) {
		agent, held := syncedAgent(b)
		measureCPU(b, ownCPU, func() { agent.resume(b, "", held) })
	})
	b.Run("ocm/list", func(b *testing.B) {
		broker := startOCMBroker(b, "")
		w := withID("sync-%d", newWork(cluster1, "sync-%d", 1))
		broker.do(command{Do: "fill", Count: inSync, Event: shown(specOf(b, src1, codec.CreateRequest, w))})
		held := make([]codec.ResourceVersion, inSync)
		for n := range held {
			held[n] = codec.ResourceVersion{ResourceID: fmt.Sprintf("sync-%d", n), ResourceVersion: 1}
		}
		patient := func(o *transportgrpc.Options) { o.PublishTimeout = 5 * time.Minute }
		agent := &syncing{connectTo(b, broker.addr, pki.Agent, cluster1, patient)}
		measureCPU(b, func(testing.TB) time.Duration { return cpuOf(b, broker.cmd.Process.Pid) }, func() { agent.list(b, held) })
	})
}

// measureCPU reports the processor time of do. used returns the time that a process has used so far.
func measureCPU(b *testing.B, used func(testing.TB) time.Duration, do func()) {
	b.Helper()
	b.ReportAllocs()
	before := used(b)
	for b.Loop() {
		do()
	}
	b.ReportMetric(float64((used(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// ownCPU returns the processor time of this process.
func ownCPU(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuOf returns the processor time of another process, in steps of 10 ms.
func cpuOf(t testing.TB, pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name ends with the last parenthesis. After it, user and system time are the 12th and 13th field.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// syncing is a client that behaves to a broker as an agent with works.
type syncing struct{ *client }

// syncedAgent returns a Hawser agent and its works: all works that a new broker has for its cluster.
func syncedAgent(b *testing.B) (*syncing, []codec.ResourceVersion) {
	b.Helper()
	broker := startBroker(b)
	src := broker.connect(b, pki.Source, src1)
	held := make([]codec.ResourceVersion, inSync)
	var g errgroup.Group
	g.SetLimit(64)
	for n := range held {
		id := fmt.Sprintf("sync-%d", n)
		held[n] = codec.ResourceVersion{ResourceID: id, ResourceVersion: 1}
		e := specOf(b, src1, codec.CreateRequest, withID(id, newWork(cluster1, id, 1)))
		g.Go(func() error { _, err := src.tryPublish(e); return err })
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return &syncing{broker.connect(b, pki.Agent, cluster1)}, held
}

// errResumed ends a subscription that is in sync.
var errResumed = errors.New("in sync")

// resume subscribes, and sends the version list if the broker requests it. It returns the checkpoint that
// reports the agent as in sync.
func (a *syncing) resume(b *testing.B, cursor string, held []codec.ResourceVersion) (c codec.Checkpoint) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	accepted, listed := make(chan transport.Accepted, 1), make(chan error, 1)
	go func() { // ends with resume, which waits for it
		var err error
		select {
		case s := <-accepted:
			if s.Resync == codec.ResyncList {
				_, err = a.Publish(ctx, versionList(b, held), s.SubscriptionID)
			}
		case <-ctx.Done():
		}
		listed <- err
	}()
	s := transport.Subscription{
		Filter: transport.Filter{Cluster: cluster1, DataType: codec.ManifestBundles},
		Hello:  transport.Hello{Protocol: transport.Protocol, Cursor: cursor},
	}
	err := a.Subscribe(ctx, s, func(a transport.Accepted) { accepted <- a }, func(_ context.Context, e codec.Event) error {
		if e.Type() != codec.TypeCheckpoint {
			return nil
		}
		var err error
		if c, err = codec.ParseCheckpoint(e); err == nil && c.Digest != nil {
			return errResumed
		}
		return err
	})
	if failed := <-listed; !errors.Is(err, errResumed) || failed != nil {
		b.Fatalf("resume: %v, list: %v", err, failed)
	}
	if c.Digest.Count != inSync {
		b.Fatalf("%d works are in sync", c.Digest.Count)
	}
	return c
}

// list connects as an OCM agent does: subscribe, list, and wait for the answer to the list. An OCM broker
// compares within that call.
func (a *syncing) list(b *testing.B, held []codec.ResourceVersion) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	accepted, listed := make(chan transport.Accepted, 1), make(chan error, 1)
	go func() { // list waits for it
		defer cancel()
		select {
		case s := <-accepted:
			_, err := a.Publish(ctx, versionList(b, held), s.SubscriptionID)
			listed <- err
		case <-ctx.Done():
			listed <- ctx.Err()
		}
	}()
	sent := 0
	err := a.Subscribe(ctx, transport.Subscription{Filter: transport.Filter{Cluster: cluster1, DataType: codec.ManifestBundles}},
		func(a transport.Accepted) { accepted <- a }, func(context.Context, codec.Event) error { sent++; return nil })
	if failed := <-listed; failed != nil || sent > 0 {
		b.Fatalf("list: %v, %d works were sent, subscription: %v", failed, sent, err)
	}
}

func versionList(b *testing.B, held []codec.ResourceVersion) codec.Event {
	e, err := codec.NewSpecResyncRequest(codec.ResyncParams{
		ID: "list", Time: time.Now(), Source: cluster1 + "-agent", Cluster: cluster1, DataType: codec.ManifestBundles,
	}, held)
	if err != nil {
		b.Error(err)
	}
	return e
}
