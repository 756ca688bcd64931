package settings

import (
	"hash/crc32"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Beats schedules and makes the heartbeats of all streams of a broker. Streams whose heartbeats are due at nearly the
// same time send the same event. The process then wakes once for all of them, and encodes the event once.
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

// beatsInGrid is the number of points of the grid in the broker's interval. With 10 s and 10,000 streams, 100 of them
// send at each point.
const beatsInGrid = 100

// maxHeartbeat is the longest interval that a client may ask for.
const maxHeartbeat = time.Minute

// NewBeats returns the heartbeats of streams at the interval of c.
func NewBeats(c *Config) *Beats {
	return &Beats{every: c.Heartbeat, grid: max(1, c.Heartbeat/beatsInGrid), newID: c.NewID}
}

// Schedule is the times of the heartbeats of one stream.
type Schedule struct{ every, phase time.Duration }

// Schedule returns the schedule for a stream of a client that asks for an interval; 0, or an interval that is too
// short, is that of the broker. The schedule depends on nothing else than the client and its address. So the streams
// of one connection send at the same time, their heartbeats share a TLS record, and the client wakes once for all of
// them. Clients that share an identity send at different times.
func (b *Beats) Schedule(client transport.Peer, asked time.Duration) Schedule {
	every := max(b.every, min(asked, maxHeartbeat).Truncate(b.every))
	place := crc32.ChecksumIEEE([]byte(client.Name+client.Addr)) % uint32(every/b.grid)
	return Schedule{every: every, phase: b.grid * time.Duration(place)}
}

// Next returns the time of the first heartbeat after now.
func (s Schedule) Next(now time.Time) time.Time {
	since := now.Add(-s.phase)
	return now.Add(since.Truncate(s.every).Add(s.every).Sub(since)) // Truncate drops the monotonic clock, Add keeps it
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
