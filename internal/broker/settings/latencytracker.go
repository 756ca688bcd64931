package settings

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/workmetrics"
)

// LatencyTracker measures the times from the commit of a version to its delivery and to its first status. It
// ignores commits from before this process. A nil LatencyTracker measures nothing.
type LatencyTracker struct {
	now             func() time.Time
	sent, confirmed prometheus.Observer

	mu      sync.Mutex // guards commits
	commits *workmetrics.Commits
}

// NewTimes returns the tracker of the broker with this configuration, and registers its metrics.
func NewTimes(cfg *Config) *LatencyTracker {
	m := cfg.Meter()
	return &LatencyTracker{
		now: cfg.Now, commits: workmetrics.NewCommits(cfg.Store.Head().Revision),
		sent:      m.Delays("delivery_duration_seconds", "Time from the commit of a version of a work to when it was sent to its cluster."),
		confirmed: m.Delays("status_duration_seconds", "Time from the commit of a version of a work to the commit of the first status about it."),
	}
}

// Committed records the commit time of all revisions up to revision.
func (t *LatencyTracker) Committed(revision uint64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.commits.Committed(revision, t.now())
}

// Sent records that a record was sent to its cluster.
func (t *LatencyTracker) Sent(m *store.Meta) {
	if t != nil && isUnanswered(m) {
		t.observe(t.sent, m.SpecRevision)
	}
}

// Confirmed records that a status about a version was committed. m is the record before that.
func (t *LatencyTracker) Confirmed(m *store.Meta, version int64) {
	if t != nil && isUnanswered(m) && version == m.Version {
		t.observe(t.confirmed, m.SpecRevision)
	}
}

// isUnanswered reports whether the version of a record has no status from the cluster yet. Later deliveries and
// reports of an answered version are repetitions, whose times mean nothing.
func isUnanswered(m *store.Meta) bool {
	return m.State == store.Live && (m.StatusRevision == 0 || m.StatusVersion < m.Version)
}

func (t *LatencyTracker) observe(into prometheus.Observer, revision uint64) {
	t.mu.Lock()
	took, known := t.commits.Since(revision, t.now())
	t.mu.Unlock()
	if known {
		into.Observe(took.Seconds())
	}
}
