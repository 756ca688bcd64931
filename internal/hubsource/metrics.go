package hubsource

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/workmetrics"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const metricPrefix = "hawser_hubsource_"

// metrics are the metrics of this program. docs/metrics.md describes them, and a test compares the two.
type metrics struct {
	leader    prometheus.Gauge
	publishes *prometheus.CounterVec
	clusters  *prometheus.CounterVec
	reports   *prometheus.CounterVec
	writes    *prometheus.CounterVec
	events    *prometheus.CounterVec
	answered  prometheus.Histogram

	state *stateCollector
}

func newMetrics(r prometheus.Registerer) *metrics {
	t := telemetry.NewMeter(r, metricPrefix)
	m := &metrics{
		leader:    t.Gauge("leader", "1 while this replica leads, else 0."),
		publishes: t.Counters("publishes_total", "Specs and deletions published, by the outcome, or by the code of the broker's error.", "result"),
		clusters:  t.Counters("cluster_requests_total", "Requests to the broker besides publishing works, by operation (request_statuses, release, inventory, sync_report, ack) and by result.", "operation", "result"),
		reports:   t.Counters("statuses_total", "Status events received, by result.", "result"),
		writes:    t.Counters("hub_requests_total", "Requests to the hub besides the informers', by operation and result.", "operation", "result"),
		events:    t.Counters("events_total", "Kubernetes Events about works, by result.", "result"),
		answered:  t.Delays("status_duration_seconds", "Time from when the broker accepted a version of a work to the arrival of the first status about it."),
		state:     &stateCollector{},
	}
	m.events.WithLabelValues("dropped") // exports 0, so that the first increase is visible
	r.MustRegister(m.state)
	return m
}

// knownOutcomes limits the label values of publishes.
var knownOutcomes = map[string]bool{
	codec.OutcomeAccepted: true, codec.OutcomeUnchanged: true, codec.OutcomeStale: true,
	codec.OutcomeQueued: true, codec.OutcomeConfirmed: true, codec.OutcomeIgnored: true,
}

// brokerResult returns the label of an answer. The number of labels is limited, whatever a broker answers.
func brokerResult(r core.Result) string {
	if r.Err != nil {
		return transport.CodeOf(r.Err).String()
	}
	if knownOutcomes[r.Receipt.Outcome] {
		return r.Receipt.Outcome
	}
	return "ok"
}

// stateCollector exports [core.Stats] of the running core, if there is one.
type stateCollector struct {
	read atomic.Pointer[func() (core.Stats, [core.NumQueues]int)]
}

var (
	descWorks        = prometheus.NewDesc(metricPrefix+"works", "ManifestWorks known, those of clusters not served included.", nil, nil)
	descConditions   = prometheus.NewDesc(metricPrefix+"condition_works", "Works by the state of their present generation, from their conditions.", []string{"condition", "state"}, nil)
	descClusters     = prometheus.NewDesc(metricPrefix+"clusters", "Clusters served.", nil, nil)
	descPending      = prometheus.NewDesc(metricPrefix+"pending_statuses", "Statuses received that are not written to the hub yet.", nil, nil)
	descInitialSync  = prometheus.NewDesc(metricPrefix+"initial_sync_works", "Works not compared yet since the session began.", nil, nil)
	descComparing    = prometheus.NewDesc(metricPrefix+"unsynced_clusters", "Clusters of which it is not certain yet that the broker has exactly the hub's works.", nil, nil)
	descWithheldIn   = prometheus.NewDesc(metricPrefix+"withheld_clusters", "Clusters on which deletions wait for an operator's approval.", nil, nil)
	descWithheld     = prometheus.NewDesc(metricPrefix+"withheld_works", "Deletions that wait for an operator's approval.", nil, nil)
	descDisconnected = prometheus.NewDesc(metricPrefix+"disconnected_clusters", "Clusters behind a stateless MQTT broker whose Hawser agent was not seen for five minutes, or sent its last will.", nil, nil)
	descAgents       = prometheus.NewDesc(metricPrefix+"agents", "Clusters behind a stateless MQTT broker, by kind of agent and by upper limit of the time since it was last seen.", []string{"agent", "last_seen"}, nil)
	descUndelivered  = prometheus.NewDesc(metricPrefix+"undelivered_works", "Works with the condition Delivered=False, by reason.", []string{"reason"}, nil)
	descQueue        = prometheus.NewDesc(metricPrefix+"queue_works", "Works waiting for a worker, by queue.", []string{"queue"}, nil)
)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	var s core.Stats
	var queues [core.NumQueues]int
	if read := c.read.Load(); read != nil {
		s, queues = (*read)()
	}
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for d, n := range map[*prometheus.Desc]int{
		descWorks: s.Works, descClusters: s.Clusters, descPending: s.Pending, descInitialSync: s.InitialSync, descComparing: s.Comparing,
		descWithheldIn: s.WithheldClusters, descWithheld: s.WithheldWorks, descDisconnected: s.Disconnected,
	} {
		gauge(d, n)
	}
	for i, condition := range workmetrics.Conditions {
		for _, state := range workmetrics.States {
			gauge(descConditions, s.Census[i][state], condition, state.String())
		}
	}
	for _, a := range sessionfence.Agents() {
		gauge(descAgents, s.Agents[a], a.Kind, a.LastSeen)
	}
	for _, reason := range core.Reasons {
		gauge(descUndelivered, s.Undelivered[reason], reason)
	}
	for l, n := range queues {
		gauge(descQueue, n, core.Queue(l).String())
	}
}
