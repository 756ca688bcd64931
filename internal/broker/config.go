package broker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/google/uuid"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
)

// Defaults of [Config], in bytes unless the type is a duration.
const (
	// DefaultMaxEventBytes keeps an event, with all attributes that the broker adds, within 4 MiB. OCM clients
	// reject larger messages.
	DefaultMaxEventBytes = 4<<20 - request.AddedBytes
	DefaultQueueBytes    = 64 << 20
	// DefaultDrainTimeout is less than the time after which Kubernetes kills a container, 30 s. 2,000 clients that move
	// within half of it are less than 200 a second.
	DefaultDrainTimeout = 25 * time.Second
	DefaultHeartbeat    = 10 * time.Second
	DefaultListGrace    = 30 * time.Second
	DefaultRest         = 2 * time.Second
	DefaultCheckpoint   = time.Second
	DefaultRetention    = 7 * 24 * time.Hour
	DefaultTombstoneGC  = time.Hour
	DefaultStreams      = 32

	// smallestEvent is the minimum of MaxEventBytes. The metadata of an event alone takes a few hundred bytes.
	smallestEvent = 16 << 10
)

// Config is the configuration of a [Broker]. Only Store is required. Every other zero value means its default.
type Config = settings.Config

func withDefaults(c Config) (Config, error) {
	if c.Store == nil {
		return c, errors.New("broker: no store")
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.NewID == nil {
		c.NewID = uuid.NewString
	}
	if err := errors.Join(
		complete(&c.MaxEventBytes, DefaultMaxEventBytes, "largest event"),
		complete(&c.QueueBytes, DefaultQueueBytes, "queue"),
		complete(&c.DrainTimeout, DefaultDrainTimeout, "drain timeout"),
		complete(&c.Heartbeat, DefaultHeartbeat, "heartbeat interval"),
		complete(&c.ListGrace, DefaultListGrace, "list grace"),
		complete(&c.Rest, DefaultRest, "rest"),
		complete(&c.Checkpoint, DefaultCheckpoint, "pause between checkpoints"),
		complete(&c.Retention, DefaultRetention, "retention"),
		complete(&c.TombstoneGC, DefaultTombstoneGC, "interval of the tombstone GC"),
		complete(&c.StreamsPerClient, DefaultStreams, "streams per client"),
		complete(&c.Comparisons, runtime.GOMAXPROCS(0), "number of comparisons"),
	); err != nil {
		return c, err
	}
	return c, validate(c)
}

// complete sets a zero value to its default. It returns an error for a negative value.
func complete[T int | time.Duration](value *T, def T, what string) error {
	if *value < 0 {
		return fmt.Errorf("broker: %s is negative: use a positive value, or 0 for the default", what)
	}
	*value = cmp.Or(*value, def)
	return nil
}

func validate(c Config) error {
	if c.MaxEventBytes < smallestEvent {
		return fmt.Errorf("broker: largest event of %d bytes: use at least %d", c.MaxEventBytes, smallestEvent)
	}
	// One client may use half of the queue, and one event must fit into that half.
	if c.QueueBytes < 4*c.MaxEventBytes {
		return fmt.Errorf("broker: queue of %d bytes: use at least four times the largest event, %d", c.QueueBytes, 4*c.MaxEventBytes)
	}
	return nil
}
