package settings

import (
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Beats schedules and makes heartbeats. Streams whose heartbeats are due at nearly the same time send the same
// event. The process then wakes once for all of them, and encodes the event once.
type Beats struct {
	every, grid time.Duration
	newID       func() string
	last        atomic.Pointer[beat]
}

// beat is the heartbeat that was made last, and the point of the grid that it is for.
type beat struct {
	at    time.Time
	event []byte
}

// beatsInGrid is the number of points of the grid in an interval. With 10 s and 10,000 streams, 100 of them send
// at each point.
const beatsInGrid = 100

// NewBeats returns the heartbeats of streams at the interval of c.
func NewBeats(c *Config) *Beats {
	return &Beats{every: c.Heartbeat, grid: c.Heartbeat / beatsInGrid, newID: c.NewID}
}

// Next returns the time of the heartbeat after one at now: the last point of the grid within the interval.
func (b *Beats) Next(now time.Time) time.Time {
	next := now.Add(b.every)
	return next.Add(next.Truncate(b.grid).Sub(next)) // Truncate drops the monotonic clock, Add keeps it
}

// Event returns the encoded heartbeat for now. The caller must not change it.
func (b *Beats) Event(now time.Time) []byte {
	at := now.Truncate(b.grid)
	if l := b.last.Load(); l != nil && l.at.Equal(at) {
		return l.event
	}
	l := &beat{at: at, event: codec.Heartbeat(b.newID())}
	b.last.Store(l)
	return l.event
}
