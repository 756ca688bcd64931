// Package syncstate holds the sync reports of sources and agents, beside the records:
//
//   - [Sources]: for which clusters a source is synced, and which deletions it withholds;
//   - [Lists]: the listed works of an agent that do not match the records;
//   - [Deletions]: which deletions no agent was sent, so that a queued spec may replace the tombstone;
//   - [Names]: which cluster has a name, by the uid of its namespace kube-system.
//
// The reports of sources and the uids of clusters are in the store. Agents list again when they reconnect. Absence from a list never causes a deletion. If an agent holds a newer version than the record,
// only [ResolveConflict] decides: send the record, wait for its source, or force it.
//
// The package imports neither subscriptions nor queues; it uses them through [Agents] and [Writer].
package syncstate

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Agents gives access to the running subscriptions of agents.
type Agents interface {
	// Recheck asks agents to compare again. Causes: other sources are synced for their clusters than before, or
	// records left the store.
	Recheck(Change)
	// End ends the agent subscriptions of a cluster that gave a uid other than uid.
	End(scope store.Scope, uid string, why *transport.Error)
}

// Writer commits operations for a client.
type Writer interface {
	Commit(ctx context.Context, from identity.Identity, ops ...store.Op) ([]store.Outcome, error)
}

// State holds the sync state that sources and agents have reported. Its parts are safe for concurrent use.
type State struct {
	Sources   *Sources
	Lists     *Lists
	Deletions *Deletions
	Names     *Names
	// Slots limits the number of concurrent comparisons.
	Slots *Slots
}

// New returns the state of a store.
func New(cfg *settings.Config) *State {
	m, slots := cfg.Meter(), NewSlots(cfg.Comparisons)
	c := &State{
		Slots: slots,
		Sources: &Sources{
			cfg: cfg, slots: slots, rows: syncRows{all: map[store.Scope]*source{}},
			synced: m.Counters("synced_clusters_total", "Clusters that sources finished comparing by result.", "result"),
		},
		Lists: &Lists{
			cfg: cfg, budget: bytebudget.NewBudget(cfg.QueueBytes), byScope: map[store.Scope][]*List{},
			orphans: m.Counter("orphan_works_total", "Works that agents listed and the broker has no record of."),
			newer:   m.Counter("ahead_works_total", "Works that agents listed in a newer version than the broker's."),
		},
		Deletions: &Deletions{cfg: cfg, clusters: map[store.Scope]*offlineChanges{}},
		Names: &Names{
			cfg:     cfg,
			refused: m.Counter("rejected_clusters_total", "Agents rejected because another cluster is known under their name."),
		},
	}
	m.GaugeFunc("withheld_deletions", "Deletions that sources withhold until an operator approves.", nil, func() float64 {
		return float64(c.Sources.rows.works.Load())
	})
	c.Sources.rows.load(cfg.Store)
	return c
}

// Connect sets the subscriptions that are notified, the writer, and the function that waits until Changed had all
// changes up to a revision. Call it once, before the first report.
func (c *State) Connect(a Agents, w Writer, await func(ctx context.Context, revision uint64) error) {
	c.Sources.agents, c.Names.agents = a, a
	c.Deletions.writer, c.Sources.await = w, await
}

// Changed updates the state after a change of the store, before any subscription receives the change.
func (c *State) Changed(ch *store.Change) {
	if ch.Part == store.BookmarkPart {
		c.Names.changed(ch)
		c.Sources.changed(ch)
		return
	}
	c.Deletions.changed(ch)
	if ch.Part == store.SpecPart {
		c.Sources.rows.changed(ch)
		c.Lists.changed(ch)
	}
}

// scopeOf returns the cluster of a record.
func scopeOf(k store.Key) store.Scope {
	return store.Scope{DataType: k.DataType, Cluster: k.Cluster}
}

// Slots limits the number of concurrent list comparisons. A comparison holds one slot while it reads. Requests
// that wait get the slots in order.
type Slots struct {
	mu      sync.Mutex
	free    int
	waiting []*SlotRequest
}

// SlotRequest is a request for a slot. Create it with [NewSlotRequest]. Its fields are guarded by Slots.mu.
type SlotRequest struct {
	ring           func()
	waiting, holds bool
}

// NewSlotRequest returns a request. ring is called when a slot is reserved for it.
func NewSlotRequest(ring func()) *SlotRequest { return &SlotRequest{ring: ring} }

// NewSlots returns n free slots.
func NewSlots(n int) *Slots { return &Slots{free: n} }

// Take returns true if the caller has a slot now. Otherwise the request waits: after its ring the caller calls
// Take again, or Cancel.
func (s *Slots) Take(r *SlotRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.holds:
		r.holds = false
		return true
	case r.waiting:
		return false
	case s.free > 0:
		s.free--
		return true
	}
	r.waiting = true
	s.waiting = append(s.waiting, r)
	return false
}

// Wait takes a slot as soon as one is free. It returns false if ctx ends before.
func (s *Slots) Wait(ctx context.Context) bool {
	bell := taskgroup.NewBell()
	for r := NewSlotRequest(bell.Ring); !s.Take(r); {
		if !taskgroup.Wait(ctx, bell) {
			s.Cancel(r)
			return false
		}
	}
	return true
}

// Cancel ends the waiting of a request. A slot that is reserved for it is freed.
func (s *Slots) Cancel(r *SlotRequest) {
	s.mu.Lock()
	held := r.holds
	if r.waiting {
		s.waiting = slices.DeleteFunc(s.waiting, func(o *SlotRequest) bool { return o == r })
	}
	r.waiting, r.holds = false, false
	s.mu.Unlock()
	if held {
		s.Free()
	}
}

// Free returns a slot. The first request that waits gets it.
func (s *Slots) Free() {
	s.mu.Lock()
	if len(s.waiting) == 0 {
		s.free++
		s.mu.Unlock()
		return
	}
	r := s.waiting[0]
	s.waiting = slices.Delete(s.waiting, 0, 1)
	r.waiting, r.holds = false, true
	s.mu.Unlock()
	r.ring()
}

// A restored store may have an older state. Then an agent may hold a newer version than the record. Either the
// record is right, because its source went back too, or the store lost a change. Only the source knows which
// case applies.
//
// A deletion may have been confirmed after the backup, and its id used again by a new work that the agent
// holds. So a deletion also waits for its source. A Hawser source compares. An OCM source publishes the
// deletion again, or the new work, which is then queued behind the deletion. Each of these shows that the
// deletion is right.

// DeliveryDecision is how a record is delivered to an agent that listed its work.
type DeliveryDecision uint8

// Delivery decisions.
const (
	// Send: the record is not older than the version that the agent holds, or the versions cannot be compared.
	Send DeliveryDecision = iota + 1
	// Wait: the agent holds a newer version, and no source has confirmed the record yet.
	Wait
	// Force: the agent holds a newer version, but the record is right.
	Force
)

// Conflict compares a record with the version that an agent listed.
type Conflict struct {
	// Listed is the version that the agent listed.
	Listed int64
	// Version is the version of the record. Supersedes is true if the record replaced a newer version at the
	// request of its source.
	Version    int64
	Supersedes bool
	// Synced is true if the owner has compared its works on the cluster with this store.
	Synced bool
	// InForce is true if the record is a deletion that was published, or published again, since the store was
	// opened.
	InForce bool
}

// ResolveConflict is the only rule for records of which an agent may hold a newer version.
func ResolveConflict(c Conflict) DeliveryDecision {
	switch {
	case !resync.Newer(c.Listed, c.Version, c.Supersedes):
		return Send
	case c.Synced, c.InForce:
		return Force
	}
	return Wait
}

// inForce reports whether a deletion with this revision was published, or published again, since the store was
// opened. The store may have lost later changes that undid an older deletion.
func (c *State) inForce(revision uint64) bool {
	return revision >= c.Deletions.cfg.Store.Head().FirstRevision
}

// ConflictOf returns the conflict between a record and the version that an agent listed.
func (c *State) ConflictOf(m *store.Meta, listed int64) Conflict {
	return Conflict{
		Listed: listed, Version: m.Version, Supersedes: m.SpecSupersedes,
		Synced:  c.Sources.IsSynced(scopeOf(m.Key), m.Owner),
		InForce: m.State != store.Live && c.inForce(m.SpecRevision),
	}
}

// Discrepancy is a mismatch that the broker reports to operators and does not repair.
type Discrepancy struct {
	Cause      Cause
	Scope      store.Scope
	ResourceID string // "" of a quarantined cluster
	Name       string // of the work; Withheld only, may be empty
	Source     string // Withheld only
	Revision   uint64 // of the record's spec; Withheld only
	Detail     string // Withheld: the source's reason; Quarantined: the uid
	// Omitted is the number of further orphan works that are not named. Such a Discrepancy names no work.
	Omitted int
}

// Cause is the kind of a discrepancy.
type Cause uint8

// Causes, in the order of display.
const (
	// Orphan: an agent lists the work, and the broker has no record of it.
	Orphan Cause = iota + 1
	// Ahead: an agent lists a newer version of the work than the record has.
	Ahead
	// Withheld: the source of the record no longer has the work, and waits for approval to delete it.
	Withheld
	// Quarantined: an agent of another cluster uses the cluster name.
	Quarantined
)

// Scopes returns the scopes with discrepancies, sorted by cluster and data type.
func (c *State) Scopes() []store.Scope {
	scopes := map[store.Scope]struct{}{}
	c.Lists.scopes(scopes)
	c.Sources.rows.scopes(scopes)
	c.Names.scopes(scopes)
	return slices.SortedFunc(maps.Keys(scopes), func(a, b store.Scope) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.DataType.String(), b.DataType.String()))
	})
}

// Findings returns the discrepancies in a scope, sorted by cause, source and id.
func (c *State) Findings(scope store.Scope) []Discrepancy {
	found := slices.Concat(c.Lists.Findings(scope), c.Sources.rows.findings(scope, c.Sources.cfg.Store.Head().Incarnation), c.Names.findings(scope))
	slices.SortFunc(found, func(a, b Discrepancy) int {
		return cmp.Or(cmp.Compare(a.Omitted, b.Omitted), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Source, b.Source), cmp.Compare(a.ResourceID, b.ResourceID))
	})
	return found
}
