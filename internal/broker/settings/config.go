// Package settings has the [Config] and the [LatencyTracker] that the components of the broker share.
package settings

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Config is the configuration of a broker and of each of its components.
type Config struct {
	Store    store.Store
	Log      *slog.Logger          // nil: slog.Default()
	Registry prometheus.Registerer // nil: metrics are kept and not exported
	Audit    *audit.Log            // receives published events; nil: no audit

	// MaxEventBytes is the maximum size of an event in protobuf form, in bytes.
	MaxEventBytes int
	// QueueBytes limits the publishes that wait for a commit, in bytes. The same limit applies separately to lists
	// that wait for a comparison, to remembered lists, and to reports of orphan AppliedManifestWorks.
	QueueBytes int
	// DrainTimeout limits Run after its context has ended.
	DrainTimeout time.Duration
	// Heartbeat is the interval of heartbeats on each stream whose client does not ask for a longer one.
	Heartbeat time.Duration
	// Beats makes the heartbeats; the broker sets it.
	Beats *Beats
	// Replicas are the live replicas; the broker sets it.
	Replicas *Replicas
	// ListGrace is the time after the header in which a client must send its list. Without a list in that time, the
	// list counts as empty.
	ListGrace time.Duration
	// Rest is how long specs of the same id or name are held back from an OCM agent. It begins when the agent's
	// report that a work is deleted is answered. Only then does the agent forget the work, together with earlier
	// specs.
	Rest time.Duration
	// Checkpoint is the minimum time between two checkpoints of one subscription. Each one costs the client a sync
	// of its disk.
	Checkpoint time.Duration
	// Retention is how long a confirmed tombstone waits for its source. TombstoneGC is the interval of the sweeps
	// that remove expired ones.
	Retention, TombstoneGC time.Duration
	// StreamsPerClient is the maximum number of subscriptions of one identity.
	StreamsPerClient int
	// Comparisons is the maximum number of concurrent list comparisons. Default: the number of processors.
	Comparisons int

	// Quotas defines where each source may have works, and the quotas of sources and clusters. nil: everywhere,
	// with the defaults.
	Quotas *quota.Table

	// Registration is the id of the source that serves registration. If it is "", no source does, and its data
	// types are not served.
	Registration string

	// Insecure accepts the claimed identity of clients that have no certificate and no token. It is only for fronts
	// that listen on loopback without TLS.
	Insecure bool

	// Times measures the latency of works; the broker sets it.
	Times *LatencyTracker

	Now   func() time.Time // nil: time.Now
	NewID func() string    // unique ids of events and subscriptions; nil: random UUIDs
}

// Meter returns the factory for the metrics of a broker.
func (c *Config) Meter() telemetry.Meter { return telemetry.NewMeter(c.Registry, "hawser_broker_") }

// Accepted returns the header of a subscription with an id, whose client sends a list. For an OCM client it has only
// the id.
func (c *Config) Accepted(id string, protocol int) transport.Accepted {
	a := transport.Accepted{SubscriptionID: id}
	if protocol >= 1 {
		a.Protocol, a.Resync, a.MaxEventBytes = transport.Protocol, codec.ResyncList, c.MaxEventBytes
		a.StoreID = c.Store.Head().StoreID
	}
	return a
}
