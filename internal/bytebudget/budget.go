// Package bytebudget shares a number of bytes among clients.
package bytebudget

import (
	"sync"

	"github.com/hawser-io/hawser/internal/identity"
)

// Budget shares a number of bytes among clients: each client may hold as many bytes as are free. So a single
// client gets half of all, and the next one gets a part of the rest. A client's bytes are shared in the same
// way among its parts.
type Budget struct {
	whole int

	mu   sync.Mutex
	free int
	// reserved holds the clients with reserved bytes.
	reserved map[identity.Identity]*share
}

// share is the reservation of a client, and that of its parts.
type share struct {
	bytes int
	parts map[string]int // nil until a part reserves
}

// NewBudget returns a budget without reservations.
func NewBudget(bytes int) *Budget {
	return &Budget{whole: bytes, free: bytes, reserved: map[identity.Identity]*share{}}
}

// Reserve reserves n more bytes for id. It returns false if id may not have them. n = 0 always succeeds.
func (b *Budget) Reserve(id identity.Identity, n int) bool {
	ok, _ := b.ReservePart(id, "", n)
	return ok
}

// ReservePart is Reserve for a part of id; "" is no part. If it fails, others reports whether another part of
// id could have reserved n bytes.
func (b *Budget) ReservePart(id identity.Identity, part string, n int) (ok, others bool) {
	if n == 0 {
		return true, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.reserved[id]
	if s == nil {
		s = &share{}
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

// Free releases n bytes that id has reserved.
func (b *Budget) Free(id identity.Identity, n int) { b.FreePart(id, "", n) }

// FreePart releases n bytes that a part of id has reserved.
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
		if s.parts == nil {
			s.parts = map[string]int{}
		}
		s.parts[part] = left
	}
}

// Used returns the number of reserved bytes.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.whole - b.free
}
