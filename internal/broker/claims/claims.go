// Package claims keeps what the parties say about what exists, beside the records:
//
//   - [Sources]: for which clusters a source vouches that the records of its works are
//     as it wants them, and which deletions it withholds;
//   - [Lists]: what an agent listed that does not fit the records;
//   - [Deletions]: which deletions are true although the agent holds a newer version, and
//     which no agent has heard of, so that a work that waits may take over;
//   - [Names]: which cluster has a name, by the uid of its namespace kube-system.
//
// All of it lives in memory and comes again with the next connection, but for the names
// and the positions of hubs, which the store keeps. Nothing here is deleted because it
// is missing: [Decide], the one rule about a record of which an agent holds a newer
// version, sends it, lets it wait for its source, or forces it upon the agent.
//
// The package knows no subscription and no queue. Who does is asked through [Agents] and
// [Writer].
package claims

import (
	"context"
	"log/slog"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Agents are the running subscriptions of agents.
type Agents interface {
	// Recheck says that other sources than before vouch for clusters, or that a deletion
	// was published again.
	Recheck(Change)
	// End ends those of a cluster whose agents gave another uid.
	End(place store.Scope, uid string, why *transport.Error)
}

// Writer commits in the name of a party.
type Writer interface {
	Commit(ctx context.Context, from identity.Identity, ops ...store.Op) ([]store.Outcome, error)
}

// Budget shares bytes among parties.
type Budget interface {
	Reserve(id identity.Identity, bytes int) bool
	Free(id identity.Identity, bytes int)
}

// Config is what a [Claims] is made of.
type Config struct {
	Store store.Store
	Lists Budget // for ids that no record explains
	Slots Slots
	Log   *slog.Logger
	Meter telemetry.Meter
	Now   func() time.Time
}

// Claims is what all parties claim. Its parts may be used concurrently.
type Claims struct {
	Sources   *Sources
	Lists     *Lists
	Deletions *Deletions
	Names     *Names
}

// New returns claims of nobody.
func New(cfg Config) *Claims {
	c := &Claims{
		Sources:   &Sources{store: cfg.Store, slots: cfg.Slots, log: cfg.Log, all: map[store.Scope]*source{}},
		Lists:     &Lists{budget: cfg.Lists, log: cfg.Log, byPlace: map[store.Scope][]*List{}},
		Deletions: &Deletions{store: cfg.Store, log: cfg.Log, now: cfg.Now, repeated: map[store.Key]uint64{}, clusters: map[store.Scope]*absence{}},
		Names:     &Names{store: cfg.Store, log: cfg.Log, now: cfg.Now, quarantined: map[store.Scope]stranger{}},
	}
	m := cfg.Meter
	c.Lists.unexplained = m.Counter("orphans_total", "Works that agents listed and no record explains.")
	c.Lists.newer = m.Counter("newer_versions_total", "Works that agents listed in a newer version than the broker's.")
	c.Names.refused = m.Counter("refused_clusters_total", "Agents refused because another cluster is known under their name.")
	c.Sources.compared = m.Counters("compared_clusters_total", "Clusters that sources finished comparing by result.", "result")
	m.Shown("withheld_deletions", "Deletions that sources withhold until an operator approves.", nil, func() float64 {
		return float64(c.Sources.works.Load())
	})
	return c
}

// Connect says who is told, and who writes. It is called once, before anything is claimed.
func (c *Claims) Connect(a Agents, w Writer) {
	c.Sources.agents, c.Deletions.agents, c.Names.agents = a, a, a
	c.Deletions.writer = w
}

// Changed notes a change of a record, before any subscription is told of it.
func (c *Claims) Changed(ch *store.Change) {
	c.Deletions.changed(ch)
	if ch.Part == store.SpecPart {
		c.Sources.changed(ch)
		c.Lists.changed(ch)
	}
}

// placeOf is the cluster that a record is of.
func placeOf(k store.Key) store.Scope {
	return store.Scope{DataType: k.DataType, Cluster: k.Cluster}
}

// Slots limit how many comparisons of lists run at a time: each holds one while it reads.
type Slots chan struct{}

// Try occupies a slot if one is free.
func (s Slots) Try() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// Free gives a slot back.
func (s Slots) Free() { <-s }
