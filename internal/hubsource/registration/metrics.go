package registration

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/transport"
)

const metricPrefix = "hawser_hubsource_registration_"

// metrics are the metrics of a [Server]. docs/metrics.md describes them, and a test compares the two.
type metrics struct {
	requests, leases, published *prometheus.CounterVec
	took                        prometheus.Histogram
}

// newMetrics registers the metrics of a server, with gauges of its queues.
func newMetrics(r prometheus.Registerer, s *Server) *metrics {
	m := telemetry.NewMeter(r, metricPrefix)
	shown := func(name, help string, read func() int) {
		m.GaugeFunc(name, help, nil, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(read())
		})
	}
	shown("queued_requests", "Requests that wait for a worker.", func() int { return s.requests.queue.Len() })
	shown("queued_objects", "Objects that changed and are not published yet, at the replica of the broker that lags most.", func() (most int) {
		for _, l := range s.links {
			most = max(most, len(l.changes.order))
		}
		return most
	})
	shown("queued_leases", "Leases that were renewed and are to be written.", func() int { return len(s.renewals.due) })
	shown("pending_clusters", "ManagedClusters that the hub has not accepted.", func() int { return s.undecided.by[requester{}].clusters })
	shown("pending_csrs", "Undecided CertificateSigningRequests of clusters.", func() int { return s.undecided.all })
	return &metrics{
		requests:  m.Counters("requests_total", "Requests of agents and reviews of tokens, by resource and by result.", "type", "result"),
		took:      m.Delays("request_duration_seconds", "Time from the arrival of a request from the broker until its answer was known."),
		leases:    m.Counters("lease_writes_total", "Leases of clusters written to the hub, by result.", "result"),
		published: m.Counters("objects_total", "Objects published to the broker, by result.", "result"),
	}
}

// answered counts an answer.
func (m *metrics) answered(what string, err error, took time.Duration) {
	m.requests.WithLabelValues(what, resultOf(err)).Inc()
	m.took.Observe(took.Seconds())
}

// countPublished counts objects that were published.
func (m *metrics) countPublished(n int, err error) {
	result := "ok"
	if err != nil {
		result = transport.CodeOf(err).String()
	}
	m.published.WithLabelValues(result).Add(float64(n))
}

// resultOf returns the label of the hub's answer.
func resultOf(err error) string {
	switch {
	case apierrors.IsAlreadyExists(err):
		return "already_exists"
	case apierrors.IsTooManyRequests(err):
		return "too_many"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errTooLate):
		return "late"
	}
	return kubeerror.Result(err)
}
