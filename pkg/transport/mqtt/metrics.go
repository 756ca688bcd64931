package mqtt

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Why a message is dropped.
const (
	dropUndecodable = "undecodable" // it is no event
	dropTooLarge    = "too_large"   // above what we take
	dropRetained    = "retained"    // nobody knows of when it is
	dropDataType    = "data_type"   // of another data type than the subscription
	dropTopic       = "topic"       // it contradicts its topic, or nobody has subscribed to that
)

// Metrics counts what the MQTT connections of a process see. docs/metrics.md lists the series.
// A nil *Metrics counts nothing.
type Metrics struct {
	dropped       *prometheus.CounterVec
	noSubscribers prometheus.Counter
	takeovers     prometheus.Counter
}

// NewMetrics registers the metrics with reg. The error says which name is taken.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_mqtt_dropped_total", Help: "Messages of the MQTT broker that were acknowledged and not used, by reason.",
		}, []string{"reason"}),
		noSubscribers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_mqtt_no_subscriber_total", Help: "Published messages of which the MQTT broker said that nobody has subscribed to them.",
		}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_mqtt_takeovers_total", Help: "Connections that another client with the same client id has ended, or may have.",
		}),
	}
	for _, c := range []prometheus.Collector{m.dropped, m.noSubscribers, m.takeovers} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("mqtt metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) drop(reason string) {
	if m != nil {
		m.dropped.WithLabelValues(reason).Inc()
	}
}

func (m *Metrics) noSubscriber() {
	if m != nil {
		m.noSubscribers.Inc()
	}
}

func (m *Metrics) takenOver() {
	if m != nil {
		m.takeovers.Inc()
	}
}

// drop counts a message that is dropped. The log hears of the first of each reason on a
// connection: anybody who may publish on a stock broker could fill it.
func (c *Conn) drop(reason, topic string, err error) {
	c.dialer.opts.Metrics.drop(reason)
	c.mu.Lock()
	again := c.reported[reason]
	c.reported[reason] = true
	c.mu.Unlock()
	if !again {
		c.dialer.opts.Log.Warn("a message is dropped; of others of this connection with this reason only the metric tells",
			"broker", c.dialer.opts.Broker, "reason", reason, "topic", fmt.Sprintf("%.300q", topic), "error", err)
	}
}
