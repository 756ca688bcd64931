package hubsource

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// clusterFairQueue is what waits for the workers of one lane: a queue for each cluster, of which each has
// the same share of the workers' time, however much it has to do and however long the hub
// takes for it. In a queue what concerns a deletion, or the cluster as a whole, is first.
//
// A cluster gets no further worker while it has as many as are left over. So one alone has
// half of them, and one of which the hub answers nothing leaves workers to the others.
type clusterFairQueue struct {
	workqueue.TypedDelayingInterface[core.Key]
	order *fairOrder
}

func newClusterFairQueue(workers int) clusterFairQueue {
	o := &fairOrder{free: workers, busy: map[string]int{}, hurried: map[core.Key]bool{}}
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[core.Key]{Queue: o})
	return clusterFairQueue{workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[core.Key]{Queue: q}), o}
}

// Hurry has a key go before others of its cluster, once.
func (l clusterFairQueue) Hurry(k core.Key) {
	l.order.mu.Lock()
	defer l.order.mu.Unlock()
	l.order.hurried[k] = true
}

// Len is the number of keys that wait, for a turn too.
func (l clusterFairQueue) Len() int {
	l.order.mu.Lock()
	defer l.order.mu.Unlock()
	return l.order.queue.Len()
}

// End gives a key back for which a worker worked so long.
func (l clusterFairQueue) End(k core.Key, took time.Duration) {
	l.order.end(k.Cluster, took)
	l.Done(k)
}

// fairOrder is the order in which keys leave a lane, as a workqueue.Queue.
type fairOrder struct {
	mu      sync.Mutex
	queue   fair.Queue[string, core.Key, core.Key]
	hurried map[core.Key]bool
	// free are the workers without work, busy those of each cluster.
	free int
	busy map[string]int
}

// Push implements workqueue.Queue.
func (o *fairOrder) Push(k core.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue.Push(k.Cluster, k, k.UID == "" || o.hurried[k], 1, k)
	delete(o.hurried, k)
}

// Touch implements workqueue.Queue, for a key that waits already.
func (o *fairOrder) Touch(k core.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hurried[k] {
		o.queue.Prioritize(k.Cluster, k)
		delete(o.hurried, k)
	}
}

// Len implements workqueue.Queue: whether Pop may be called is all that it is asked for.
func (o *fairOrder) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.queue.Ready() {
		return 1
	}
	return 0
}

// Pop implements workqueue.Queue: a worker begins.
func (o *fairOrder) Pop() core.Key {
	o.mu.Lock()
	defer o.mu.Unlock()
	cluster, k, _ := o.queue.Pop()
	o.free--
	o.busy[cluster]++
	for c := range o.busy { // each has a worker, so they are few
		o.park(c)
	}
	return k
}

// end is a worker that is done.
func (o *fairOrder) end(cluster string, took time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue.Charge(cluster, int(took.Microseconds()))
	o.free++
	if o.busy[cluster]--; o.busy[cluster] == 0 {
		delete(o.busy, cluster)
		o.queue.Resume(cluster)
	}
	for c := range o.busy {
		o.park(c)
	}
}

// park leaves a cluster out as long as it has as many workers as are left over.
func (o *fairOrder) park(cluster string) {
	if o.busy[cluster] >= o.free {
		o.queue.Park(cluster)
	} else {
		o.queue.Resume(cluster)
	}
}
