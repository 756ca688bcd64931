package ingest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Limits of one commit. They spread the cost of a sync over many publishes, and a commit is written within a few
// milliseconds.
const (
	commitOps   = 1024
	commitBytes = 2 << 20
	// partOps is the maximum number of ops of a long list in one commit.
	partOps = 256
	// shareBytes limits how much of one commit a client may fill. So other clients wait for one commit only,
	// instead of for all publishes of a client that floods.
	shareBytes = commitBytes / 4
	// entryBytes is the overhead of a queued publish besides its event.
	entryBytes = 1 << 10
)

// committer writes publishes that arrive together in one commit. There is no timer: the publishes that arrive
// during one commit form the next one.
type committer struct {
	cfg     *settings.Config
	queue   *queue
	metrics *metrics

	batch []*pending // of step, reused to save allocations
	ops   []store.Op
	// pace is the duration of the last commit, from which retry delays are computed.
	pace atomic.Int64
	// failure is the error of the last commit, nil while commits succeed.
	failure atomic.Pointer[error]
}

// commit queues ops of from and returns their outcomes once they are on disk. If ctx ends first, the ops may
// still be committed. Ops that were not queued when ctx ended are dropped. checkValid may be nil. If it returns
// an error when the ops are queued, nothing is written.
func (c *committer) commit(ctx context.Context, from identity.Identity, checkValid func() *transport.Error, ops ...store.Op) (all []store.Outcome, err error) {
	if len(ops) <= partOps {
		return c.commitPart(ctx, from, checkValid, ops)
	}
	for part := range slices.Chunk(ops, partOps) {
		outcomes, err := c.commitPart(ctx, from, checkValid, part)
		if err != nil {
			return all, err
		}
		all = append(all, outcomes...)
	}
	return all, nil
}

func (c *committer) commitPart(ctx context.Context, from identity.Identity, checkValid func() *transport.Error, ops []store.Op) ([]store.Outcome, error) {
	if err := c.admit(ops); err != nil {
		return nil, request.Store(err)
	}
	p := newPending(from, ops)
	p.checkValid = checkValid
	if refused := c.queue.put(ctx, p); refused != nil {
		if refused.Code == transport.CodeOverloaded {
			refused.Delay = c.delay()
		}
		return nil, refused
	}
	if !taskgroup.Wait(ctx, p.done) {
		return nil, request.CallerGone(ctx)
	}
	return p.answer.outcomes, p.answer.err
}

// admit returns the error if the store rejects such ops now.
func (c *committer) admit(ops []store.Op) error {
	err := c.cfg.Store.Err()
	stays := func(op store.Op) bool { return !op.FreesQuota() }
	if errors.Is(err, store.ErrLow) && !slices.ContainsFunc(ops, stays) {
		return nil
	}
	return err
}

// delay returns the retry delay for a client whose publish found the queue full. A full queue holds several
// commits.
func (c *committer) delay() time.Duration {
	return min(max(8*time.Duration(c.pace.Load()), 50*time.Millisecond), 5*time.Second)
}

// failed returns the error of the last commit.
func (c *committer) failed() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// run commits until ctx ends, and then commits what is still queued.
func (c *committer) run(ctx context.Context) error {
	for {
		for c.step() {
		}
		if !taskgroup.Wait(ctx, c.queue.wake) {
			c.finish()
			return nil
		}
	}
}

// finish closes the queue and commits what is queued.
func (c *committer) finish() {
	c.queue.close()
	for c.step() {
	}
}

// step commits queued publishes once. It returns false if none was queued.
func (c *committer) step() bool {
	c.batch = c.queue.pop(c.batch[:0], commitOps, commitBytes)
	if len(c.batch) == 0 {
		return false
	}
	c.ops = c.ops[:0]
	for _, p := range c.batch {
		c.ops = append(c.ops, p.ops...)
	}
	start := c.cfg.Now()
	// The context of a caller must not end the commit, because the publishes of other clients are in it.
	outcomes, err := c.cfg.Store.Commit(context.Background(), c.ops)
	c.result(c.cfg.Now().Sub(start), err)
	if n := len(outcomes); n > 0 {
		c.cfg.Times.Committed(outcomes[n-1].Head)
	}
	written := 0
	for _, p := range c.batch {
		p.answer.err = err
		if err == nil {
			p.answer.outcomes = outcomes[written : written+len(p.ops) : written+len(p.ops)]
			written += len(p.ops)
		}
		close(p.done)
	}
	c.queue.free(c.batch)
	clear(c.batch)
	clear(c.ops)
	return true
}

// result records the result of a commit before its callers get it.
func (c *committer) result(took time.Duration, err error) {
	c.metrics.committed(len(c.ops), took, err)
	c.pace.Store(int64(took))
	if err == nil {
		c.failure.Store(nil)
		return
	}
	if errors.Is(err, store.ErrNoSpace) || errors.Is(err, store.ErrUnavailable) { // the method Err of the store reports it, and its end
		return
	}
	c.cfg.Log.Error("commit failed", "error", err)
	c.failure.Store(&err)
}

// metrics are described in docs/metrics.md.
type metrics struct {
	commitDuration      prometheus.Observer
	commitOperations    prometheus.Histogram
	commitFailures      prometheus.Counter
	collected           *prometheus.CounterVec
	confirmedTombstones prometheus.Gauge
	overQuota           *prometheus.CounterVec
}

// Values of the label reason: why a confirmed tombstone was removed.
const (
	collectedByAge = "retention"
	collectedByAck = "acknowledged"
)

func newMetrics(m telemetry.Meter) *metrics {
	all := &metrics{
		commitDuration:      m.Seconds("commit_duration_seconds", "Time of one commit, sync included.").WithLabelValues(),
		commitOperations:    m.Sizes("commit_operations", "Operations written by one commit."),
		commitFailures:      m.Counter("commit_failures_total", "Commits that failed; nothing of them was acknowledged."),
		collected:           m.Counters("tombstones_collected_total", "Confirmed tombstones removed, by the reason: retention, or acknowledged by their source.", "reason"),
		overQuota:           m.Counters("quota_rejections_total", "Specs and statuses rejected because of a quota, by its scope and the resource that it bounds.", "scope", "resource"),
		confirmedTombstones: m.Gauge("confirmed_tombstones", "Confirmed tombstones kept for their sources, at the last collection."),
	}
	for _, reason := range []string{collectedByAge, collectedByAck} {
		all.collected.WithLabelValues(reason) // exported from the start, with 0
	}
	return all
}

// refused counts an op that exceeded a quota. A zero x is not counted.
func (m *metrics) refused(x quota.Excess) {
	if x != (quota.Excess{}) {
		m.overQuota.WithLabelValues(string(x.Scope), string(x.Resource)).Inc()
	}
}

func (m *metrics) committed(ops int, took time.Duration, err error) {
	m.commitDuration.Observe(took.Seconds())
	m.commitOperations.Observe(float64(ops))
	if err != nil {
		m.commitFailures.Inc()
	}
}
