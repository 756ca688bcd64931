package feed

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// metrics are listed, with their meaning, in docs/metrics.md. None has a label that grows
// with works, clusters or sources.
type metrics struct {
	subscribes, resyncs, resyncRecords, resumes, resumeRecords, checkpoints, acks *prometheus.CounterVec
	resyncDuration, resumeDuration                                                *prometheus.HistogramVec
	asked, heartbeats, damaged, pages, forced                                     prometheus.Counter

	// spec and status are deliveries by half.
	spec, status delivery
}

type delivery struct{ events, bytes prometheus.Counter }

func newMetrics(f telemetry.Meter, x *registry, lists *call.Budget) *metrics {
	m := &metrics{
		subscribes:     f.Counters("subscribes_total", "Subscribe calls by role and result.", "role", "result"),
		resyncs:        f.Counters("resyncs_total", "Comparisons of lists by subresource and cause.", "subresource", "cause"),
		resyncRecords:  f.Counters("resync_records_total", "Records found missing by comparisons.", "subresource"),
		resyncDuration: f.Seconds("resync_duration_seconds", "Time of one comparison, sending not included.", "subresource"),
		asked:          f.Counter("status_requests_total", "Requests to agents to report statuses that differ."),
		heartbeats:     f.Counter("heartbeats_total", "Heartbeats sent."),
		damaged:        f.Counter("damaged_records_total", "Deliveries skipped because the record is damaged on disk."),
		resumes:        f.Counters("resumes_total", "Accepted subscriptions of Hawser parties by subresource and how they continue.", "subresource", "resync"),
		resumeRecords:  f.Counters("resume_records_total", "Records that had changed since the cursors of parties that continue.", "subresource"),
		resumeDuration: f.Seconds("resume_duration_seconds", "Time to find out what changed since a cursor, sending not included.", "subresource"),
		checkpoints:    f.Counters("checkpoints_total", "Checkpoints sent by subresource.", "subresource"),
		acks:           f.Counters("acks_total", "Acknowledged checkpoints by subresource and what they prove.", "subresource", "result"),
		pages:          f.Counter("inventory_pages_total", "Pages of inventories sent to sources."),
		forced:         f.Counter("overruled_versions_total", "Records sent to agents that held a newer version, on their source's word."),
	}
	deliveries := f.Counters("deliveries_total", "Events sent to subscribers by subresource, heartbeats aside.", "subresource")
	bytes := f.Counters("delivered_bytes_total", "Bytes of events sent to subscribers by subresource.", "subresource")
	of := func(s codec.Subresource) delivery {
		return delivery{deliveries.WithLabelValues(string(s)), bytes.WithLabelValues(string(s))}
	}
	m.spec, m.status = of(codec.Spec), of(codec.Status)
	f.Shown("mailbox_records", "Records that subscribers still have to be sent, over all mailboxes.", nil, func() float64 {
		return float64(x.mailed())
	})
	f.Shown("subscriptions", "Running subscriptions by role.", prometheus.Labels{"role": "agent"}, func() float64 {
		agents, _ := x.count()
		return float64(agents)
	})
	f.Shown("subscriptions", "Running subscriptions by role.", prometheus.Labels{"role": "source"}, func() float64 {
		_, sources := x.count()
		return float64(sources)
	})
	f.Shown("pending_list_bytes", "Bytes of resync requests that wait for their comparison.", nil, func() float64 { return float64(lists.Used()) })
	f.Shown("routed_revision", "Revision up to which changes are in the mailboxes.", nil, func() float64 { return float64(x.position()) })
	return m
}

func (m *metrics) subscribed(raw transport.RawSubscription, err error) {
	role, result := "agent", codec.OutcomeAccepted
	if raw.Source != "" {
		role = "source"
	}
	if err != nil {
		result = transport.CodeOf(err).String()
	}
	m.subscribes.WithLabelValues(role, result).Inc()
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

// acked counts an ack by what it proves.
func (m *metrics) acked(s codec.Subresource, p Proof) {
	result := map[Proof]string{Unproven: "noted", Matched: "in_sync", Differs: "differs"}[p]
	m.acks.WithLabelValues(string(s), result).Inc()
}

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
