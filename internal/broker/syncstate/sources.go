package syncstate

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// maxNamed is the maximum number of clusters that a source may name. The store may not have these clusters,
// because after a loss of the store the broker learns them from the sources.
const maxNamed = 1 << 16

// sourceState is the sync state of a source for one cluster since the store was opened:
//
//	                 synced, or all                   withholds
//	┌─────────┐ ─────────────────────► ┌────────┐ ──────────────► ┌─────────┐
//	│ unknown │        revoked         │ synced │   synced, (1)   │ blocked │
//	└─────────┘ ◄───────────────────── └────────┘ ◄────────────── └─────────┘
//	 ▲   │                                                           │  ▲
//	 │   │                         withholds                         │  │
//	 │   └───────────────────────────────────────────────────────────│──┘
//	 │                             revoked                           │
//	 └───────────────────────────────────────────────────────────────┘
//	(1) or all, reported on another subscription; or an operator approved the last deletion
//
// An opened store may be restored from a backup, so every state begins as unknown. It becomes unknown again
// when records leave the store without the source: after a release or a change by an operator.
type sourceState uint8

const (
	unknown sourceState = iota
	// synced: the records of the source's works are as the source wants them.
	synced
	// blocked: synced except for deletions that the source withholds.
	blocked
)

// sourceEvent is an event of the per-cluster sync state machine.
type sourceEvent uint8

const (
	reportedSynced             sourceEvent = iota // the source reports the cluster as synced
	withholds                                     // the source reports withheld deletions on the cluster
	allSyncedHere                                 // the source has finished all clusters, on the subscription on which it reported the withheld deletions
	allSyncedOtherSubscription                    // the same, on another subscription
	revoked                                       // a record left the store without the source
	approved                                      // an operator decided about the last withheld deletion
	sourceEventCount                              // number of events
)

// transitions: state × event → next state.
var transitions = [...][sourceEventCount]sourceState{
	unknown: {reportedSynced: synced, withholds: blocked, allSyncedHere: synced, allSyncedOtherSubscription: synced, revoked: unknown, approved: unknown},
	synced:  {reportedSynced: synced, withholds: blocked, allSyncedHere: synced, allSyncedOtherSubscription: synced, revoked: unknown, approved: synced},
	blocked: {reportedSynced: synced, withholds: blocked, allSyncedHere: blocked, allSyncedOtherSubscription: synced, revoked: unknown, approved: synced},
}

// Sources holds the sync reports of sources. Its methods are safe for concurrent use.
type Sources struct {
	cfg    *settings.Config
	agents Agents
	slots  *Slots
	synced *prometheus.CounterVec

	// works is the number of withheld deletions. While it is 0, changes of records do not take the lock. It is
	// written under the lock.
	works atomic.Int64

	mu  sync.Mutex
	all map[store.Scope]*source // by owner
	// noting serializes the writes of hub positions.
	noting sync.Mutex
}

// source holds the sync states of one source.
type source struct {
	// rest is the state of all clusters that are not in named.
	rest  sourceState
	named map[string]*clusterState
	// serial increments on each report and each revocation. A report is discarded if serial changed while it was
	// processed.
	serial uint64
}

// clusterState is the sync state of a source for one cluster.
type clusterState struct {
	state sourceState
	// subscription is the id of the subscription on which the source reported withheld deletions. reason is the
	// reason in that report.
	subscription string
	reason       string
	works        map[string]codec.WithheldDeletion // by id
}

// Change names the clusters for which a source became synced, or no longer is.
type Change struct {
	DataType   codec.DataType
	Everywhere bool
	Clusters   []string
}

var errTooManyNamed = errors.New("more clusters are named as compared than a source may have")

// of returns the state of an owner and creates it if needed. The caller holds mu.
func (s *Sources) of(owner store.Scope) *source {
	o := s.all[owner]
	if o == nil {
		o = &source{named: map[string]*clusterState{}}
		s.all[owner] = o
	}
	return o
}

func (o *source) at(cluster string) sourceState {
	if c := o.named[cluster]; c != nil {
		return c.state
	}
	return o.rest
}

// stateOf returns the entry of a cluster and creates it if needed.
func (o *source) stateOf(cluster string) *clusterState {
	c := o.named[cluster]
	if c == nil {
		c = &clusterState{state: o.rest}
		o.named[cluster] = c
	}
	return c
}

// move makes one transition. It reports whether the source became synced or stopped being synced.
func (s *Sources) move(o *source, cluster string, what sourceEvent) bool {
	c := o.stateOf(cluster)
	before := c.state
	c.state = transitions[before][what]
	if what == reportedSynced || what == allSyncedOtherSubscription {
		s.withhold(c, nil)
	}
	o.tidy(cluster)
	return (before == synced) != (c.state == synced)
}

// withhold replaces the withheld deletions.
func (s *Sources) withhold(c *clusterState, works map[string]codec.WithheldDeletion) {
	s.works.Add(int64(len(works) - len(c.works)))
	c.works = works
}

// tidy removes an entry that equals rest and withholds nothing.
func (o *source) tidy(cluster string) {
	if c := o.named[cluster]; c.state == o.rest && len(c.works) == 0 {
		delete(o.named, cluster)
	}
}

// syncReport is one report of a source.
type syncReport struct {
	owner        store.Scope
	subscription string
	// serial is the serial that begin set for this report.
	serial   uint64
	clusters []clusterReport // one entry per cluster
	// all is true if the other clusters are synced too, except for deletions withheld on this subscription.
	all bool
}

// clusterReport reports one cluster as synced, or as synced except for withheld deletions.
type clusterReport struct {
	cluster  string
	withheld bool
	reason   string
	works    map[string]codec.WithheldDeletion
}

// now returns the serial of a source. It changes with each report and each revocation.
func (s *Sources) now(owner store.Scope) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of(owner).serial
}

// begin starts a report. before is the result of now. It returns false if another report or a revocation came
// after now.
func (s *Sources) begin(st *syncReport, before uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.of(st.owner)
	if o.serial != before {
		return false
	}
	o.serial++
	st.serial = o.serial
	return true
}

// apply stores a report. ok is false if another report or a revocation came while it was processed.
func (s *Sources) apply(st *syncReport) (ch Change, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.of(st.owner)
	if o.serial != st.serial {
		return ch, false, nil
	}
	if o.sizeWith(st) > maxNamed {
		return ch, false, errTooManyNamed
	}
	ch.DataType = st.owner.DataType
	move := func(cluster string, what sourceEvent) {
		if s.move(o, cluster, what) {
			ch.Clusters = append(ch.Clusters, cluster)
		}
	}
	for _, w := range st.clusters {
		if !w.withheld {
			move(w.cluster, reportedSynced)
			continue
		}
		move(w.cluster, withholds)
		c := o.stateOf(w.cluster)
		c.subscription, c.reason = st.subscription, w.reason
		s.withhold(c, w.works)
	}
	if st.all {
		ch.Everywhere = o.rest != synced
		o.rest = synced
		for cluster, c := range o.named {
			if c.subscription == st.subscription {
				move(cluster, allSyncedHere)
			} else {
				move(cluster, allSyncedOtherSubscription)
			}
		}
	}
	return ch, true, nil
}

// sizeWith returns the number of named clusters after a report.
func (o *source) sizeWith(st *syncReport) int {
	n := len(o.named)
	for _, w := range st.clusters {
		if o.named[w.cluster] == nil {
			n++
		}
	}
	return n
}

// revoke resets the state of a source for a cluster to unknown. If drop is set, the withheld deletions are
// dropped too. changed is true if the source was synced.
func (s *Sources) revoke(owner store.Scope, cluster string, drop bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.of(owner)
	o.serial++
	if drop {
		s.withhold(o.stateOf(cluster), nil)
	}
	return s.move(o, cluster, revoked)
}

// Revoke resets the state of a source for a cluster, because a record left the store without the source. It
// notifies agents in any state of the source, because they hold other works than the store now.
func (s *Sources) Revoke(scope store.Scope, owner string) {
	s.revoke(store.Scope{DataType: scope.DataType, Owner: owner}, scope.Cluster, false)
	s.agents.Recheck(Change{DataType: scope.DataType, Clusters: []string{scope.Cluster}})
}

// Release drops all reports of a source about a cluster: a record that a release removes is not deleted by the
// source. It takes only its own lock. The caller calls report afterwards to notify the agents.
func (s *Sources) Release(owner, cluster string) (report func()) {
	var changed []Change
	for _, d := range codec.DataTypes() {
		if s.revoke(store.Scope{DataType: d, Owner: owner}, cluster, true) {
			changed = append(changed, Change{DataType: d, Clusters: []string{cluster}})
		}
	}
	return func() {
		for _, c := range changed {
			s.agents.Recheck(c)
		}
	}
}

// IsSynced reports whether a source has compared its works on a cluster with the store.
func (s *Sources) IsSynced(scope store.Scope, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.all[store.Scope{DataType: scope.DataType, Owner: owner}]
	return o != nil && o.at(scope.Cluster) == synced
}

// SyncedSources returns the sorted names of the sources that are synced for a cluster.
func (s *Sources) SyncedSources(at store.Scope) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owners []string
	for scope, o := range s.all {
		if scope.DataType == at.DataType && o.at(at.Cluster) == synced {
			owners = append(owners, scope.Owner)
		}
	}
	slices.Sort(owners)
	return owners
}

// changed drops the withheld deletion of a record whose spec changed, or that was removed.
func (s *Sources) changed(c *store.Change) {
	if s.works.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for scope, o := range s.all {
		if scope.DataType != c.Key.DataType || o.named[c.Key.Cluster] == nil {
			continue
		}
		if w, ok := o.named[c.Key.Cluster].works[c.Key.ResourceID]; ok && (c.Gone || w.Revision != c.Revision) {
			s.forget(o, c.Key.Cluster, c.Key.ResourceID)
		}
	}
}

// forget drops the withheld deletion of one work.
func (s *Sources) forget(o *source, cluster, id string) {
	c := o.named[cluster]
	if c == nil {
		return
	}
	if _, ok := c.works[id]; ok {
		delete(c.works, id)
		s.works.Add(-1)
		o.tidy(cluster)
	}
}

// Withholds reports whether a source withholds the deletion of a work whose spec has this revision.
func (s *Sources) Withholds(k store.Key, owner string, revision uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.all[store.Scope{DataType: k.DataType, Owner: owner}]
	if o == nil || o.named[k.Cluster] == nil {
		return false
	}
	w, ok := o.named[k.Cluster].works[k.ResourceID]
	return ok && w.Revision == revision
}

// Approved drops withheld deletions that were committed after approval. When none is left on the cluster, the
// source becomes synced, unless its state changed in between.
//
// Scenario:
//
//	t1: an operator approves the last withheld deletion.
//	t2: while the deletion is committed, the source releases the cluster.
//	t3: the commit succeeds.
//
// Result: the state stays unknown: the source no longer serves the cluster.
func (s *Sources) Approved(scope store.Scope, owner string, ids []string) {
	s.mu.Lock()
	o := s.of(store.Scope{DataType: scope.DataType, Owner: owner})
	for _, id := range ids {
		s.forget(o, scope.Cluster, id)
	}
	c := o.named[scope.Cluster]
	changed := c != nil && len(c.works) == 0 && s.move(o, scope.Cluster, approved)
	s.mu.Unlock()
	if changed {
		s.agents.Recheck(Change{DataType: scope.DataType, Clusters: []string{scope.Cluster}})
	}
}

// scopes adds the clusters with withheld deletions.
func (s *Sources) scopes(all map[store.Scope]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for scope, o := range s.all {
		for cluster, c := range o.named {
			if len(c.works) > 0 {
				all[store.Scope{DataType: scope.DataType, Cluster: cluster}] = struct{}{}
			}
		}
	}
}

// findings returns the withheld deletions of a cluster.
func (s *Sources) findings(at store.Scope) (found []Discrepancy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for scope, o := range s.all {
		c := o.named[at.Cluster]
		if c == nil || scope.DataType != at.DataType {
			continue
		}
		for id, w := range c.works {
			found = append(found, Discrepancy{
				Cause: Withheld, Scope: at, ResourceID: id, Name: w.Name, Source: scope.Owner, Revision: w.Revision, Detail: c.reason,
			})
		}
	}
	return found
}

// Subscription is the running subscription of the source that reports.
type Subscription interface {
	// Scope returns the scope of the subscription.
	Scope() store.Scope
	// Compares records a sync report with this number. It fails if the source has sent a later one.
	Compares(number uint64) *transport.Error
}

// SyncReport processes the sync report of a source. A repeated report has no further effect, unless a
// revocation came in between.
func (s *Sources) SyncReport(ctx context.Context, e *request.Event, sub Subscription) error {
	c, err := request.Decode(e, codec.ParseSyncReport)
	if err != nil {
		return err
	}
	st := &syncReport{owner: sub.Scope(), subscription: e.Subscription, all: c.AllClusters}
	if st.owner.Owner == "" {
		return request.NotOfSource()
	}
	if err := check(st.owner.DataType, c.Clusters); err != nil {
		return err
	}
	// If a report or a revocation comes between now and begin, this report is rejected. apply detects later ones.
	before := s.now(st.owner)
	if ctx.Err() != nil { // the source may have sent another report since
		return request.CallerGone(ctx)
	}
	if err := sub.Compares(e.Env.Fence); err != nil {
		return err
	}
	if !s.begin(st, before) {
		return request.Superseded()
	}
	if err := s.notePosition(ctx, st, c.Position); err != nil {
		return request.Store(err)
	}
	for i := range c.Clusters {
		w, err := s.reportOf(ctx, st.owner, &c.Clusters[i])
		if err != nil {
			return request.Store(err)
		}
		st.clusters = append(st.clusters, w)
	}
	for _, w := range st.clusters {
		result := "synced"
		if w.withheld {
			result = "withheld"
		}
		s.synced.WithLabelValues(result).Inc()
	}
	return s.conclude(st)
}

// check rejects cluster names that are invalid or named twice.
func check(d codec.DataType, clusters []codec.ClusterSyncReport) error {
	named := make(map[string]struct{}, len(clusters))
	for i := range clusters {
		if err := store.CheckScope(d, clusters[i].Cluster); err != nil {
			return request.Invalid("data", "a compared cluster has an invalid name", "name each cluster as its works do")
		}
		named[clusters[i].Cluster] = struct{}{}
	}
	if len(named) < len(clusters) {
		return request.Invalid("data", "a cluster is named twice", "give everything about a cluster in one entry")
	}
	return nil
}

// reportOf converts the report about one cluster. It keeps a withheld deletion only if the live record still
// has that revision.
func (s *Sources) reportOf(ctx context.Context, owner store.Scope, cl *codec.ClusterSyncReport) (clusterReport, error) {
	w := clusterReport{cluster: cl.Cluster, withheld: len(cl.Withheld) > 0, reason: cl.Reason, works: map[string]codec.WithheldDeletion{}}
	if !w.withheld {
		return w, nil
	}
	revisions := make(map[string]uint64, len(cl.Withheld))
	for _, o := range cl.Withheld {
		revisions[o.ResourceID] = o.Revision
	}
	if !s.slots.Wait(ctx) {
		return w, request.CallerGone(ctx)
	}
	defer s.slots.Free()
	owner.Cluster = cl.Cluster
	err := s.cfg.Store.Scan(ctx, owner, func(m store.Meta) error {
		if r, ok := revisions[m.ResourceID]; ok && m.State == store.Live && m.SpecRevision == r {
			w.works[m.ResourceID] = codec.WithheldDeletion{ResourceID: m.ResourceID, Name: m.Name, Revision: r}
		}
		return nil
	})
	if err == nil {
		s.cfg.Log.Warn("source withholds deletions until an operator approves", "source", owner.Owner, "cluster", cl.Cluster, "count", len(w.works))
	}
	return w, err
}

// conclude applies a report and notifies the affected agents.
func (s *Sources) conclude(st *syncReport) error {
	changed, ok, err := s.apply(st)
	switch {
	case err != nil:
		return request.Invalid("data", err.Error(), "set all_clusters instead of naming them")
	case !ok:
		return request.Superseded()
	}
	s.agents.Recheck(changed)
	return nil
}

// bookmarkOf returns the bookmark under which the store keeps the hub position of a source.
func bookmarkOf(owner string) string { return "hub/" + owner }

// hubPosition is the value of that bookmark.
type hubPosition struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// notePosition stores the hub position of a source. A nil position changes nothing.
func (s *Sources) notePosition(ctx context.Context, st *syncReport, p *codec.HubPosition) error {
	if p == nil {
		return nil
	}
	value, err := json.Marshal(hubPosition(*p))
	if err != nil {
		return err
	}
	s.noting.Lock()
	defer s.noting.Unlock()
	if s.now(st.owner) != st.serial {
		return request.Superseded() // the later report may have a later position
	}
	name := bookmarkOf(st.owner.Owner)
	if string(s.cfg.Store.Bookmarks(name)[name]) == string(value) {
		return nil
	}
	return s.cfg.Store.SetBookmarks(ctx, map[string][]byte{name: value})
}

// LastPosition returns the hub position that a source reported last. It returns nil if there is none.
func (s *Sources) LastPosition(owner string) (*codec.HubPosition, error) {
	name := bookmarkOf(owner)
	value, ok := s.cfg.Store.Bookmarks(name)[name]
	if !ok {
		return nil, nil //nolint:nilnil // absent is a value here
	}
	var p hubPosition
	if err := json.Unmarshal(value, &p); err != nil {
		return nil, err
	}
	position := codec.HubPosition(p)
	return &position, nil
}
