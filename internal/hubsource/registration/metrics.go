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

const metricPrefix = "hawser_hub_registration_"

// metrics are those of a [Server]; docs/metrics.md describes them, and a test compares the two.
type metrics struct {
	requests  *prometheus.CounterVec
	took      prometheus.Histogram
	leases    *prometheus.CounterVec
	published *prometheus.CounterVec
	state     *stateCollector
}

func newMetrics(r prometheus.Registerer, read func() stats) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "requests_total",
			Help: "Requests of agents and reviews of tokens, by what they are about and by what the hub said."}, []string{"type", "result"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricPrefix + "request_duration_seconds", Buckets: telemetry.Waits,
			Help: "Time from when a request came from the broker until its answer was known."}),
		leases: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "lease_writes_total",
			Help: "Leases of clusters written to the hub, by what the hub said."}, []string{"result"}),
		published: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "objects_total",
			Help: "Objects published to the broker, by what it said."}, []string{"result"}),
		state: &stateCollector{read: read},
	}
	for _, c := range []prometheus.Collector{m.requests, m.took, m.leases, m.published, m.state} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// answered counts an answer.
func (m *metrics) answered(what string, err error, took time.Duration) {
	m.requests.WithLabelValues(what, resultOf(err)).Inc()
	m.took.Observe(took.Seconds())
}

// said counts objects that were published.
func (m *metrics) said(n int, err error) {
	result := "ok"
	if err != nil {
		result = transport.CodeOf(err).String()
	}
	m.published.WithLabelValues(result).Add(float64(n))
}

// resultOf is the label of the hub's answer.
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

// stats are the numbers of what waits.
type stats struct{ requests, objects, leases, clusters, signingRequests int }

func (s *Server) stats() stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return stats{
		requests: s.asks.turns.Len(), objects: len(s.changes.order), leases: len(s.renewals.due),
		clusters: s.undecided.by[asker{}].clusters, signingRequests: s.undecided.all,
	}
}

// stateCollector exports [stats].
type stateCollector struct{ read func() stats }

var (
	descRequests        = prometheus.NewDesc(metricPrefix+"queue_requests", "Requests that wait for a worker.", nil, nil)
	descObjects         = prometheus.NewDesc(metricPrefix+"queue_objects", "Objects that changed and are not published yet.", nil, nil)
	descLeases          = prometheus.NewDesc(metricPrefix+"queue_leases", "Leases that were renewed and are to be written.", nil, nil)
	descClusters        = prometheus.NewDesc(metricPrefix+"waiting_clusters", "ManagedClusters that the hub has not accepted.", nil, nil)
	descSigningRequests = prometheus.NewDesc(metricPrefix+"waiting_csrs", "CertificateSigningRequests of clusters that nobody decided about.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descRequests, descObjects, descLeases, descClusters, descSigningRequests} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.read()
	for d, n := range map[*prometheus.Desc]int{
		descRequests: s.requests, descObjects: s.objects, descLeases: s.leases, descClusters: s.clusters, descSigningRequests: s.signingRequests,
	} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
}
