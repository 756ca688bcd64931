// Package syncstate keeps what the parties say about what exists, beside the records:
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
// is missing: [ResolveConflict], the one rule about a record of which an agent holds a newer
// version, sends it, lets it wait for its source, or forces it upon the agent.
//
// The package knows no subscription and no queue. Who does is asked through [Agents] and
// [Writer].
package syncstate

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Agents are the running subscriptions of agents.
type Agents interface {
	// Recheck says that other sources than before vouch for clusters, or that a deletion
	// was published again.
	Recheck(Change)
	// End ends those of a cluster whose agents gave another uid.
	End(scope store.Scope, uid string, why *transport.Error)
}

// Writer commits in the name of a party.
type Writer interface {
	Commit(ctx context.Context, from identity.Identity, ops ...store.Op) ([]store.Outcome, error)
}

// State is what all parties claim. Its parts may be used concurrently.
type State struct {
	Sources   *Sources
	Lists     *Lists
	Deletions *Deletions
	Names     *Names
	// Slots limit how many comparisons run at a time.
	Slots Slots
}

// New returns claims of nobody.
func New(cfg *settings.Config) *State {
	m, slots := cfg.Meter(), make(Slots, cfg.Comparisons)
	c := &State{
		Slots: slots,
		Sources: &Sources{
			cfg: cfg, slots: slots, all: map[store.Scope]*source{},
			synced: m.Counters("synced_clusters_total", "Clusters that sources finished comparing by result.", "result"),
		},
		Lists: &Lists{
			cfg: cfg, budget: bytebudget.NewBudget(cfg.QueueBytes), byScope: map[store.Scope][]*List{},
			orphans: m.Counter("orphan_works_total", "Works that agents listed and no record explains."),
			newer:   m.Counter("ahead_works_total", "Works that agents listed in a newer version than the broker's."),
		},
		Deletions: &Deletions{cfg: cfg, repeated: map[store.Key]uint64{}, clusters: map[store.Scope]*offlineChanges{}},
		Names: &Names{
			cfg: cfg, quarantined: map[store.Scope]quarantinedCluster{},
			refused: m.Counter("rejected_clusters_total", "Agents rejected because another cluster is known under their name."),
		},
	}
	m.Shown("withheld_deletions", "Deletions that sources withhold until an operator approves.", nil, func() float64 {
		return float64(c.Sources.works.Load())
	})
	return c
}

// Connect says who is told, and who writes. It is called once, before anything is claimed.
func (c *State) Connect(a Agents, w Writer) {
	c.Sources.agents, c.Deletions.agents, c.Names.agents = a, a, a
	c.Deletions.writer = w
}

// Changed notes a change of a record, before any subscription is told of it.
func (c *State) Changed(ch *store.Change) {
	c.Deletions.changed(ch)
	if ch.Part == store.SpecPart {
		c.Sources.changed(ch)
		c.Lists.changed(ch)
	}
}

// scopeOf is the cluster that a record is of.
func scopeOf(k store.Key) store.Scope {
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

// A store that was restored may have gone back in time: an agent then holds a newer
// version than the record. It may be that the record is the truth (its source went back
// too), or that the store forgot something. Only the source knows.
//
// A deletion may have been confirmed since the backup, and undone by a new life of the
// work, which its agent holds. So a deletion waits for its source too. One of ours
// compares. A stock source does not, but it publishes what it has again: the deletion,
// or the new life, which then waits behind it. That is its word that the deletion is
// true.

// DeliveryDecision says what an agent that listed a work is sent of its record.
type DeliveryDecision uint8

// The decisions.
const (
	// Send: the record is no older than what the agent holds, or versions do not order
	// the two.
	Send DeliveryDecision = iota + 1
	// Wait: the agent holds a newer version, and nobody has said which one is true.
	Wait
	// Force: the agent holds a newer version, and the record is true all the same.
	Force
)

// Conflict is a record beside what an agent listed of it.
type Conflict struct {
	// Listed is the version that the agent listed.
	Listed int64
	// Version of the record; Supersedes: it replaced a newer one on its source's word.
	Version    int64
	Supersedes bool
	// Synced: the owner has compared what it owns on the cluster with this store.
	Synced bool
	// InForce: the record is a deletion that came since the store was opened, or was
	// published again since.
	InForce bool
}

// ResolveConflict is the one rule about records of which an agent may hold a newer version.
func ResolveConflict(c Conflict) DeliveryDecision {
	switch {
	case !resync.Newer(c.Listed, c.Version, c.Supersedes):
		return Send
	case c.Synced, c.InForce:
		return Force
	}
	return Wait
}

// About returns the case of a record of which an agent listed a version.
func (c *State) About(m *store.Meta, listed int64) Conflict {
	return Conflict{
		Listed: listed, Version: m.Version, Supersedes: m.SpecSupersedes,
		Synced:  c.Sources.IsSynced(scopeOf(m.Key), m.Owner),
		InForce: m.State != store.Live && c.Deletions.inForce(m.Key, m.SpecRevision),
	}
}

// Discrepancy is something that does not fit together and is left alone.
type Discrepancy struct {
	Cause      Cause
	Scope      store.Scope
	ResourceID string // "" of a quarantined cluster
	Name       string // of the work; Withheld only, may be empty
	Source     string // Withheld only
	Revision   uint64 // of the record's spec; Withheld only
	Detail     string // Withheld: the source's reason; Quarantined: the uid
	// Omitted is how many more unexplained works there are, which are not named; the
	// Finding names none then.
	Omitted int
}

// Cause says what does not fit together.
type Cause uint8

// The causes, in the order in which they are shown.
const (
	// Orphan: an agent lists the work, and no record explains it.
	Orphan Cause = iota + 1
	// Ahead: an agent lists a newer version of the work than the record's.
	Ahead
	// Withheld: the source of the record lacks the work, and does not dare to delete it.
	Withheld
	// Quarantined: an agent of another cluster comes under the name.
	Quarantined
)

// Scopes returns where something does not fit together, by cluster and data type.
func (c *State) Scopes() []store.Scope {
	scopes := map[store.Scope]struct{}{}
	c.Lists.scopes(scopes)
	c.Sources.scopes(scopes)
	c.Names.scopes(scopes)
	return slices.SortedFunc(maps.Keys(scopes), func(a, b store.Scope) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.DataType.String(), b.DataType.String()))
	})
}

// Findings returns what does not fit together at a place, by cause, source and id.
func (c *State) Findings(scope store.Scope) []Discrepancy {
	found := slices.Concat(c.Lists.findings(scope), c.Sources.findings(scope), c.Names.findings(scope))
	slices.SortFunc(found, func(a, b Discrepancy) int {
		return cmp.Or(cmp.Compare(a.Omitted, b.Omitted), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Source, b.Source), cmp.Compare(a.ResourceID, b.ResourceID))
	})
	return found
}
