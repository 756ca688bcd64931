package registration

import (
	"container/heap"
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/sessionfence"
)

const (
	// missedPeriods is the number of periods without a renewal after which a cluster counts as disconnected. A
	// renewal of that age is treated as one of a wrong clock, and is not written.
	missedPeriods = 5
	// fewestWrites is the lowest limit of Lease writes per second.
	fewestWrites = 20
	// spread is the time over which the writes are spread if the Leases of all clusters are due.
	spread = 30 * time.Second
	// retryLease is the pause after a failed write of a Lease.
	retryLease = 10 * time.Second
)

// renewals decide which Lease is written next, and when: at most once per period and cluster, with the last
// renewal. The rate is limited, so that the hub keeps up after an outage too. The caller passes the time.
type renewals struct {
	clusters map[string]*renewal
	due      renewalHeap
	bucket   fair.Bucket
}

// renewal is the last renewal of a cluster.
type renewal struct {
	cluster string
	period  time.Duration
	// renewed is when the agent renewed the Lease last, written the time of the last write.
	renewed, written time.Time
	due              time.Time
	at               int // index in the heap; notDue: nothing is to be written
}

const notDue = -1

// renew records that an agent renewed its Lease at a time. written is the renewal on the hub, used until the
// first write by this process. A renewal ahead of now is ignored: a wrong clock wrote it, and it does not show
// that the cluster is alive.
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

// next returns the cluster whose Lease is to be written now, and the renewal time. ok is false if none is due;
// then wait is the time until the next one, 0 if there is none.
func (r *renewals) next(now time.Time) (cluster string, renewed time.Time, wait time.Duration, ok bool) {
	for len(r.due) > 0 {
		e := r.due[0]
		if wait := e.due.Sub(now); wait > 0 {
			return "", time.Time{}, wait, false
		}
		if now.Sub(e.renewed) >= missedPeriods*e.period {
			heap.Pop(&r.due) // the hub counts the cluster as disconnected already, and a renewal of that age would not change this
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

// failed plans another write after a temporary error of the hub.
func (r *renewals) failed(now time.Time, cluster string) {
	if e := r.clusters[cluster]; e != nil && e.at == notDue {
		r.schedule(e, now.Add(retryLease))
	}
}

// forget drops the renewal of a cluster.
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
