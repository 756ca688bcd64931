package interop

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
)

// The number of works that an OCM agent lacks when it connects, and their size.
const (
	missing      = 5000
	missingBytes = 10 << 10
)

func missingID(n int) string { return fmt.Sprintf("missing-%d", n) }

// publishMissing publishes the works of cluster1 that its agent will lack.
func publishMissing(t testing.TB, b *ourBroker) {
	t.Helper()
	src := b.connect(t, pki.Source, src1)
	events := make([]codec.Event, missing)
	for n := range events {
		w := withID(missingID(n), newWork(cluster1, missingID(n), 1))
		w.Spec.Workload.Manifests[0] = configMap(w.Name, "1", missingBytes)
		events[n] = specOf(t, src1, codec.CreateRequest, w)
	}
	var g errgroup.Group
	g.SetLimit(64)
	for _, e := range events {
		g.Go(func() error { _, err := src.tryPublish(e); return err })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// awaitReceived waits until a quiet agent has received n events. n is a multiple of 1,000, because the agent
// prints a line only then.
func (a *ocmAgent) awaitReceived(t testing.TB, n int) {
	t.Helper()
	a.await(t, 0, fmt.Sprintf("%d events", n), func(l outputLine) bool { return l.What == "count" && l.Count == n })
}

// TestC43_ManyMissingWorks_AllArrive: an agent that lacks 50 MB of works gets them all, and its list request
// returns at once. (During that call it holds a lock that it needs to receive, so a broker that answers within
// the call waits forever.)
func TestC43_ManyMissingWorks_AllArrive(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	publishMissing(t, b)
	agent := startAgent(t, cluster1, b.addr, "-quiet")
	agent.awaitReceived(t, missing)

	ids, requests := map[string]bool{}, -1
	for n, p := range b.wire.since(0, func(passed) bool { return true }) {
		switch {
		case p.sent && p.peer.Name == cluster1:
			ids[p.id()] = true
		case published("spec.resync_request")(p):
			requests = n
			// The list request returned before a tenth of the works had been sent.
			if len(ids) > missing/10 {
				t.Errorf("the request returned after %d events", len(ids))
			}
		}
	}
	if len(ids) != missing || requests < 0 {
		t.Errorf("%d works were sent, want %d; request at %d", len(ids), missing, requests)
	}
}

// ocmTimeout is the time limit of the benchmark for the OCM broker, which hangs.
const ocmTimeout = 10 * time.Second

// BenchmarkMissingWorks compares how the Hawser broker and the OCM broker send 5,000 works of 10 KiB to an OCM
// agent that lacks them. The time starts with the agent's process. received is the number of works that
// arrived.
func BenchmarkMissingWorks(b *testing.B) {
	b.Run("hawser", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			broker := startBroker(b)
			publishMissing(b, broker)
			b.StartTimer()
			agent := startAgent(b, cluster1, broker.addr, "-quiet")
			agent.awaitReceived(b, missing)
			b.ReportMetric(missing, "received")
		}
	})
	b.Run("ocm", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			broker := startOCMBroker(b, "")
			w := withID("missing-%d", newWork(cluster1, "missing-%d", 1))
			w.Spec.Workload.Manifests[0] = configMap(w.Name, "1", missingBytes)
			broker.do(command{Do: "fill", Count: missing, Event: shown(specOf(b, src1, codec.CreateRequest, w))})
			b.StartTimer()
			agent := startAgent(b, cluster1, broker.addr, "-quiet")
			limit := time.NewTimer(ocmTimeout)
			defer limit.Stop()
			for received := 0; received < missing; {
				received = agent.do(command{Do: "count"}).Count
				b.ReportMetric(float64(received), "received")
				select {
				case <-limit.C:
					received = missing
				case <-time.After(10 * time.Millisecond):
				}
			}
		}
	})
}
