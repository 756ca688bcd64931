// Package agentstatus is what a broker knows of the agents of each cluster, also after they are gone:
// when one was here last, from where, which release it is, and why one was refused. It is one small
// entry for each cluster that the store knows, in memory: what a broker has not seen since it was
// started is unknown to it, and it says so. Whether an agent ever came is in the store.
//
// From that, from how the agents stand that are connected, and from the statuses that the store
// holds, it makes of each cluster one [State]. How many clusters are in which is counted as they
// change, not when somebody looks.
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

// State is how a cluster is, in one word.
type State uint8

// The states. Of agents that are connected, a worse one is higher.
const (
	// NeverSeen: there are works for it, and no agent has ever come.
	NeverSeen State = iota + 1
	// Offline: no agent is connected.
	Offline
	// Refused: none is connected, and one was refused lately.
	Refused
	// InSync: the agent proved that it holds exactly what it should.
	InSync
	// Syncing: something has changed since.
	Syncing
	// Unverified: the agent proves nothing, as those of Open Cluster Management, or has not yet.
	Unverified
	// Failing: works are not applied, or not available.
	Failing
	// OutOfSync: the agent holds something else, also after it listed it.
	OutOfSync
	states
)

var words = [states]string{
	NeverSeen: "NeverConnected", Offline: "Disconnected", Refused: "Rejected", InSync: "InSync", Syncing: "Syncing",
	Unverified: "Unverified", Failing: "Failing", OutOfSync: "OutOfSync",
}

// String is the value of the metric's label; hawser shows the same word.
func (s State) String() string { return words[s] }

const (
	// refusalCounts is for how long a cluster whose agent was refused is called so. One that is
	// refused comes back every few minutes.
	refusalCounts = 15 * time.Minute
	// lookEvery is how often all clusters are judged again: a refusal grows old, and the change
	// feed may leave out what is gone.
	lookEvery = time.Minute
	// longest bounds what peers say of themselves, and what they are told, bytes.
	longest = 64
	// longestRefusal bounds why one was refused, bytes.
	longestRefusal = 256
)

// Facts are what is known of a cluster's agents. What is zero is unknown.
type Facts struct {
	// Seen is when one was connected last; of one that is connected it is when it came.
	Seen time.Time
	// Address, Version, Transport and CertificateEnds are those of the one that came last.
	Address, Version, Transport string
	CertificateEnds             time.Time
	// RoundTrip is how long the last checkpoint was under way that it acknowledged: there, onto
	// its disk and back.
	RoundTrip time.Duration
	// RefusedAt is when one was refused last, Refusal why.
	RefusedAt time.Time
	Refusal   string
}

type peer struct {
	Facts
	state State
	// known is since when the cluster is.
	known time.Time
}

// Agents says how the agents stand that are connected.
type Agents interface {
	// StateOf returns that of the worst one: InSync, Behind, Unproven or Differs; 0 without one.
	StateOf(scope store.Scope) State
}

// Peers knows the clusters. Its methods may be called concurrently, by who holds no lock that
// Agents need.
type Peers struct {
	cfg    *settings.Config
	agents Agents
	// began is since when everything is seen.
	began time.Time

	mu     sync.Mutex
	all    map[store.Scope]*peer
	counts [states]int
}

// New returns what is known when a broker is started.
func New(cfg *settings.Config) *Peers {
	p := &Peers{cfg: cfg, began: cfg.Now(), all: map[store.Scope]*peer{}}
	for s := NeverSeen; s < states; s++ {
		cfg.Meter().Shown("clusters", "Clusters by state.", prometheus.Labels{"state": s.String()}, func() float64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return float64(p.counts[s])
		})
	}
	return p
}

// Connect says who knows the agents. It is called once, before anything else.
func (p *Peers) Connect(a Agents) {
	p.agents = a
	p.look()
}

// Run judges all clusters again now and then, until ctx ends.
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

// Began is since when everything is seen: what was before is unknown.
func (p *Peers) Began() time.Time { return p.began }

// Of returns what is known of a cluster, and its state; 0 if there is no such cluster.
func (p *Peers) Of(scope store.Scope) (Facts, State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.judge(scope); e != nil {
		return e.Facts, e.state
	}
	return Facts{}, 0
}

// absentAfter is after how long a cluster without an agent is told its sources: one that is started
// again, or loses its connection, is back before.
const absentAfter = 5 * time.Minute

// Absent reports whether a cluster has had no agent for a while, since when, whether none ever
// came, and why, if it is known. What was before the broker was started does not count.
func (p *Peers) Absent(scope store.Scope) (c codec.DisconnectedCluster, absent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.judge(scope)
	if e == nil || e.state > Refused {
		return c, false
	}
	_, came := p.cfg.Store.Subscribed(scope.DataType, scope.Cluster)
	c = codec.DisconnectedCluster{Cluster: scope.Cluster, Since: sessionfence.Latest(e.known, e.Seen), NeverConnected: !came}
	if e.state == Refused {
		c.Reason = e.Refusal
	} else if !e.CertificateEnds.IsZero() && e.CertificateEnds.Before(p.cfg.Now()) {
		c.Reason = "the certificate of its agent ended at " + e.CertificateEnds.UTC().Format(time.DateTime) + " UTC: put a new one into its Secret, or have it join again"
	}
	return c, p.cfg.Now().Sub(c.Since) >= absentAfter
}

// Refresh has another look at a cluster of which something has changed.
func (p *Peers) Refresh(scope store.Scope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge(scope)
}

// Connected takes it that an agent has come, and what is known of it.
func (p *Peers) Connected(scope store.Scope, f Facts) {
	p.change(scope, func(had *Facts) {
		f.Seen, f.RefusedAt, f.Refusal = p.cfg.Now(), had.RefusedAt, had.Refusal
		f.Address, f.Version = printable(f.Address, longest), printable(f.Version, longest)
		*had = f
	})
}

// Disconnected takes it that an agent has gone.
func (p *Peers) Disconnected(scope store.Scope) {
	p.change(scope, func(f *Facts) { f.Seen = p.cfg.Now() })
}

// Acknowledged takes it that an agent has acknowledged a checkpoint, and how long that was under way.
func (p *Peers) Acknowledged(scope store.Scope, after time.Duration) {
	p.change(scope, func(f *Facts) { f.RoundTrip = after })
}

// Refused takes it that an agent of a cluster, or one that said so, was refused. Of clusters that
// nobody knows nothing is kept.
func (p *Peers) Refused(cluster, why string) {
	for _, d := range codec.DataTypes() {
		p.change(store.Scope{DataType: d, Cluster: cluster}, func(f *Facts) {
			f.RefusedAt, f.Refusal = p.cfg.Now(), printable(why, longestRefusal)
		})
	}
}

// Forget forgets what is known of a cluster: another one may have its name.
func (p *Peers) Forget(cluster string) {
	for _, d := range codec.DataTypes() {
		p.change(store.Scope{DataType: d, Cluster: cluster}, func(f *Facts) { *f = Facts{} })
	}
}

// change changes what is known of a cluster, if there is one.
func (p *Peers) change(scope store.Scope, f func(*Facts)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.judge(scope); e != nil {
		f(&e.Facts)
		p.judge(scope)
	}
}

// judge brings the state of a cluster up to date, and the counts. It returns nil if there is no
// such cluster. The caller holds mu: what is looked at later is written later.
func (p *Peers) judge(scope store.Scope) *peer {
	head := p.cfg.Store.ClusterHead(scope.DataType, scope.Cluster)
	_, came := p.cfg.Store.Subscribed(scope.DataType, scope.Cluster)
	e := p.all[scope]
	if !came && head.Digest.Count == 0 && head.Tombstones == 0 { // as in the Clusters of a store
		if e != nil {
			p.counts[e.state]--
			delete(p.all, scope)
		}
		return nil
	}
	if e == nil {
		e = &peer{known: p.cfg.Now()}
		scope.Cluster = strings.Clone(scope.Cluster)
		p.all[scope] = e
		p.counts[0]++
	}
	p.counts[e.state]--
	e.state = p.stateOf(e, p.agents.StateOf(scope), came, head.Failing > 0)
	p.counts[e.state]++
	return e
}

func (p *Peers) stateOf(e *peer, state State, came, fails bool) State {
	switch {
	case state == 0 && !e.RefusedAt.IsZero() && !e.RefusedAt.Before(e.Seen) && p.cfg.Now().Sub(e.RefusedAt) < refusalCounts:
		return Refused
	case state == 0 && !came:
		return NeverSeen
	case state == 0:
		return Offline
	case fails:
		return max(state, Failing)
	}
	return state
}

// printable is the beginning of what somebody else chose, of characters that can be shown.
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
