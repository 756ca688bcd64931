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

// Works are brought in line by a number of workers. One that takes long, because the cluster
// does not answer, because there is much to do, or because its rules take their time, keeps
// its worker for slowAfter only: then it goes on in a place beside the workers, if there is one. A
// work that took long last time takes no worker, and waits for a place. So works that take long
// wait for each other, and all else goes on.
const (
	slowAfter = 2 * time.Second
	// overflowSlots is how many works that take long go on at a time, for each worker.
	overflowSlots = 3
	// A work that takes veryslowAfter is told of; it is looked for such every lookForLate.
	veryslowAfter = 30 * time.Second
	lookForLate   = 10 * time.Second
)

// workerPool gives works their turns.
type workerPool struct {
	work  func(ctx context.Context, q *queue, key string)
	slots int
	// beside are those that have no worker.
	beside sync.WaitGroup

	mu      sync.Mutex
	running map[string]*workRun
	// long are the keys whose last turn took long, waiting those of them that wait for
	// a place, in order; taken counts the places.
	long    map[string]bool
	waiting []string
	taken   int
}

// workRun is one reconciliation of one key.
type workRun struct {
	key   string
	since time.Time
	waits kubeclient.Progress
	// placed: it has no worker. reported: somebody has heard that it takes long.
	placed, reported bool
}

func newWorkerPool(workers int, work func(ctx context.Context, q *queue, key string)) *workerPool {
	return &workerPool{work: work, slots: workers * overflowSlots, running: map[string]*workRun{}, long: map[string]bool{}}
}

// serve gives the keys of a queue to n workers until ctx ends.
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

// give returns when the worker is free again.
func (t *workerPool) give(ctx context.Context, q *queue, key string) {
	u := t.begin(key, q)
	if u == nil {
		return // whoever leaves a place goes on with it
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
			placed = true // as good as
		case <-long.C:
			placed = t.overflowSlot(u)
		}
		long.Stop()
	}
}

// begin returns the turn of a key; nil if it took long and there is no place for it now.
func (t *workerPool) begin(key string, q *queue) *workRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.long[key] && t.taken >= t.slots {
		t.waiting = append(t.waiting, key)
		return nil
	}
	return t.start(key, q)
}

// start begins a turn. t.mu is held.
func (t *workerPool) start(key string, q *queue) *workRun {
	u := &workRun{key: key, since: time.Now(), placed: t.long[key], waits: kubeclient.Progress{Key: key, Wait: func() { q.Add(key) }}}
	if u.placed {
		t.taken++
	}
	t.running[key] = u
	return u
}

// overflowSlot lets a turn go on without its worker, if there is a place.
func (t *workerPool) overflowSlot(u *workRun) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[u.key] != u {
		return true // it has just ended
	}
	if t.taken >= t.slots {
		return false
	}
	u.placed = true
	t.taken++
	return true
}

// end ends a turn, and returns that of a key that gets its place; nil if none does.
func (t *workerPool) end(u *workRun, q *queue) (next *workRun) {
	defer q.Done(u.key) // from here on another one may begin
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

// goesOn reports whether the turn of a work has not ended.
func (t *workerPool) goesOn(w slowWork) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.running[w.key]
	return u != nil && u.since.Equal(w.since)
}

// slowWork is one that takes long.
type slowWork struct {
	key   string
	since time.Time
	// waits is the request that it waits for, "" if it waits for none.
	waits string
	// news: nobody has heard of it.
	news bool
}

func (w slowWork) String() string {
	s := fmt.Sprintf("%s since %s", w.key, w.since.UTC().Format(time.RFC3339))
	if w.waits != "" {
		s += ", waits for " + w.waits
	}
	return s
}

// late returns the works whose turn takes too long, the longest first. tell says that the
// caller tells of them.
func (t *workerPool) late(report bool) []slowWork {
	t.mu.Lock()
	defer t.mu.Unlock()
	var late []slowWork
	for key, u := range t.running {
		if time.Since(u.since) < veryslowAfter {
			continue
		}
		late = append(late, slowWork{key: key, since: u.since, waits: u.waits.Waits(), news: !u.reported})
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
