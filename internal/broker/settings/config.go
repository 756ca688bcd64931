// Package settings has what the components of the broker have in common: their [Config]
// and the [LatencyTracker].
package settings

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/telemetry"
)

// Config is what a broker, and each of its rooms, is made of.
type Config struct {
	Store    store.Store
	Log      *slog.Logger          // nil: slog.Default()
	Registry prometheus.Registerer // nil: metrics are kept and not shown
	Audit    *audit.Log            // hears of what is published; nil: nobody does

	// MaxEventBytes is the largest event, in bytes of its protobuf form.
	MaxEventBytes int
	// QueueBytes bounds what waits for a commit, and in the same amount each
	// what waits for a comparison, what is remembered of lists, and what agents
	// say of AppliedManifestWorks that no work explains.
	QueueBytes int
	// DrainTimeout bounds Run after its context ended; DrainRate is how many
	// streams per second are ended then.
	DrainTimeout time.Duration
	DrainRate    int
	// Heartbeat is the interval of heartbeats on every stream.
	Heartbeat time.Duration
	// ListGrace is how long a party may take after the header to say what it
	// has; one that did not is believed to have nothing.
	ListGrace time.Duration
	// Rest is how long, after a stock agent was answered that reported a work as
	// gone, specs of the same id or name wait: it forgets the work only then, and
	// what comes earlier with it.
	Rest time.Duration
	// Checkpoint is the least time between two checkpoints of one subscription:
	// each costs the party a sync of its disk.
	Checkpoint time.Duration
	// Retention is how long a grave waits for its source; TombstoneGC how often that
	// is looked at.
	Retention, TombstoneGC time.Duration
	// StreamsPerClient bounds the subscriptions of one identity.
	StreamsPerClient int
	// Comparisons is how many comparisons of lists run at a time. Default: the
	// number of processors.
	Comparisons int

	// Quotas say where each source may have works, and how much it and each cluster may have.
	// nil: everywhere, and the defaults.
	Quotas *quota.Table

	// Registration is the id of the source that serves registration; "": nobody does, and its
	// data types are not served.
	Registration string

	// Insecure believes peers without an identity who they say they are. For
	// fronts that listen on loopback without TLS, and nothing else.
	Insecure bool

	// Times measures how long works take; the broker sets it.
	Times *LatencyTracker

	Now   func() time.Time // nil: time.Now
	NewID func() string    // unique ids of events and subscriptions; nil: random UUIDs
}

// Meter makes the metrics of a broker.
func (c *Config) Meter() telemetry.Meter { return telemetry.NewMeter(c.Registry, "hawser_broker_") }
