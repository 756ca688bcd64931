package intake

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/telemetry"
)

// metrics are listed, with their meaning, in docs/metrics.md.
type metrics struct {
	commitDuration                           prometheus.Observer
	commitOperations                         prometheus.Histogram
	commitFailures, graveRemoved, graveAcked prometheus.Counter
	graves                                   prometheus.Gauge
}

func newMetrics(m telemetry.Meter, queued *Budget) *metrics {
	m.Shown("queue_bytes", "Bytes of publishes that wait for their commit.", nil, func() float64 { return float64(queued.Used()) })
	return &metrics{
		commitDuration:   m.Seconds("commit_duration_seconds", "Time of one commit, sync included.").WithLabelValues(),
		commitOperations: m.Sizes("commit_operations", "Operations written by one commit."),
		commitFailures:   m.Counter("commit_failures_total", "Commits that failed; nothing of them was acknowledged."),
		graveRemoved:     m.Counter("graves_removed_total", "Graves removed after their retention."),
		graveAcked:       m.Counter("graves_acknowledged_total", "Graves removed because their source has seen them."),
		graves:           m.Gauge("graves", "Confirmed deletions kept for their sources, at the last sweep."),
	}
}

func (m *metrics) committed(ops int, took time.Duration, err error) {
	m.commitDuration.Observe(took.Seconds())
	m.commitOperations.Observe(float64(ops))
	if err != nil {
		m.commitFailures.Inc()
	}
}
