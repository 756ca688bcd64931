package interop

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is the longest wait of a test. Only a failed test waits that long.
const patience = 20 * time.Second

// journal records entries in order, so that a test can wait for them. It may be used concurrently.
type journal[T any] struct {
	name string
	show func(T) string

	mu      sync.Mutex
	entries []T
	more    chan struct{} // closed at the next entry
	ended   error         // the reason why there are no more entries
}

func newJournal[T any](name string, show func(T) string) *journal[T] {
	return &journal[T]{name: name, show: show, more: make(chan struct{})}
}

func (j *journal[T]) add(e T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, e)
	close(j.more)
	j.more = make(chan struct{})
}

// end reports that there will be no more entries.
func (j *journal[T]) end(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = err
	close(j.more)
	j.more = make(chan struct{})
}

// position returns the position after the last entry.
func (j *journal[T]) position() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

// since returns the matching entries from a position on.
func (j *journal[T]) since(from int, match func(T) bool) []T {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []T
	for _, e := range j.entries[from:] {
		if match(e) {
			found = append(found, e)
		}
	}
	return found
}

// await waits for the first matching entry from a position on.
func (j *journal[T]) await(t testing.TB, from int, what string, match func(T) bool) T {
	t.Helper()
	return j.awaitCount(t, from, 1, what, match)[0]
}

// awaitCount waits for the first n matching entries from a position on.
func (j *journal[T]) awaitCount(t testing.TB, from, n int, what string, match func(T) bool) []T {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	var found []T
	for next := from; ; {
		j.mu.Lock()
		for _, e := range j.entries[next:] {
			if match(e) {
				found = append(found, e)
			}
		}
		next = len(j.entries)
		more, ended := j.more, j.ended
		j.mu.Unlock()
		if len(found) >= n {
			return found[:n]
		}
		if ended != nil {
			t.Fatalf("%s ended (%v) before %s: %d of %d\n%s", j.name, ended, what, len(found), n, j)
		}
		select {
		case <-more:
		case <-timeout.C:
			t.Fatalf("%s: waited %s for %s: %d of %d\n%s", j.name, patience, what, len(found), n, j)
		}
	}
}

// tail is the number of entries in an error.
const tail = 40

// String returns the last entries, for errors.
func (j *journal[T]) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	first := max(0, len(j.entries)-tail)
	for n, e := range j.entries[first:] {
		fmt.Fprintf(&b, "  %3d %s\n", first+n, j.show(e))
	}
	return b.String()
}

// eventually waits until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick, timeout := time.NewTicker(time.Millisecond), time.NewTimer(patience)
	defer tick.Stop()
	defer timeout.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout.C:
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}
