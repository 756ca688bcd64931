package mqtt

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Reasons of dropped messages.
const (
	dropUndecodable = "undecodable" // not an event
	dropTooLarge    = "too_large"   // above the size limit
	dropRetained    = "retained"    // of unknown age
	dropDataType    = "data_type"   // of another data type than the subscription
	dropTopic       = "topic"       // contradicts its topic, or matches no subscription
)

// Metrics counts the activity of the MQTT connections of a process. docs/metrics.md lists the series. A nil
// *Metrics counts nothing.
type Metrics struct {
	dropped       *prometheus.CounterVec
	noSubscribers prometheus.Counter
	takeovers     prometheus.Counter
}

// NewMetrics registers the metrics with reg. The error names a duplicate metric.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_mqtt_dropped_total", Help: "Messages of the MQTT broker that were acknowledged and dropped, by reason.",
		}, []string{"reason"}),
		noSubscribers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_mqtt_no_subscriber_total", Help: "Published messages for which the MQTT broker reported no subscriber.",
		}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_mqtt_takeovers_total", Help: "Connections that another client with the same client id has, or may have, taken over.",
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

// drop counts a dropped message. It logs only the first of each reason per connection, because any client of a
// stateless broker could fill the log.
func (c *Conn) drop(reason, topic string, err error) {
	c.dialer.opts.Metrics.drop(reason)
	c.mu.Lock()
	again := c.reported[reason]
	c.reported[reason] = true
	c.mu.Unlock()
	if !again {
		c.dialer.opts.Log.Warn("a message is dropped; further ones of this connection with this reason are only counted in the metric",
			"broker", c.broker, "reason", reason, "topic", fmt.Sprintf("%.300q", topic), "error", err)
	}
}
