package registration

import (
	"container/heap"
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/sessionfence"
)

const (
	// missedPeriods is after how many periods without a renewal a cluster counts as lost, and a
	// renewal as one of a wrong clock: what is as old is not written.
	missedPeriods = 5
	// fewestWrites is how many Leases a second are written at least, if there are as many to write.
	fewestWrites = 20
	// spread is the time over which the Leases of all clusters are spread if all are due.
	spread = 30 * time.Second
	// retryLease is how long a Lease waits that the hub did not take.
	retryLease = 10 * time.Second
)

// renewals decide when which Lease is written: at most once per period and cluster, with the last
// renewal, and all of them at a pace that the hub bears after an outage too. They have no clock.
type renewals struct {
	clusters map[string]*renewal
	due      renewalHeap
	bucket   fair.Bucket
}

// renewal is the last one of a cluster.
type renewal struct {
	cluster string
	period  time.Duration
	// renewed is when the agent renewed, written when that was written last.
	renewed, written time.Time
	due              time.Time
	at               int // in the line; notDue: nothing is to be written
}

const notDue = -1

// renew says that an agent renewed its Lease at this time. written is the renewal that the hub
// has, which counts as long as nothing was written here. One ahead of now does not: a clock that was
// wrong wrote it, and it shows nothing of whether the cluster lives.
func (r *renewals) renew(now time.Time, cluster string, renewed, written time.Time, period time.Duration) {
	if r.clusters == nil {
		r.clusters = map[string]*renewal{}
	}
	e := r.clusters[cluster]
	if e == nil {
		if written.After(now) {
			written = time.Time{}
		}
		e = &renewal{cluster: cluster, written: written, at: notDue}
		r.clusters[cluster] = e
	}
	e.period = period
	if renewed.After(e.renewed) {
		e.renewed = renewed
	}
	if e.at == notDue && e.renewed.After(e.written) {
		r.schedule(e, sessionfence.Latest(now, e.written.Add(period)))
	}
}

func (r *renewals) schedule(e *renewal, at time.Time) {
	e.due = at
	heap.Push(&r.due, e)
}

// next returns the cluster whose Lease is to be written now, and with which time. ok is false if
// there is none yet; then wait is how long there will be none, 0 if nobody knows.
func (r *renewals) next(now time.Time) (cluster string, renewed time.Time, wait time.Duration, ok bool) {
	for len(r.due) > 0 {
		e := r.due[0]
		if wait := e.due.Sub(now); wait > 0 {
			return "", time.Time{}, wait, false
		}
		if now.Sub(e.renewed) >= missedPeriods*e.period {
			heap.Pop(&r.due) // the hub has noticed by now, and a renewal that old would say nothing
			continue
		}
		pace := fair.Rate{PerSecond: max(fewestWrites, float64(len(r.clusters))/spread.Seconds()), Burst: fewestWrites}
		if !r.bucket.Spend(pace, now, 1) {
			return "", time.Time{}, max(time.Duration(float64(time.Second)/pace.PerSecond), time.Millisecond), false
		}
		heap.Pop(&r.due)
		e.written = now
		return e.cluster, e.renewed, 0, true
	}
	return "", time.Time{}, 0, false
}

// failed says that the hub did not take it, for a reason that passes.
func (r *renewals) failed(now time.Time, cluster string) {
	if e := r.clusters[cluster]; e != nil && e.at == notDue {
		r.schedule(e, now.Add(retryLease))
	}
}

// forget ends what is known of a cluster.
func (r *renewals) forget(cluster string) {
	e := r.clusters[cluster]
	if e != nil && e.at != notDue {
		heap.Remove(&r.due, e.at)
	}
	delete(r.clusters, cluster)
}

// renewalHeap is a heap of renewals, the earliest first.
type renewalHeap []*renewal //nolint:recvcheck // as heap.Interface wants it

func (l renewalHeap) Len() int           { return len(l) }
func (l renewalHeap) Less(i, j int) bool { return l[i].due.Before(l[j].due) }
func (l renewalHeap) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].at, l[j].at = i, j
}

// Push implements heap.Interface.
func (l *renewalHeap) Push(x any) {
	e, _ := x.(*renewal)
	e.at = len(*l)
	*l = append(*l, e)
}

// Pop implements heap.Interface.
func (l *renewalHeap) Pop() any {
	last := len(*l) - 1
	e := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	e.at = notDue
	return e
}
