package broker_test

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
)

// TestTimes_OfVersions checks that the times from the commit of a version to its delivery and to its status are
// measured once. Later deliveries and statuses do not count.
func TestTimes_OfVersions(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, broker.Config{Registry: registry}, func(w *world) {
		source := w.source("src")
		measured := func(name string, times uint64, seconds float64) {
			t.Helper()
			h := histogram(t, registry, name)
			if h.GetSampleCount() != times || h.GetSampleSum() != seconds {
				t.Errorf("%s: %d times, %v s in all, want %d, %v s", name, h.GetSampleCount(), h.GetSampleSum(), times, seconds)
			}
		}
		w.put(source, work{version: 1}.event())
		<-time.After(3 * time.Second) // the agent connects late
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		agent.take()
		measured("hawser_broker_delivery_duration_seconds", 1, 3)
		<-time.After(2 * time.Second)
		w.put(agent.peer, w.event(report{version: 1}))
		measured("hawser_broker_status_duration_seconds", 1, 5)

		<-time.After(time.Hour)
		w.put(agent.peer, w.event(report{version: 1})) // a later status of the same version
		agent.cancel()
		again := w.open(w.agent("c1"), hawser)
		w.request(again) // the agent has lost its works
		again.take()
		w.put(again.peer, w.event(report{version: 1}))
		measured("hawser_broker_delivery_duration_seconds", 1, 3)
		measured("hawser_broker_status_duration_seconds", 1, 5)

		w.put(source, work{version: 2}.event())
		w.put(again.peer, w.event(report{version: 1})) // the agent has not applied the new version yet
		<-time.After(time.Second)
		w.put(again.peer, w.event(report{version: 2}))
		measured("hawser_broker_status_duration_seconds", 2, 6)
	})
}

// histogram finds a histogram without labels.
func histogram(t *testing.T, r *prometheus.Registry, name string) *dto.Histogram {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetHistogram()
		}
	}
	t.Fatalf("no metric %s", name)
	return nil
}
