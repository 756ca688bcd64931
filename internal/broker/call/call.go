// Package call is what the rooms of the broker have in common: their [Config], an
// [Event] that a party published, a [Budget] that parties share, and the errors that a
// caller is told. Each error says what to do next, so that no party has to read its text.
package call

import (
	"sync"

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

// Budget shares a number of bytes among parties: each may have as much as is free. So one
// alone gets half of all, and however many reserve what they can, something is left for the
// next one. What a party may have it shares in the same way among its parts.
type Budget struct {
	whole int

	mu       sync.Mutex
	free     int
	reserved map[share]int
}

// share is a party, or a part of one.
type share struct {
	id   identity.Identity
	part string
}

// NewBudget returns a budget of which nothing is reserved.
func NewBudget(bytes int) *Budget {
	return &Budget{whole: bytes, free: bytes, reserved: map[share]int{}}
}

// Reserve reports whether id may have n bytes more, and gives them.
func (b *Budget) Reserve(id identity.Identity, n int) bool { return b.ReservePart(id, "", n) }

// ReservePart is Reserve for a part of what id has; "" is no part.
func (b *Budget) ReservePart(id identity.Identity, part string, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	more := (b.free - b.reserved[share{id, ""}]) / 2
	if n > more || part != "" && n > (more-b.reserved[share{id, part}])/2 {
		return false
	}
	b.add(id, part, n)
	return true
}

// Free gives n bytes back that id had reserved.
func (b *Budget) Free(id identity.Identity, n int) { b.FreePart(id, "", n) }

// FreePart gives n bytes back that a part of id had reserved.
func (b *Budget) FreePart(id identity.Identity, part string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(id, part, -n)
}

func (b *Budget) add(id identity.Identity, part string, n int) {
	b.free -= n
	b.count(share{id, ""}, n)
	if part != "" {
		b.count(share{id, part}, n)
	}
}

func (b *Budget) count(of share, n int) {
	if b.reserved[of] += n; b.reserved[of] == 0 {
		delete(b.reserved, of)
	}
}

// Used returns the bytes that are reserved.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.whole - b.free
}
