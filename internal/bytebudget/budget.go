// Package bytebudget shares a number of bytes among clients.
package bytebudget

import (
	"sync"

	"github.com/hawser-io/hawser/internal/identity"
)

// Budget shares a number of bytes among parties: each may have as much as is free. So one
// alone gets half of all, and however many reserve what they can, something is left for the
// next one. What a party may have it shares in the same way among its parts.
type Budget struct {
	whole int

	mu   sync.Mutex
	free int
	// reserved is what parties have of it, those that have something.
	reserved map[identity.Identity]*share
}

// share is what a party has, and of that its parts.
type share struct {
	bytes int
	parts map[string]int
}

// NewBudget returns a budget of which nothing is reserved.
func NewBudget(bytes int) *Budget {
	return &Budget{whole: bytes, free: bytes, reserved: map[identity.Identity]*share{}}
}

// Reserve reports whether id may have n bytes more, and gives them. Nothing may be had always.
func (b *Budget) Reserve(id identity.Identity, n int) bool {
	ok, _ := b.ReservePart(id, "", n)
	return ok
}

// ReservePart is Reserve for a part of what id has; "" is no part. Where it may not have
// them, others reports whether other parts may have as much.
func (b *Budget) ReservePart(id identity.Identity, part string, n int) (ok, others bool) {
	if n == 0 {
		return true, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.reserved[id]
	if s == nil {
		s = &share{parts: map[string]int{}}
	}
	more := (b.free - s.bytes) / 2
	if n > more || part != "" && n > (more-s.parts[part])/2 {
		return false, n <= more/2
	}
	if s.bytes == 0 {
		b.reserved[id] = s
	}
	b.add(s, part, n)
	return true, true
}

// Free gives n bytes back that id had reserved.
func (b *Budget) Free(id identity.Identity, n int) { b.FreePart(id, "", n) }

// FreePart gives n bytes back that a part of id had reserved.
func (b *Budget) FreePart(id identity.Identity, part string, n int) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.reserved[id]
	if b.add(s, part, -n); s.bytes == 0 {
		delete(b.reserved, id)
	}
}

func (b *Budget) add(s *share, part string, n int) {
	b.free -= n
	s.bytes += n
	if part == "" {
		return
	}
	if left := s.parts[part] + n; left == 0 {
		delete(s.parts, part)
	} else {
		s.parts[part] = left
	}
}

// Used returns the bytes that are reserved.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.whole - b.free
}
