package webhook

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
)

// result is the result of a request, as the metric names it.
type result string

// The results.
const (
	resultAdmitted   result = "admitted"
	resultRejected   result = "rejected"   // the work breaks a rule, or the user lacks a right
	resultFailed     result = "failed"     // the hub did not answer an access review
	resultMalformed  result = "malformed"  // the body was no review
	resultOverloaded result = "overloaded" // the request waited too long for a slot
	resultPanicked   result = "panicked"
)

// operation is the reviewed operation, as the metric names it.
type operation string

// The operations.
const (
	operationCreate operation = "create"
	operationUpdate operation = "update"
	operationOther  operation = "other"
)

// operationOf returns one of the operations above, whatever a client sends.
func operationOf(req *admissionv1.AdmissionRequest) operation {
	switch req.Operation {
	case admissionv1.Create, admissionv1.Update:
		return operation(strings.ToLower(string(req.Operation)))
	default:
		return operationOther
	}
}

const metricPrefix = "hawser_admission_"

// metrics are described in docs/metrics.md, and a test compares the two.
type metrics struct {
	requests *prometheus.CounterVec
	duration prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "requests_total",
			Help: "Requests to the webhook, by operation and by what became of them."}, []string{"operation", "result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricPrefix + "request_duration_seconds",
			Help: "Time from a request's arrival to its answer.", Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 11)}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(op operation, res result, took time.Duration) {
	m.requests.WithLabelValues(string(op), string(res)).Inc()
	m.duration.Observe(took.Seconds())
}
