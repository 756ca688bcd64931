package agent

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/pkg/agent/drift"
)

// Values of the label outcome of received events, in addition to those of desired.Outcome.
const (
	eventIgnored      = "ignored"
	eventElsewhere    = "other_cluster"
	eventUndecodable  = "undecodable"
	eventRequested    = "status_request"
	eventCheckpoint   = "checkpoint"
	eventResolve      = "resolve"
	eventStaleSession = "stale_session" // of an earlier session of its sender, or addressed to an earlier session of this agent
)

// Values of the label result of reconciliations.
const (
	roundDone    = "done"
	roundWaiting = "waiting"
	roundFailed  = "failed"
)

// Values of the label result of checks of executors.
const (
	checkAllowed = "allowed"
	checkDenied  = "denied"
	checkFailed  = "failed"
)

// IdentityRefusedMetric is the name of a gauge. A program also exports it before it has an Agent, while the hub
// of the agent is unknown.
const (
	IdentityRefusedMetric = "hawser_agent_identity_rejected"
	IdentityRefusedHelp   = "1 while the agent may not act as the hub of its broker: this is unverified, or another hub has its identity. Else 0."
)

// Metrics has the counters of an agent; docs/metrics.md lists the series. nil counts nothing.
type Metrics struct {
	events          *prometheus.CounterVec
	reconciliations *prometheus.CounterVec
	duration        prometheus.Histogram
	objects         *prometheus.CounterVec
	checks          *prometheus.CounterVec
	repairs         prometheus.Counter
	panics          prometheus.Counter
	journal         prometheus.Counter
	evictions       prometheus.Counter
	registerer      prometheus.Registerer
}

// NewMetrics registers the metrics with reg. The error names the metric that is already registered.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		registerer: reg,
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_events_total", Help: "Events received, by outcome.",
		}, []string{"outcome"}),
		reconciliations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_reconciles_total", Help: "Reconciliations of one work, by result.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hawser_agent_reconcile_duration_seconds", Help: "Time of one reconciliation.", Buckets: prometheus.ExponentialBucketsRange(0.0005, 60, 16),
		}),
		objects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_object_writes_total", Help: "Objects written for works, by action and result.",
		}, []string{"action", "result"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_executor_checks_total", Help: "Checks whether the executor of a work may apply an object, by result.",
		}, []string{"result"}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_agent_drift_repairs_total", Help: "Reconciliations that wrote objects although the work had not changed.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_agent_panics_total", Help: "Reconciliations that panicked.",
		}),
		journal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_agent_journal_failures_total", Help: "Writes to the state directory that failed.",
		}),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_agent_evictions_total", Help: "AppliedManifestWorks removed with their objects because no source has their work any more.",
		}),
	}
	for _, c := range []prometheus.Collector{m.events, m.reconciliations, m.duration, m.objects, m.checks, m.repairs, m.panics, m.journal, m.evictions} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("agent metrics: %w", err)
		}
	}
	for _, result := range []string{checkAllowed, checkDenied, checkFailed} {
		m.checks.WithLabelValues(result) // exported as 0 from the start
	}
	return m, nil
}

// observe registers the metrics that are read from an agent at each scrape.
func (m *Metrics) observe(a *Agent) error {
	if m == nil {
		return nil
	}
	gauge := func(name, help string, labels prometheus.Labels, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(value()) })
	}
	count := func(name, help string, of func(Counts) int) prometheus.Collector {
		return gauge(name, help, nil, func() int { return of(a.core.Counts()) })
	}
	works := func(state string, of func(Counts) int) prometheus.Collector {
		return gauge("hawser_agent_works", "Works held, by state.", prometheus.Labels{"state": state}, func() int { return of(a.core.Counts()) })
	}
	unwatched := func(reason string, of func(drift.Counts) int) prometheus.Collector {
		return gauge("hawser_agent_unwatched_objects", "Objects of works that are read at the status sync interval because they are not watched, by reason.",
			prometheus.Labels{"reason": reason}, func() int { return of(a.watcher.Counts()) })
	}
	for _, c := range []prometheus.Collector{
		works("Live", func(n Counts) int { return n.Live - n.Unusable }),
		works("Unusable", func(n Counts) int { return n.Unusable }),
		works("Deleting", func(n Counts) int { return n.Deleting }),
		count("hawser_agent_pending_statuses", "Statuses that the broker has not accepted yet.", func(n Counts) int { return n.ReportsDue }),
		count("hawser_agent_unconfirmed_works", "Works known from the state directory that the broker has not confirmed since the start.", func(n Counts) int { return n.Unconfirmed }),
		count("hawser_agent_unpersisted_works", "Works whose entry in the state directory is outdated.", func(n Counts) int { return n.Unsaved }),
		count("hawser_agent_evicting_works", "AppliedManifestWorks whose work no source has any more and whose grace period runs.", func(n Counts) int { return n.Evicting }),
		count("hawser_agent_contested_objects", "Objects of works that are changed after each repair, so that they are repaired once a minute only.", func(n Counts) int { return n.Contested }),
		count("hawser_agent_unowned_orphans", "AppliedManifestWorks without a work that name no source; they are never evicted.", func(n Counts) int { return n.UnownedOrphans }),
		gauge("hawser_agent_slow_reconciles", "Works whose reconciliation takes more than 30 s.", nil, func() int { return len(a.pool.late(false)) }),
		count("hawser_agent_shared_works", "AppliedManifestWorks of other hubs that share objects with works of this hub.", func(n Counts) int { return n.Shared }),
		count("hawser_agent_in_sync", "1 if the latest checkpoint of the broker proved that the agent holds exactly its works, else 0.", func(n Counts) int {
			if n.InSync {
				return 1
			}
			return 0
		}),
		gauge(IdentityRefusedMetric, IdentityRefusedHelp, nil, func() int {
			if a.IdentityReady() != nil {
				return 1
			}
			return 0
		}),
		gauge("hawser_agent_watches", "Watches on the cluster.", nil, func() int { return a.watcher.Counts().Watches + a.roles.counts().Watches + a.policies.counts().Watches }),
		gauge("hawser_agent_watches_denied", "Watches that the cluster denies; their objects are read at the status sync interval.", nil, func() int { return a.watcher.Counts().Denied + a.roles.counts().Denied + a.policies.counts().Denied }),
		unwatched("denied", func(n drift.Counts) int { return n.DeniedObjects }),
		unwatched("limit", func(n drift.Counts) int { return n.WaitingObjects }),
	} {
		if err := m.registerer.Register(c); err != nil {
			return fmt.Errorf("agent metrics: %w", err)
		}
	}
	return nil
}

func (m *Metrics) event(outcome string) {
	if m != nil {
		m.events.WithLabelValues(outcome).Inc()
	}
}

func (m *Metrics) reconcile(result string, took time.Duration) {
	if m != nil {
		m.reconciliations.WithLabelValues(result).Inc()
		m.duration.Observe(took.Seconds())
	}
}

func (m *Metrics) write(action string, ok bool) {
	if m == nil {
		return
	}
	result := "ok"
	if !ok {
		result = "failed"
	}
	m.objects.WithLabelValues(action, result).Inc()
}

func (m *Metrics) checked(result string) {
	if m != nil {
		m.checks.WithLabelValues(result).Inc()
	}
}

func (m *Metrics) repair() {
	if m != nil {
		m.repairs.Inc()
	}
}

func (m *Metrics) panicked() {
	if m != nil {
		m.panics.Inc()
	}
}

func (m *Metrics) journalFailure() {
	if m != nil {
		m.journal.Inc()
	}
}

func (m *Metrics) evicted() {
	if m != nil {
		m.evictions.Inc()
	}
}
