package grpc

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/telemetry"
)

// metrics are what the port shows of itself.
type metrics struct {
	refusedHandshakes, refusedCalls, endedConnections *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	meter := telemetry.NewMeter(r, "hawser_grpc_")
	return metrics{
		refusedHandshakes: meter.Counters("refused_handshakes_total", "Connections that ended before they could make a call.", "reason"),
		refusedCalls:      meter.Counters("refused_calls_total", "Calls refused by their headers.", "code"),
		endedConnections:  meter.Counters("ended_connections_total", "Connections ended because of what their peer did.", "reason"),
	}
}

// show adds what the gate counts.
func show(r prometheus.Registerer, g *gate) {
	meter := telemetry.NewMeter(r, "hawser_grpc_")
	meter.Shown("body_bytes", "Memory of calls that are being read or served.", nil, func() float64 {
		_, bodies := g.usage()
		return float64(bodies)
	})
	for _, role := range []identity.Role{identity.Agent, identity.Source, identity.Operator, identity.Viewer, nobody} {
		meter.Shown("connections", "Open connections.", prometheus.Labels{"role": cmp.Or(string(role), "none")}, func() float64 {
			connections, _ := g.usage()
			return float64(connections[role])
		})
	}
}
