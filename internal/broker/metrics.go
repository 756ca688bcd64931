package broker

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// metrics are listed, with their meaning, in docs/metrics.md. None has a label
// that grows with works, clusters or sources.
type metrics struct {
	publishes        *prometheus.CounterVec
	publishDuration  *prometheus.HistogramVec
	commitDuration   prometheus.Histogram
	commitOperations prometheus.Histogram
	commitFailures   prometheus.Counter
	subscribes       *prometheus.CounterVec
	deliveries       *prometheus.CounterVec
	deliveredBytes   *prometheus.CounterVec
	resyncs          *prometheus.CounterVec
	resyncRecords    *prometheus.CounterVec
	resyncDuration   *prometheus.HistogramVec
	asked            prometheus.Counter
	orphans          prometheus.Counter
	ahead            prometheus.Counter
	heartbeats       prometheus.Counter
	strangers        prometheus.Counter
	damaged          prometheus.Counter
	graves           prometheus.Gauge
	graveRemoved     prometheus.Counter
	graveAcked       prometheus.Counter
	resumes          *prometheus.CounterVec
	resumeRecords    *prometheus.CounterVec
	resumeDuration   *prometheus.HistogramVec
	checkpoints      *prometheus.CounterVec
	acks             *prometheus.CounterVec
	pages            prometheus.Counter
	comparisons      *prometheus.CounterVec
	overruled        prometheus.Counter
	panics           prometheus.Counter

	// mailboxes is the number of keys in all mailboxes.
	mailboxes atomic.Int64
	// spec and status are deliveries and deliveredBytes by half.
	spec, status delivery
}

type delivery struct{ events, bytes prometheus.Counter }

const namespace, subsystem = "hawser", "broker"

func opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
}

func newMetrics(r prometheus.Registerer, b *Broker) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}
	}
	seconds := prometheus.ExponentialBuckets(0.0001, 2.5, 14) // 100 µs to 15 s
	m := &metrics{
		publishes:        counters("publishes_total", "Publish calls by kind of event and result.", "kind", "result"),
		publishDuration:  prometheus.NewHistogramVec(histogram("publish_duration_seconds", "Time from an event's arrival to its answer.", seconds), []string{"kind"}),
		commitDuration:   prometheus.NewHistogram(histogram("commit_duration_seconds", "Time of one commit, sync included.", seconds)),
		commitOperations: prometheus.NewHistogram(histogram("commit_operations", "Operations written by one commit.", prometheus.ExponentialBuckets(1, 2, 11))),
		commitFailures:   counter("commit_failures_total", "Commits that failed; nothing of them was acknowledged."),
		subscribes:       counters("subscribes_total", "Subscribe calls by role and result.", "role", "result"),
		deliveries:       counters("deliveries_total", "Events sent to subscribers by subresource, heartbeats aside.", "subresource"),
		deliveredBytes:   counters("delivered_bytes_total", "Bytes of events sent to subscribers by subresource.", "subresource"),
		resyncs:          counters("resyncs_total", "Comparisons of lists by subresource and cause.", "subresource", "cause"),
		resyncRecords:    counters("resync_records_total", "Records found missing by comparisons.", "subresource"),
		resyncDuration:   prometheus.NewHistogramVec(histogram("resync_duration_seconds", "Time of one comparison, sending not included.", seconds), []string{"subresource"}),
		asked:            counter("status_requests_total", "Requests to agents to report statuses that differ."),
		orphans:          counter("orphans_total", "Works that agents listed and no record explains."),
		ahead:            counter("newer_versions_total", "Works that agents listed in a newer version than the broker's."),
		heartbeats:       counter("heartbeats_total", "Heartbeats sent."),
		strangers:        counter("refused_clusters_total", "Agents refused because another cluster is known under their name."),
		damaged:          counter("damaged_records_total", "Deliveries skipped because the record is damaged on disk."),
		graves:           prometheus.NewGauge(prometheus.GaugeOpts(opts("graves", "Confirmed deletions kept for their sources, at the last sweep."))),
		graveRemoved:     counter("graves_removed_total", "Graves removed after their retention."),
		panics:           counter("panics_total", "Calls that panicked; each is a bug."),
		graveAcked:       counter("graves_acknowledged_total", "Graves removed because their source has seen them."),
		resumes:          counters("resumes_total", "Accepted subscriptions of Hawser parties by subresource and how they continue.", "subresource", "resync"),
		resumeRecords:    counters("resume_records_total", "Records that had changed since the cursors of parties that continue.", "subresource"),
		resumeDuration:   prometheus.NewHistogramVec(histogram("resume_duration_seconds", "Time to find out what changed since a cursor, sending not included.", seconds), []string{"subresource"}),
		checkpoints:      counters("checkpoints_total", "Checkpoints sent by subresource.", "subresource"),
		acks:             counters("acks_total", "Acknowledged checkpoints by subresource and what they prove.", "subresource", "result"),
		pages:            counter("inventory_pages_total", "Pages of inventories sent to sources."),
		comparisons:      counters("compared_clusters_total", "Clusters that sources finished comparing by result.", "result"),
		overruled:        counter("overruled_versions_total", "Records sent to agents that held a newer version, on their source's word."),
	}
	m.spec = delivery{m.deliveries.WithLabelValues(string(codec.Spec)), m.deliveredBytes.WithLabelValues(string(codec.Spec))}
	m.status = delivery{m.deliveries.WithLabelValues(string(codec.Status)), m.deliveredBytes.WithLabelValues(string(codec.Status))}
	r.MustRegister(
		m.publishes, m.publishDuration, m.commitDuration, m.commitOperations, m.commitFailures, m.subscribes,
		m.deliveries, m.deliveredBytes, m.resyncs, m.resyncRecords, m.resyncDuration, m.asked, m.orphans, m.ahead,
		m.heartbeats, m.strangers, m.damaged, m.graves, m.graveRemoved, m.panics, m.graveAcked,
		m.resumes, m.resumeRecords, m.resumeDuration, m.checkpoints, m.acks, m.pages, m.comparisons, m.overruled,
	)
	registerGauges(r, b, m)
	return m
}

// registerGauges registers what is read when somebody looks.
func registerGauges(r prometheus.Registerer, b *Broker, m *metrics) {
	gauge := func(name, help string, labels prometheus.Labels, f func() float64) {
		o := prometheus.GaugeOpts(opts(name, help))
		o.ConstLabels = labels
		r.MustRegister(prometheus.NewGaugeFunc(o, f))
	}
	gauge("queue_bytes", "Bytes of publishes that wait for their commit.", nil, func() float64 {
		return float64(b.commits.queue.budget.inUse(b.cfg.QueueBytes))
	})
	gauge("pending_list_bytes", "Bytes of resync requests that wait for their comparison.", nil, func() float64 {
		return float64(b.lists.inUse(b.cfg.QueueBytes))
	})
	gauge("mailbox_records", "Records that subscribers still have to be sent, over all mailboxes.", nil, func() float64 {
		return float64(m.mailboxes.Load())
	})
	gauge("withheld_deletions", "Deletions that sources withhold until an operator approves.", nil, func() float64 {
		return float64(b.ledger.countWithheld())
	})
	const help = "Running subscriptions by role."
	gauge("subscriptions", help, prometheus.Labels{"role": "agent"}, func() float64 {
		agents, _ := b.hub.count()
		return float64(agents)
	})
	gauge("subscriptions", help, prometheus.Labels{"role": "source"}, func() float64 {
		_, sources := b.hub.count()
		return float64(sources)
	})
	gauge("store_revision", "Revision of the last commit.", nil, func() float64 {
		return float64(b.store.Head().Revision)
	})
	gauge("routed_revision", "Revision up to which changes are in the mailboxes.", nil, func() float64 {
		return float64(b.hub.position())
	})
}

// resultOf is the label for how a call went: the outcome, or the error's code.
func resultOf(outcome string, err error) string {
	if err != nil {
		return transport.CodeOf(err).String()
	}
	return outcome
}

func (m *metrics) published(kind, outcome string, err error, took time.Duration) {
	m.publishes.WithLabelValues(kind, resultOf(outcome, err)).Inc()
	m.publishDuration.WithLabelValues(kind).Observe(took.Seconds())
}

func (m *metrics) committed(ops int, took time.Duration, err error) {
	m.commitDuration.Observe(took.Seconds())
	m.commitOperations.Observe(float64(ops))
	if err != nil {
		m.commitFailures.Inc()
	}
}

func (m *metrics) subscribed(raw transport.RawSubscription, err error) {
	role := "agent"
	if raw.Source != "" {
		role = "source"
	}
	m.subscribes.WithLabelValues(role, resultOf(codec.OutcomeAccepted, err)).Inc()
}

func (m *metrics) accepted(s codec.Subresource, a transport.Accepted) {
	if a.Protocol > 0 {
		m.resumes.WithLabelValues(string(s), a.Resync).Inc()
	}
}

func (m *metrics) resumed(s codec.Subresource, records int, took time.Duration) {
	m.resumeRecords.WithLabelValues(string(s)).Add(float64(records))
	m.resumeDuration.WithLabelValues(string(s)).Observe(took.Seconds())
}

func (m *metrics) checkpoint(s codec.Subresource) { m.checkpoints.WithLabelValues(string(s)).Inc() }

// What an ack proves; values of a label.
const (
	ackInSync  = "in_sync"
	ackDiffers = "differs"
	ackNoted   = "noted"
)

func (m *metrics) acked(s codec.Subresource, result string) {
	m.acks.WithLabelValues(string(s), result).Inc()
}

func (m *metrics) comparison(compared, withheld int) {
	m.comparisons.WithLabelValues("compared").Add(float64(compared))
	m.comparisons.WithLabelValues("withheld").Add(float64(withheld))
}

func (m *metrics) mailed(delta int) { m.mailboxes.Add(int64(delta)) }

func (m *metrics) delivered(s codec.Subresource, event [][]byte) {
	size := 0
	for _, part := range event {
		size += len(part)
	}
	d := &m.spec
	if s == codec.Status {
		d = &m.status
	}
	d.events.Inc()
	d.bytes.Add(float64(size))
}

func (m *metrics) compared(s codec.Subresource, silent bool, sends int, took time.Duration) {
	cause := "request"
	if silent {
		cause = "silence"
	}
	m.resyncs.WithLabelValues(string(s), cause).Inc()
	m.resyncRecords.WithLabelValues(string(s)).Add(float64(sends))
	m.resyncDuration.WithLabelValues(string(s)).Observe(took.Seconds())
}
