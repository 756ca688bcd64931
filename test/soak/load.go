package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/test/consistency"
)

const (
	// writers is the number of concurrent writers. Each has works of its own.
	writers       = 8
	worksOfWriter = 12
	// writeEvery is the mean time between two writes of one writer.
	writeEvery = 400 * time.Millisecond
	// absent is about the number of works that each writer leaves deleted.
	absent = 2
)

// load writes works until ctx ends.
type load struct {
	*consistency.Works
	seed                      uint64
	created, updated, deleted atomic.Int64
}

// run returns the first error of a writer, nil when ctx has ended. It waits for the answers to requests in
// flight, so that the state of the hub is known.
func (l *load) run(ctx context.Context, clusters []string) error {
	failed, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range writers {
		w := writer{load: l, random: random(l.seed, fmt.Sprint("writer ", i))}
		for n := range worksOfWriter {
			w.away = append(w.away, consistency.Key{Cluster: clusters[n%len(clusters)], Name: fmt.Sprintf("soak-%d-%d", i, n)})
		}
		wg.Go(func() {
			if err := w.run(failed); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(failed)
}

// writer has works on the hub (there), and works that it has deleted or not created yet (away).
type writer struct {
	*load
	random      *rand.Rand
	there, away []consistency.Key
}

func (w *writer) run(ctx context.Context) error {
	for {
		pause := time.Duration(w.random.ExpFloat64() * float64(writeEvery))
		if len(w.away) > absent {
			pause = 0 // at the start all works are created
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		// The hub may be down for longer than ctx.
		if err := w.write(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
}

// write creates, updates or deletes one work. Creations and deletions balance.
func (w *writer) write(ctx context.Context) error {
	const round = 10 // one write in ten creates or deletes a work
	switch ends := w.random.IntN(round) == 0; {
	case len(w.away) > absent || ends && len(w.away) > 0 && w.random.IntN(2) == 0:
		w.created.Add(1)
		return w.Create(ctx, move(&w.away, &w.there, 0))
	case ends && len(w.away) < absent:
		w.deleted.Add(1)
		return w.Delete(ctx, move(&w.there, &w.away, w.random.IntN(len(w.there))))
	default:
		w.updated.Add(1)
		return w.Update(ctx, w.there[w.random.IntN(len(w.there))])
	}
}

// move removes an element from one list and appends it to another.
func move(from, to *[]consistency.Key, i int) consistency.Key {
	k := (*from)[i]
	*from = append((*from)[:i:i], (*from)[i+1:]...)
	*to = append(*to, k)
	return k
}
