package intake

import (
	"sync"

	"github.com/hawser-io/hawser/internal/identity"
)

// Budget shares a number of bytes among parties: each may have as much as is free. So one
// alone gets half of all, and however many reserve what they can, something is left for the
// next one.
type Budget struct {
	whole int

	mu       sync.Mutex
	free     int
	reserved map[identity.Identity]int
}

// NewBudget returns a budget of which nothing is reserved.
func NewBudget(bytes int) *Budget {
	return &Budget{whole: bytes, free: bytes, reserved: map[identity.Identity]int{}}
}

// Reserve reports whether id may have n bytes more, and gives them.
func (b *Budget) Reserve(id identity.Identity, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.reserved[id]
	if has+n > b.free-n {
		return false
	}
	b.add(id, n)
	return true
}

// Free gives n bytes back that id had reserved.
func (b *Budget) Free(id identity.Identity, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(id, -n)
}

func (b *Budget) add(id identity.Identity, n int) {
	b.free -= n
	if b.reserved[id] += n; b.reserved[id] == 0 {
		delete(b.reserved, id)
	}
}

// Used returns the bytes that are reserved.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.whole - b.free
}
