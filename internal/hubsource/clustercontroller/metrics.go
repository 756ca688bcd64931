package clustercontroller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/internal/telemetry"
)

const metricPrefix = "hawser_hubsource_"

// The results of approved CSRs; the metric has them beside the values of csrAction.
const (
	signed = "signed"
	failed = "failed"
)

type metrics struct {
	active   prometheus.Gauge
	csrs     *prometheus.CounterVec
	requests *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	m := telemetry.NewMeter(r, metricPrefix)
	all := metrics{
		active:   m.Gauge("registration_controllers_active", "1 while this replica manages the members of the hub."),
		csrs:     m.Counters("csrs_total", "CertificateSigningRequests of clusters, by decision.", "decision"),
		requests: m.Counters("registration_controllers_requests_total", "Requests to the hub about its members besides the informers', by operation and result.", "operation", "result"),
	}
	for _, decision := range []string{string(approve), string(deny), string(drop), signed, failed} {
		all.csrs.WithLabelValues(decision) // exports 0, so that the first increase is visible
	}
	return all
}

// did counts a request to the hub and its result, and returns err.
func (m metrics) did(operation string, err error) error {
	m.requests.WithLabelValues(operation, kubeerror.Result(err)).Inc()
	return err
}

// notAfterCollector exports when the CA that signs expires. There is no value while it cannot be read.
type notAfterCollector struct{ read func() (authority, error) }

var descNotAfter = prometheus.NewDesc(metricPrefix+"signer_not_after_timestamp_seconds",
	"When the CA that signs the certificates of clusters expires, in Unix time.", nil, nil)

// Describe implements prometheus.Collector.
func (r notAfterCollector) Describe(to chan<- *prometheus.Desc) { to <- descNotAfter }

// Collect implements prometheus.Collector.
func (r notAfterCollector) Collect(to chan<- prometheus.Metric) {
	if a, err := r.read(); err == nil {
		to <- prometheus.MustNewConstMetric(descNotAfter, prometheus.GaugeValue, float64(a.cert.NotAfter.Unix()))
	}
}
