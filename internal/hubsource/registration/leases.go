package registration

import (
	"container/heap"
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/sessionfence"
)

const (
	// fewestWrites is the lowest limit of Lease writes per second.
	fewestWrites = 20
	// spread is the time over which the writes are spread if the Leases of all clusters are late.
	spread = 30 * time.Second
	// retryLease is the pause after a failed write of a Lease.
	retryLease = 10 * time.Second
)

// renewals decide which Lease is written next, and when: every second renewal of an agent, and the last one of a
// silent agent. The rate is limited, so that the hub keeps up after an outage too. The caller passes the time.
type renewals struct {
	clusters map[string]*renewal
	due      fair.Heap[*renewal]
	// pace is the number of writes per second if each Lease is written once in two periods.
	pace   float64
	bucket fair.Bucket
}

// renewal is the last renewal of a cluster.
type renewal struct {
	cluster string
	period  time.Duration
	// renewed is when the agent renewed the Lease last, written the renewal that the hub has.
	renewed, written time.Time
	// wrote is when this process wrote the Lease last. retry is the earliest time after a failed write.
	wrote, retry time.Time
	due          time.Time
	at           int // index in the heap; fair.Outside: nothing is to be written
}

// dueAt returns when to write a renewal, unless another one arrives before. written is the renewal on the hub.
//
// An agent renews after 1 to 1.25 periods. Its second renewal since written is written when it arrives. The first
// one is written only if the second one is late: the agent may be silent. The renewal on the hub is then 3.25
// periods old at most. So it is always replaced before the hub declares the cluster disconnected, and the five
// periods begin with the last renewal.
func dueAt(written, renewed time.Time, period time.Duration) time.Time {
	if renewed.Sub(written) >= period*7/4 {
		return written.Add(2 * period)
	}
	return renewed.Add(period * 3 / 2)
}

// isLate reports whether the renewal on the hub is so old that the hub soon declares the cluster disconnected.
func (e *renewal) isLate(now time.Time) bool { return now.Sub(e.written) > e.period*7/2 }

// renew records that an agent renewed its Lease at a time. written is the renewal on the hub, as the informer
// shows it. It is not used for a period after a write of this process: the informer may not show that write yet.
// A renewal ahead of now is ignored: a wrong clock wrote it, and it does not show that the cluster is alive.
func (r *renewals) renew(now time.Time, cluster string, renewed, written time.Time, period time.Duration) {
	if r.clusters == nil {
		r.clusters = map[string]*renewal{}
	}
	if written.After(now) {
		written = time.Time{}
	}
	e := r.clusters[cluster]
	if e == nil {
		e = &renewal{cluster: cluster, at: fair.Outside}
		r.clusters[cluster] = e
	}
	r.pace += writesIn(period) - writesIn(e.period)
	e.period = period
	if now.Sub(e.wrote) >= period {
		e.written = written
	}
	e.renewed = sessionfence.Latest(e.renewed, renewed)
	if e.renewed.After(e.written) {
		r.schedule(e, sessionfence.Latest(dueAt(e.written, e.renewed, period), e.retry))
	}
}

// writesIn returns the writes per second of one cluster.
func writesIn(period time.Duration) float64 {
	if period == 0 {
		return 0
	}
	return 1 / (2 * period.Seconds())
}

// schedule sets when a renewal is due.
func (r *renewals) schedule(e *renewal, at time.Time) {
	e.due = at
	if e.at == fair.Outside {
		heap.Push(&r.due, e)
		return
	}
	heap.Fix(&r.due, e.at)
}

// next returns the cluster whose Lease is to be written now, and the renewal time. ok is false if none is due;
// then wait is the time until the next one, 0 if there is none.
func (r *renewals) next(now time.Time) (cluster string, renewed time.Time, wait time.Duration, ok bool) {
	for len(r.due) > 0 {
		e := r.due[0]
		if wait := e.due.Sub(now); wait > 0 {
			return "", time.Time{}, wait, false
		}
		if now.Sub(e.renewed) >= ocm.MissedPeriods*e.period {
			heap.Pop(&r.due) // the hub counts the cluster as disconnected already, and a renewal of that age would not change this
			continue
		}
		rate := fair.Rate{PerSecond: max(fewestWrites, r.pace), Burst: 1.5} // half a token more, so that a late timer costs none
		if e.isLate(now) {
			rate = fair.Rate{PerSecond: max(fewestWrites, float64(len(r.clusters))/spread.Seconds()), Burst: fewestWrites}
		}
		if !r.bucket.Spend(rate, now, 1) {
			return "", time.Time{}, max(time.Duration(float64(time.Second)/rate.PerSecond/2), time.Millisecond), false
		}
		heap.Pop(&r.due)
		e.written, e.wrote = e.renewed, now
		return e.cluster, e.renewed, 0, true
	}
	return "", time.Time{}, 0, false
}

// hasten makes all renewals due that are not written yet, the oldest first: no agent can renew now.
//
// Scenario:
//
//	t1: an agent renews, and the hub has its renewal from 1.2 periods before.
//	t2: the session with the broker ends, for four periods.
//
// Without this: the controllers of Open Cluster Management would see six periods without a renewal, instead of
// less than five.
func (r *renewals) hasten(now time.Time) {
	for _, e := range r.due {
		if now.Before(e.due) {
			e.due = sessionfence.Latest(e.renewed, e.retry)
		}
	}
	heap.Init(&r.due)
}

// failed plans another write after a temporary error of the hub, which still has the renewal written.
func (r *renewals) failed(now time.Time, cluster string, written time.Time) {
	if e := r.clusters[cluster]; e != nil {
		e.written, e.wrote, e.retry = written, time.Time{}, now.Add(retryLease)
		r.schedule(e, e.retry)
	}
}

// forget drops the renewal of a cluster.
func (r *renewals) forget(cluster string) {
	e := r.clusters[cluster]
	if e == nil {
		return
	}
	if e.at != fair.Outside {
		heap.Remove(&r.due, e.at)
	}
	r.pace -= writesIn(e.period)
	delete(r.clusters, cluster)
}

// Before implements [fair.HeapItem]: the earliest renewal is first.
func (e *renewal) Before(o *renewal) bool { return e.due.Before(o.due) }

// Moved implements [fair.HeapItem].
func (e *renewal) Moved(to int) { e.at = to }
