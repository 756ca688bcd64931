package registration

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/telemetry"
)

// metrics may be used without a registry.
type metrics struct {
	issued   prometheus.Counter
	requests *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer, state func() Progress) *metrics {
	meter := telemetry.NewMeter(registry, "hawser_agent_registration_")
	m := &metrics{
		issued:   meter.Counter("certificates_total", "Client certificates taken into use, including the one in the Secret at the start."),
		requests: meter.Counters("requests_total", "Requests of the agent to its hub, by kind and result.", "resource", "result"),
	}
	for w := range numRequestKinds {
		for _, result := range []string{"done", "failed"} {
			m.requests.WithLabelValues(w.String(), result)
		}
	}
	meter.Flag("pending", "1 while the cluster is not part of the fleet: /readyz says what it waits for.", nil, func() bool { return state().WaitReason != nil })
	ofCertificate := func(name, help string, read func(c *Credential) float64) {
		meter.GaugeFunc(name, help, nil, func() float64 {
			if own := state().Credential; own != nil {
				return read(own)
			}
			return 0
		})
	}
	ofCertificate("certificate_not_after_timestamp_seconds", "When the client certificate that the hub issued expires, in Unix time; 0 without one.",
		func(c *Credential) float64 { return float64(c.NotAfter.Unix()) })
	ofCertificate("certificate_lifetime_seconds", "For how long that certificate was made; 0 without one.",
		func(c *Credential) float64 { return c.NotAfter.Sub(c.NotBefore).Seconds() })
	return m
}

func (m *metrics) requested(w RequestKind, err error) {
	result := "done"
	if err != nil {
		result = "failed"
	}
	m.requests.WithLabelValues(w.String(), result).Inc()
}
