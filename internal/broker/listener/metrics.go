package listener

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/telemetry"
)

// metrics are the metrics of the port.
type metrics struct {
	refusedHandshakes, refusedCalls, endedConnections *prometheus.CounterVec
	calls, received, sent                             *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	meter := telemetry.NewMeter(r, "hawser_listener_")
	return metrics{
		refusedHandshakes: meter.Counters("rejected_handshakes_total", "Connections that ended before they could make a call.", "reason"),
		refusedCalls:      meter.Counters("rejected_calls_total", "Calls rejected because of their headers or their content.", "reason", "code"),
		endedConnections:  meter.Counters("ended_connections_total", "Connections that the broker ended.", "reason"),
		calls:             meter.Counters("calls_total", "Calls that were accepted.", "role", "transport"),
		received:          meter.Counters("received_bytes_total", "Bytes received on connections, after TLS.", "role", "transport"),
		sent:              meter.Counters("sent_bytes_total", "Bytes sent on connections, before TLS.", "role", "transport"),
	}
}

// of returns the counters of a role on a transport.
func (m metrics) of(r identity.Role, t Transport) (calls, received, sent prometheus.Counter) {
	labels := []string{cmp.Or(string(r), "none"), string(t)}
	return m.calls.WithLabelValues(labels...), m.received.WithLabelValues(labels...), m.sent.WithLabelValues(labels...)
}

// show registers the metrics that are computed when they are collected.
func (p *Port) show(r prometheus.Registerer) {
	g := p.limiter
	meter := telemetry.NewMeter(r, "hawser_listener_")
	meter.GaugeFunc("inflight_bytes", "Memory of calls that are being read or served.", nil, func() float64 {
		return float64(g.usage().Bodies)
	})
	const name, help = "certificate_not_after_timestamp_seconds", "When the first certificate expires, in Unix time: of connected clients in the last tenth of its lifetime, and of the port's own one; 0 if there is none."
	meter.GaugeFunc(name, help, prometheus.Labels{"kind": "client"}, func() float64 { return float64(g.nearestEnd() / int64(time.Second)) })
	meter.GaugeFunc(name, help, prometheus.Labels{"kind": "broker"}, func() float64 {
		if p.files == nil {
			return 0
		}
		return float64(p.files.End().Unix())
	})
	for _, role := range []identity.Role{identity.Agent, identity.Source, identity.Operator, identity.Viewer, identity.Bootstrap, noRole} {
		for _, t := range []Transport{GRPC, CleartextMQTT, WebSockets} {
			labels := prometheus.Labels{"role": cmp.Or(string(role), "none"), "transport": string(t)}
			meter.GaugeFunc("connections", "Open connections.", labels, func() float64 { return float64(g.usage().Connections[Peers{role, t}]) })
		}
	}
}
