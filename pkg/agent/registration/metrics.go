package registration

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics may be used before they are registered, and without a registry.
type metrics struct {
	issued   prometheus.Counter
	requests *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer, state func() Progress) (*metrics, error) {
	m := &metrics{
		issued: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_agent_registration_certificates_total", Help: "Client certificates taken into use, including the one in the Secret at the start."}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_registration_requests_total", Help: "Requests of the agent to its hub, by kind and result."}, []string{"resource", "result"}),
	}
	for w := range numRequestKinds {
		for _, result := range []string{"done", "failed"} {
			m.requests.WithLabelValues(w.String(), result)
		}
	}
	if registry == nil {
		return m, nil
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "hawser_agent_registration_pending", Help: "1 while the cluster is not part of the fleet: /readyz says what it waits for."}, func() float64 {
		if state().WaitReason != nil {
			return 1
		}
		return 0
	})
	notAfter := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "hawser_agent_registration_certificate_not_after_timestamp_seconds", Help: "When the client certificate that the hub issued expires, in Unix time; 0 without one."}, func() float64 {
		if own := state().Credential; own != nil {
			return float64(own.NotAfter.Unix())
		}
		return 0
	})
	lifetime := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "hawser_agent_registration_certificate_lifetime_seconds", Help: "For how long that certificate was made; 0 without one."}, func() float64 {
		if own := state().Credential; own != nil {
			return own.NotAfter.Sub(own.NotBefore).Seconds()
		}
		return 0
	})
	for _, c := range []prometheus.Collector{m.issued, m.requests, waiting, notAfter, lifetime} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) requested(w RequestKind, err error) {
	result := "done"
	if err != nil {
		result = "failed"
	}
	m.requests.WithLabelValues(w.String(), result).Inc()
}
