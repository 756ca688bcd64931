package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Values of the labels "outcome" and "code" that are not codes of transport.
const (
	outcomeAccepted = "accepted"
	outcomeHandled  = "handled"
	outcomeFailed   = "failed"
	codeOK          = "ok"
	codeHandler     = "handler_error" // the handler failed
	codeStopped     = "stopped"       // Run was stopped
)

// Metrics counts the activity of all sessions of a process, which share it. docs/metrics.md lists the series.
type Metrics struct {
	connected   *prometheus.GaugeVec
	connects    *prometheus.CounterVec
	disconnects *prometheus.CounterVec
	events      *prometheus.CounterVec
	handling    *prometheus.HistogramVec
	publishing  *prometheus.HistogramVec
}

// NewMetrics registers the metrics with reg. The error names a duplicate metric.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	const dataType, outcome, code, over = "data_type", "outcome", "code", "transport"
	// The buckets range from a call within the machine to the publish timeout of 30 s.
	seconds := prometheus.ExponentialBucketsRange(0.0005, 30, 16)
	m := &Metrics{
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hawser_session_connected", Help: "Sessions with an accepted subscription, by transport: grpc, mqtt.",
		}, []string{dataType, over}),
		connects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_session_connects_total", Help: "Attempts to connect and subscribe, by outcome: accepted, or the code of the error.",
		}, []string{dataType, outcome}),
		disconnects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_session_disconnects_total", Help: "Accepted subscriptions that ended, by the code of the reason.",
		}, []string{dataType, code}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_session_events_total", Help: "Events delivered to the handler, by outcome: handled or failed.",
		}, []string{dataType, outcome}),
		handling: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hawser_session_handle_duration_seconds", Help: "Time that the handler needed for an event.", Buckets: seconds,
		}, []string{dataType}),
		publishing: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hawser_session_publish_duration_seconds", Help: "Time until the broker answered a publish, by code: ok, or that of the error.", Buckets: seconds,
		}, []string{dataType, code}),
	}
	for _, c := range []prometheus.Collector{m.connected, m.connects, m.disconnects, m.events, m.handling, m.publishing} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("session metrics: %w", err)
		}
	}
	return m, nil
}

// labelled is Metrics for one data type. A nil labelled counts nothing.
type labelled struct {
	*Metrics
	dataType string
}

// of returns the metrics of one session; m may be nil.
func (m *Metrics) of(d codec.DataType) *labelled {
	if m == nil {
		return nil
	}
	return &labelled{Metrics: m, dataType: d.String()}
}

func (l *labelled) accepted(over string) {
	if l == nil {
		return
	}
	l.connects.WithLabelValues(l.dataType, outcomeAccepted).Inc()
	l.connected.WithLabelValues(l.dataType, over).Inc()
}

// ended counts the end of an accepted subscription, or of an attempt without one (a is nil).
func (l *labelled) ended(a *transport.Accepted, err error) {
	switch {
	case l == nil:
	case a != nil:
		l.connected.WithLabelValues(l.dataType, a.Transport).Dec()
		l.disconnects.WithLabelValues(l.dataType, codeOf(err)).Inc()
	default:
		l.connects.WithLabelValues(l.dataType, codeOf(err)).Inc()
	}
}

func (l *labelled) handled(d time.Duration, err error) {
	if l == nil {
		return
	}
	outcome := outcomeHandled
	if err != nil {
		outcome = outcomeFailed
	}
	l.events.WithLabelValues(l.dataType, outcome).Inc()
	l.handling.WithLabelValues(l.dataType).Observe(d.Seconds())
}

func (l *labelled) published(d time.Duration, err error) {
	if l == nil {
		return
	}
	code := codeOK
	if err != nil {
		code = transport.CodeOf(err).String()
	}
	l.publishing.WithLabelValues(l.dataType, code).Observe(d.Seconds())
}

func codeOf(err error) string {
	var e *transport.Error
	switch {
	case errors.As(err, new(*handlerError)):
		return codeHandler
	case errors.As(err, &e):
		return e.Code.String()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return codeStopped
	}
	return transport.CodeInternal.String()
}
