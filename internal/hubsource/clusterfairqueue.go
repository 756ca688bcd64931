package hubsource

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// clusterFairQueue holds the keys that wait for the workers of one queue of the core. Each cluster has a queue
// of its own and the same share of the workers' time. The number of its keys and the response time of the hub
// do not matter. In a cluster's queue, keys of deletions and of the cluster as a whole come first.
//
// A cluster gets no further worker while it has as many as are free. So one cluster alone uses half of the
// workers, and a cluster without answers of the hub leaves workers to the others.
type clusterFairQueue struct {
	workqueue.TypedDelayingInterface[core.Key]
	order *fairOrder
}

func newClusterFairQueue(workers int) clusterFairQueue {
	o := &fairOrder{free: workers, busy: map[string]int{}, hurried: map[core.Key]bool{}}
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[core.Key]{Queue: o})
	return clusterFairQueue{workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[core.Key]{Queue: q}), o}
}

// Prioritize moves a key before the others of its cluster, once.
func (l clusterFairQueue) Prioritize(k core.Key) {
	l.order.mu.Lock()
	defer l.order.mu.Unlock()
	l.order.hurried[k] = true
}

// Len returns the number of waiting keys, including those of clusters that have to wait.
func (l clusterFairQueue) Len() int {
	l.order.mu.Lock()
	defer l.order.mu.Unlock()
	return l.order.queue.Len()
}

// End returns a key after a worker has worked for took on it.
func (l clusterFairQueue) End(k core.Key, took time.Duration) {
	l.order.end(k.Cluster, took)
	l.Done(k)
}

// fairOrder is the order in which keys leave a queue, as a workqueue.Queue.
type fairOrder struct {
	mu      sync.Mutex
	queue   fair.Queue[string, core.Key, core.Key]
	hurried map[core.Key]bool
	// free is the number of idle workers, busy the number of busy ones by cluster.
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

// Len implements workqueue.Queue. It returns 1 if Pop may be called, otherwise 0; workqueue needs no more.
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
	for c := range o.busy { // at most one cluster per worker
		o.park(c)
	}
	return k
}

// end records that a worker has finished.
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

// park excludes a cluster while it has as many workers as are free.
func (o *fairOrder) park(cluster string) {
	if o.busy[cluster] >= o.free {
		o.queue.Park(cluster)
	} else {
		o.queue.Resume(cluster)
	}
}
