// Package agentstatus holds facts about the agents of each cluster, also while they are disconnected. The facts
// are the time at which an agent was last seen, its address and release, and the reason of the last rejection.
// The memory is one small entry for each cluster in the store. The facts are empty when the broker starts, and
// empty facts are reported as unknown. The store records whether an agent ever subscribed.
//
// A broker beside other replicas keeps a small row for each cluster in the store. So each replica knows the agents
// that are connected to any of them. The rows of a replica that is gone count as disconnected.
//
// The [State] of a cluster follows from this entry, from the state of its connected agents, and from the
// statuses in the store. The number of clusters per state is updated on each change, not on each query.
package agentstatus

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
)

// State is the state of a cluster.
type State uint8

// States of a cluster. From InSync on, a worse state is higher.
const (
	// NeverConnected: the cluster has works, and no agent has ever subscribed.
	NeverConnected State = iota + 1
	// Disconnected: no agent is connected.
	Disconnected
	// Rejected: no agent is connected, and one was rejected recently.
	Rejected
	// InSync: the agent proved that it holds exactly the records of the store.
	InSync
	// Syncing: records have changed since the last proof.
	Syncing
	// Unverified: the agent has not proved anything yet. OCM agents never do.
	Unverified
	// Failing: works are not applied, or not available.
	Failing
	// OutOfSync: the agent holds other works than the store, even after it listed them.
	OutOfSync
	numStates
)

var words = [numStates]string{
	NeverConnected: "NeverConnected", Disconnected: "Disconnected", Rejected: "Rejected", InSync: "InSync",
	Syncing: "Syncing", Unverified: "Unverified", Failing: "Failing", OutOfSync: "OutOfSync",
}

// String returns the label value of the metric; the hawser command shows the same.
func (s State) String() string { return words[s] }

// MarshalText implements [encoding.TextMarshaler].
func (s State) MarshalText() ([]byte, error) { return []byte(words[s]), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. A state of a newer release counts as Unverified.
func (s *State) UnmarshalText(text []byte) error {
	*s = Unverified
	if i := slices.Index(words[:], string(text)); i >= 0 {
		*s = State(i)
	}
	return nil
}

const (
	// refusalCounts is how long a cluster stays Rejected after a rejection. A rejected agent retries every few
	// minutes.
	refusalCounts = 15 * time.Minute
	// lookEvery is the interval at which the states of all clusters are updated. Between changes, rejections
	// expire; and the change feed may omit removed records.
	lookEvery = time.Minute
	// longest is the maximum length of texts from an agent, in bytes.
	longest = 64
	// longestRefusal is the maximum length of the reason of a rejection, in bytes.
	longestRefusal = 256
)

// Facts describes the agents of a cluster. A zero field is unknown.
type Facts struct {
	// Seen is the time of the last disconnect, or of the last connect if an agent is still connected.
	Seen time.Time `json:"seen,omitzero"`
	// Address, Version, Transport and CertificateEnds are those of the agent that connected last.
	Address         string    `json:"address,omitzero"`
	Version         string    `json:"version,omitzero"`
	Transport       string    `json:"transport,omitzero"`
	CertificateEnds time.Time `json:"certificateEnds,omitzero"`
	// RoundTrip is the time from the last acknowledged checkpoint to its ack. It includes the agent's disk write.
	RoundTrip time.Duration `json:"roundTrip,omitzero"`
	// RefusedAt is the time of the last rejection, Refusal its reason.
	RefusedAt time.Time `json:"refusedAt,omitzero"`
	Refusal   string    `json:"refusal,omitzero"`
}

// Connection describes the connected agents of one cluster.
type Connection struct {
	// State is the worst state: InSync, Syncing, Unverified or OutOfSync; 0 if no agent is connected.
	State State `json:"state,omitzero"`
	// Subscriptions is the number of subscriptions, and Since the time of the oldest one.
	Subscriptions int       `json:"subscriptions,omitzero"`
	Since         time.Time `json:"since,omitzero"`
	// Acked is the revision that all have acknowledged, Pending the number of works that are left to send to the one
	// that is furthest behind.
	Acked   uint64 `json:"acked,omitzero"`
	Pending int    `json:"pending,omitzero"`
	// Transports are the transports of the connections, once each.
	Transports []string `json:"transports,omitempty"`
	// Applied are the orphan AppliedManifestWorks that they reported, and Listed the works that they listed and that
	// differ. A row has the first ones of both.
	Applied codec.OrphanReport `json:"applied,omitzero"`
	Listed  []Listed           `json:"listed,omitempty"`
}

// Listed is a work that an agent listed and of which the broker has no record, or an older one (Ahead). Without an id,
// it is the number of further works.
type Listed struct {
	ID    string `json:"id,omitempty"`
	Ahead bool   `json:"ahead,omitempty"`
	More  int    `json:"more,omitempty"`
}

type peer struct {
	Facts
	state State
	// known is when the entry of the cluster was created.
	known time.Time
	// row is the row in the store, nil if there is none, and rowRevision its revision. last is the last state of the
	// agents that are connected here, and lastRevision the spec revision of the cluster then.
	row          *row
	rowRevision  uint64
	elsewhere    bool // no agent is connected here, and one at another replica
	last         State
	lastRevision uint64
	// former are the former subscriptions of the agents that are connected here.
	former []string
}

// Agents returns the state of connected agents.
type Agents interface {
	// StateOf returns the worst state: InSync, Syncing, Unverified or OutOfSync; 0 if no agent is connected. head is
	// the store's summary of the cluster.
	StateOf(scope store.Scope, head store.ClusterHead) State
	// ConnectionOf describes the connected agents of a cluster.
	ConnectionOf(scope store.Scope, head store.ClusterHead) Connection
	// EndFormer ends those of the subscriptions that still run.
	EndFormer(scope store.Scope, subscriptions []string)
}

// Peers has the entries of all clusters. Its methods are safe for concurrent use. The caller must not hold a
// lock that Agents needs.
type Peers struct {
	cfg    *settings.Config
	agents Agents
	// began is the start time of the broker. Facts from before are unknown.
	began time.Time

	mu     sync.Mutex
	all    map[store.Scope]*peer
	counts [numStates]int
	// due are the rows to be written. unpublished rings when there is one.
	due         map[store.Scope]due
	unpublished taskgroup.Bell
}

// New returns the entries of a broker that starts now.
func New(cfg *settings.Config) *Peers {
	p := &Peers{cfg: cfg, began: cfg.Now(), all: map[store.Scope]*peer{}, due: map[store.Scope]due{}, unpublished: taskgroup.NewBell()}
	cfg.Replicas.OnChange(p.replicasChanged)
	for s := NeverConnected; s < numStates; s++ {
		cfg.Meter().GaugeFunc("clusters", "Clusters by state.", prometheus.Labels{"state": s.String()}, func() float64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return float64(p.counts[s])
		})
	}
	return p
}

// Connect sets the source of agent states. Call it once, before any other method.
func (p *Peers) Connect(a Agents) {
	p.agents = a
	p.look()
}

// Run updates all clusters at intervals until ctx ends.
func (p *Peers) Run(ctx context.Context) error {
	taskgroup.Every(ctx, lookEvery, p.look)
	return nil
}

func (p *Peers) look() {
	p.mu.Lock()
	scopes := slices.Collect(maps.Keys(p.all))
	p.mu.Unlock()
	for _, d := range codec.DataTypes() {
		for _, c := range p.cfg.Store.Clusters(d) {
			scopes = append(scopes, store.Scope{DataType: d, Cluster: c})
		}
	}
	for _, scope := range scopes {
		p.Refresh(scope)
	}
}

// Began returns the start time of the broker. Facts from before are unknown.
func (p *Peers) Began() time.Time { return p.began }

// Of returns the facts about a cluster, its connected agents at any replica, and its state. The state is 0 if there
// is no such cluster.
func (p *Peers) Of(scope store.Scope) (Facts, Connection, State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.judge(scope)
	if e == nil {
		return Facts{}, Connection{}, 0
	}
	head := p.headOf(scope)
	c := p.agents.ConnectionOf(scope, head)
	if state := p.elsewhere(e.row, head); c.State == 0 && state != 0 {
		c = e.row.Connection
		c.State = state
	}
	return e.facts(), c, e.state
}

func (p *Peers) headOf(scope store.Scope) store.ClusterHead {
	return p.cfg.Store.ClusterHead(scope.DataType, scope.Cluster)
}

// absentAfter is how long a cluster must be without an agent before its sources are notified. An agent that
// restarts, or loses its connection, is back earlier.
const absentAfter = 5 * time.Minute

// Absent reports whether a cluster has had no agent for absentAfter. c holds the start of that time, whether
// any agent has ever subscribed, and the reason if known. Time before the start of the broker does not count.
func (p *Peers) Absent(scope store.Scope) (c codec.DisconnectedCluster, absent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.judge(scope)
	if e == nil || e.state > Rejected {
		return c, false
	}
	_, came := p.cfg.Store.Subscribed(scope.DataType, scope.Cluster)
	f := e.facts()
	c = codec.DisconnectedCluster{Cluster: scope.Cluster, Since: sessionfence.Latest(e.known, f.Seen), NeverConnected: !came}
	if e.state == Rejected {
		c.Reason = f.Refusal
	} else if !f.CertificateEnds.IsZero() && f.CertificateEnds.Before(p.cfg.Now()) {
		c.Reason = "the certificate of its agent expired at " + f.CertificateEnds.UTC().Format(time.DateTime) + " UTC: put a new one into its Secret, or have it join again"
	}
	return c, p.cfg.Now().Sub(c.Since) >= absentAfter
}

// Refresh updates the state of a cluster after a change.
func (p *Peers) Refresh(scope store.Scope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge(scope)
}

// Connected records that an agent has connected, with its address and version. former is the subscription that it had
// before, "" if it is unknown.
func (p *Peers) Connected(scope store.Scope, f Facts, former string) {
	p.change(scope, due{urgent: true, claims: true}, func(had *peer) {
		f.Seen, f.RefusedAt, f.Refusal = p.cfg.Now(), had.RefusedAt, had.Refusal
		f.Address, f.Version = printable(f.Address, longest), printable(f.Version, longest)
		had.Facts = f
		if former != "" {
			had.former = append(had.former[max(0, len(had.former)+1-maxFormer):], former)
		}
	})
}

// Disconnected records that an agent has disconnected.
func (p *Peers) Disconnected(scope store.Scope) {
	p.change(scope, due{urgent: true}, func(e *peer) { e.Seen = p.cfg.Now() })
}

// Acknowledged updates the state of a cluster after an ack; after is the time since its checkpoint was sent.
func (p *Peers) Acknowledged(scope store.Scope, after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.judge(scope); e != nil {
		e.RoundTrip = after // no state depends on it
	}
}

// Reported makes the row of a cluster due whose agent has reported orphan AppliedManifestWorks, or listed works.
func (p *Peers) Reported(scope store.Scope) { p.change(scope, due{}, func(*peer) {}) }

// Refused records that an agent of a cluster, or a client that claimed to be one, was rejected. Unknown
// clusters are ignored.
func (p *Peers) Refused(cluster, why string) {
	for _, d := range codec.DataTypes() {
		p.change(store.Scope{DataType: d, Cluster: cluster}, due{}, func(e *peer) {
			e.RefusedAt, e.Refusal = p.cfg.Now(), printable(why, longestRefusal)
		})
	}
}

// Forget clears the facts about a cluster whose name may be bound to another cluster.
func (p *Peers) Forget(cluster string) {
	for _, d := range codec.DataTypes() {
		p.change(store.Scope{DataType: d, Cluster: cluster}, due{}, func(e *peer) {
			e.Facts = Facts{}
			if e.row != nil {
				e.row.Facts = Facts{}
			}
		})
	}
}

// change changes the entry of a cluster, if there is one, and makes its row due.
func (p *Peers) change(scope store.Scope, d due, f func(*peer)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.judge(scope); e != nil {
		f(e)
		p.judge(scope)
		p.mark(scope, e, d)
	}
}

// judge updates the state of a cluster and the counts. It returns nil if there is no such cluster. The caller
// holds mu during the read and the write, so that an older state never overwrites a newer one.
func (p *Peers) judge(scope store.Scope) *peer {
	head := p.headOf(scope)
	_, came := p.cfg.Store.Subscribed(scope.DataType, scope.Cluster)
	e := p.all[scope]
	if !came && head.Digest.Count == 0 && head.Tombstones == 0 { // the same clusters as in Clusters of a store
		if e != nil {
			p.counts[e.state]--
			delete(p.all, scope)
			p.mark(scope, e, due{})
		}
		return nil
	}
	if e == nil {
		e = &peer{known: p.cfg.Now()}
		e.row, e.rowRevision = p.rowIn(scope)
		scope.Cluster = strings.Clone(scope.Cluster)
		p.all[scope] = e
		p.counts[0]++
	}
	state := p.agents.StateOf(scope, head)
	e.elsewhere = false
	if state == 0 {
		e.former = nil
		state = p.elsewhere(e.row, head)
		e.elsewhere = state != 0
	} else if state != e.last || state == InSync && head.SpecRevision != e.lastRevision {
		e.last, e.lastRevision = state, head.SpecRevision
		p.mark(scope, e, due{})
	}
	p.counts[e.state]--
	e.state = p.stateOf(e.facts(), state, came, head.Failing > 0)
	p.counts[e.state]++
	return e
}

func (p *Peers) stateOf(f Facts, state State, came, fails bool) State {
	switch {
	case state == 0 && !f.RefusedAt.IsZero() && !f.RefusedAt.Before(f.Seen) && p.cfg.Now().Sub(f.RefusedAt) < refusalCounts:
		return Rejected
	case state == 0 && !came:
		return NeverConnected
	case state == 0:
		return Disconnected
	case fails:
		return max(state, Failing)
	}
	return state
}

// printable returns the first most bytes of s, with a dot instead of each character that cannot be displayed.
func printable(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return strings.Clone(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '.'
	}, s))
}
