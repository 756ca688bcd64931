package broker

import (
	"sync"

	"github.com/hawser-io/hawser/internal/identity"
)

// budget shares a number of bytes among parties: each may have as much as is
// free. So one alone gets half of all, and however many take what they can,
// something is left for the next one.
type budget struct {
	mu    sync.Mutex
	free  int
	taken map[identity.Identity]int
}

func newBudget(bytes int) *budget {
	return &budget{free: bytes, taken: map[identity.Identity]int{}}
}

// take reports whether id may have n bytes more, and gives them.
func (b *budget) take(id identity.Identity, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.taken[id]
	if has+n > b.free-n {
		return false
	}
	b.taken[id] = has + n
	b.free -= n
	return true
}

// give returns n bytes that id had taken.
func (b *budget) give(id identity.Identity, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	if b.taken[id] -= n; b.taken[id] == 0 {
		delete(b.taken, id)
	}
}

// inUse returns the bytes that are taken, given the size of the whole.
func (b *budget) inUse(whole int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return whole - b.free
}
