// Package call is what the rooms of the broker have in common: their [Config], an
// [Event] that a party published, a [Budget] that parties share, and the errors that a
// caller is told. Each error says what to do next, so that no party has to read its text.
package call

import (
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
)

// AddedBytes is more than a broker or a front ever adds to an event.
const AddedBytes = 4 << 10

// BrokerSource is the source attribute of events that the broker itself makes.
const BrokerSource = "hawser-broker"

// Event is an event that a party published, and may publish.
type Event struct {
	From identity.Identity
	// User and Groups are who the party is for the API of the hub.
	User   string
	Groups []string
	// Issued is when the certificate of an agent was issued; zero without one.
	Issued time.Time
	// Conn is the connection that it came over.
	Conn uint64
	// Subscription is the id of the subscription that it names, "" for none.
	Subscription string
	// Size is how many bytes arrived.
	Size int
	Env  *codec.Envelope
	// Payload is how much memory its payload takes when it is read; see
	// [codec.Envelope.PayloadBytes].
	Payload int
	// Incoming is the event as it came.
	Incoming codec.Incoming
}

// Stored returns the event as it is stored, if it has at most so many bytes. It may be
// called once.
func (e *Event) Stored(most int) ([]byte, error) {
	if e.Size > most+AddedBytes { // it is not even copied
		return nil, TooLarge(e.Size, most)
	}
	b, err := e.Incoming.Normalized()
	if err != nil {
		return nil, Undecodable(err)
	}
	if len(b) > most {
		return nil, TooLarge(len(b), most)
	}
	return b, nil
}

// Decode reads the payload of a sync event.
func Decode[T any](e *Event, parse func(codec.Event) (T, error)) (T, error) {
	var zero T
	payload, err := parse(e.Env.SyncEvent())
	if err != nil {
		return zero, Undecodable(err)
	}
	return payload, nil
}

// Encode encodes an event that the broker has made.
func Encode(e codec.Event, err error) ([]byte, error) {
	if err != nil {
		return nil, Internal(err)
	}
	event, err := codec.Marshal(e)
	if err != nil {
		return nil, Internal(err)
	}
	return event, nil
}

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
