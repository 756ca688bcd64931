package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// DelayBuckets are the buckets, in seconds, of histograms of delays between clients and broker: from 5 ms to one
// hour.
var DelayBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}

// Meter makes and registers metrics. A duplicate name or label panics, because both are constants.
type Meter struct{ f promauto.Factory }

// NewMeter returns a meter for metrics with this name prefix.
func NewMeter(r prometheus.Registerer, prefix string) Meter {
	return Meter{promauto.With(prometheus.WrapRegistererWithPrefix(prefix, r))}
}

// Counter makes a counter.
func (m Meter) Counter(name, help string) prometheus.Counter {
	return m.f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// Counters makes a counter for each combination of labels.
func (m Meter) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return m.f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Gauge makes a gauge.
func (m Meter) Gauge(name, help string) prometheus.Gauge {
	return m.f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// GaugeFunc makes a gauge whose value is read at each scrape.
func (m Meter) GaugeFunc(name, help string, labels prometheus.Labels, read func() float64) {
	m.f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, read)
}

// Flag makes a gauge that is 1 while is returns true, else 0.
func (m Meter) Flag(name, help string, labels prometheus.Labels, is func() bool) {
	m.GaugeFunc(name, help, labels, func() float64 {
		if is() {
			return 1
		}
		return 0
	})
}

// Sizes makes a histogram of numbers from 1 to 1024.
func (m Meter) Sizes(name, help string) prometheus.Histogram {
	return m.f.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1, 2, 11)})
}

// Seconds makes a histogram of times, from 100 µs to 15 s, for each combination of labels.
func (m Meter) Seconds(name, help string, labels ...string) *prometheus.HistogramVec {
	return m.f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 14)}, labels)
}

// Delays makes a histogram with the buckets [DelayBuckets].
func (m Meter) Delays(name, help string) prometheus.Histogram {
	return m.f.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: DelayBuckets})
}
