package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// A fixed number of workers reconcile works. A slow work keeps its worker for slowAfter only. Then it continues
// in an overflow slot, if one is free. A work that was slow last time uses no worker and waits for a slot. So
// slow works wait for each other, and all other works proceed.
const (
	slowAfter = 2 * time.Second
	// overflowSlots is the number of overflow slots per worker.
	overflowSlots = 3
	// A work that takes veryslowAfter is reported; lookForLate is the interval of the check.
	veryslowAfter = 30 * time.Second
	lookForLate   = 10 * time.Second
)

// workerPool runs reconciliations on workers and in overflow slots.
type workerPool struct {
	work  func(ctx context.Context, q *queue, key string)
	slots int
	// beside waits for the running reconciliations.
	beside sync.WaitGroup

	mu      sync.Mutex
	running map[string]*workRun
	// long has the keys whose last run was slow. waiting has those of them that wait for a slot, in order. taken
	// counts the used slots.
	long    map[string]bool
	waiting []string
	taken   int
}

// workRun is one reconciliation of one key.
type workRun struct {
	key   string
	since time.Time
	waits kubeclient.Progress
	// placed: the run has an overflow slot instead of a worker. reported: it was reported as slow.
	placed, reported bool
}

func newWorkerPool(workers int, work func(ctx context.Context, q *queue, key string)) *workerPool {
	return &workerPool{work: work, slots: workers * overflowSlots, running: map[string]*workRun{}, long: map[string]bool{}}
}

// serve passes the keys of a queue to n workers until ctx ends.
func (t *workerPool) serve(ctx context.Context, q *queue, n int) error {
	stop := context.AfterFunc(ctx, q.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for {
				key, ended := q.Get()
				if ended {
					return
				}
				t.give(ctx, q, key)
			}
		})
	}
	workers.Wait()
	t.beside.Wait()
	return ctx.Err()
}

// give runs a key and returns when the worker is free again.
func (t *workerPool) give(ctx context.Context, q *queue, key string) {
	u := t.begin(key, q)
	if u == nil {
		return // the run that frees a slot continues with this key
	}
	done, placed := make(chan struct{}), u.placed
	t.beside.Go(func() {
		defer close(done)
		for u := u; u != nil; u = t.end(u, q) {
			if ctx.Err() == nil {
				t.work(kubeclient.WithProgress(ctx, &u.waits), q, u.key)
			}
		}
	})
	for !placed {
		long := time.NewTimer(slowAfter)
		select {
		case <-done:
			placed = true // the run has ended
		case <-long.C:
			placed = t.overflowSlot(u)
		}
		long.Stop()
	}
}

// begin returns the run of a key; nil if the key was slow and no slot is free.
func (t *workerPool) begin(key string, q *queue) *workRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.long[key] && t.taken >= t.slots {
		t.waiting = append(t.waiting, key)
		return nil
	}
	return t.start(key, q)
}

// start begins a run. t.mu is held.
func (t *workerPool) start(key string, q *queue) *workRun {
	u := &workRun{key: key, since: time.Now(), placed: t.long[key], waits: kubeclient.Progress{Key: key, Wait: func() { q.Add(key) }}}
	if u.placed {
		t.taken++
	}
	t.running[key] = u
	return u
}

// overflowSlot moves a run from its worker to a slot. It returns false if none is free.
func (t *workerPool) overflowSlot(u *workRun) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[u.key] != u {
		return true // the run has just ended
	}
	if t.taken >= t.slots {
		return false
	}
	u.placed = true
	t.taken++
	return true
}

// end ends a run. It returns the run of the key that gets the freed slot; nil if none does.
func (t *workerPool) end(u *workRun, q *queue) (next *workRun) {
	defer q.Done(u.key) // from here on the key may run again
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, u.key)
	if t.long[u.key] = time.Since(u.since) >= slowAfter; !t.long[u.key] {
		delete(t.long, u.key)
	}
	if !u.placed {
		return nil
	}
	t.taken--
	if len(t.waiting) == 0 {
		return nil
	}
	key := t.waiting[0]
	t.waiting = t.waiting[1:]
	return t.start(key, q)
}

// goesOn reports whether the run of a slow work is still the current one of its key.
func (t *workerPool) goesOn(w slowWork) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.running[w.key]
	return u != nil && u.since.Equal(w.since)
}

// slowWork is a work that takes long.
type slowWork struct {
	key   string
	since time.Time
	// waits is the request that it waits for, "" if it waits for none.
	waits string
	// news: it was not reported yet.
	news bool
}

func (w slowWork) String() string {
	s := fmt.Sprintf("%s since %s", w.key, w.since.UTC().Format(time.RFC3339))
	if w.waits != "" {
		s += ", waits for " + w.waits
	}
	return s
}

// late returns the works that have run for veryslowAfter or longer, the longest first. report marks them as
// reported.
func (t *workerPool) late(report bool) []slowWork {
	t.mu.Lock()
	defer t.mu.Unlock()
	var late []slowWork
	for key, u := range t.running {
		if time.Since(u.since) < veryslowAfter {
			continue
		}
		late = append(late, slowWork{key: key, since: u.since, waits: u.waits.Request(), news: !u.reported})
		u.reported = u.reported || report
	}
	slices.SortFunc(late, func(a, b slowWork) int {
		if c := a.since.Compare(b.since); c != 0 {
			return c
		}
		return strings.Compare(a.key, b.key)
	})
	return late
}
