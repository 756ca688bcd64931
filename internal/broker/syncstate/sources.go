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
)

// maxNamed is how many clusters a source may name. The names need not be known: a store
// that was lost has to learn them from the sources.
const maxNamed = 1 << 16

// sourceState is what a source has said of its works on one cluster since the store was opened:
//
//	                compared, or all                 withholds
//	┌────────┐ ─────────────────────► ┌─────────┐ ──────────────► ┌──────────┐
//	│ unsaid │        revoked         │ vouched │ compared, (1)   │ withheld │
//	└────────┘ ◄───────────────────── └─────────┘ ◄────────────── └──────────┘
//	 ▲   │                                                           │  ▲
//	 │   │                         withholds                         │  │
//	 │   └───────────────────────────────────────────────────────────│──┘
//	 │                             revoked                           │
//	 └───────────────────────────────────────────────────────────────┘
//	(1) or all, said on another subscription; or an operator approved the last deletion
//
// A store may have gone back in time when it is opened, so nothing is known then. unsaid
// is also what was released, or what an operator changed: it is not the source's word.
type sourceState uint8

const (
	unknown sourceState = iota
	// synced: the records of its works there are as it wants them.
	synced
	// blocked: all but the deletions that it withholds.
	blocked
)

// sourceEvent is what may be said of a cluster.
type sourceEvent uint8

const (
	reportedSynced             sourceEvent = iota // the source names it as compared
	withholds                                     // the source names it with deletions that it withholds
	allSyncedHere                                 // it has finished with all clusters, on the subscription of the claim
	allSyncedOtherSubscription                    // the same, on another subscription
	revoked                                       // something left the store without the source's doing
	approved                                      // an operator decided about the last deletion that it withholds
	sourceEventCount                              // number of the above
)

// transitions: what was said before × what is said now.
var transitions = [...][sourceEventCount]sourceState{
	unknown: {reportedSynced: synced, withholds: blocked, allSyncedHere: synced, allSyncedOtherSubscription: synced, revoked: unknown, approved: unknown},
	synced:  {reportedSynced: synced, withholds: blocked, allSyncedHere: synced, allSyncedOtherSubscription: synced, revoked: unknown, approved: synced},
	blocked: {reportedSynced: synced, withholds: blocked, allSyncedHere: blocked, allSyncedOtherSubscription: synced, revoked: unknown, approved: synced},
}

// Sources knows what sources have said of their comparisons. Its methods may be called
// concurrently.
type Sources struct {
	cfg    *settings.Config
	agents Agents
	slots  Slots
	synced *prometheus.CounterVec

	// works is the number of deletions that are withheld, so that changes of records wait for
	// nobody while there are none. It is written under the lock.
	works atomic.Int64

	mu  sync.Mutex
	all map[store.Scope]*source // by owner
	// noting lets one position of a hub be written at a time.
	noting sync.Mutex
}

// source is what one source has said.
type source struct {
	// rest is the state of every cluster that is not in named.
	rest  sourceState
	named map[string]*clusterState
	// serial counts how often it began to say something, and how often that was revoked on
	// some cluster: what is said is void when it changed meanwhile.
	serial uint64
}

// clusterState is what a source has said of one cluster.
type clusterState struct {
	state sourceState
	// subscription is the one on which it withholds works, and reason why.
	subscription string
	reason       string
	works        map[string]codec.WithheldDeletion // by id
}

// Change says where other sources vouch than before.
type Change struct {
	DataType   codec.DataType
	Everywhere bool
	Clusters   []string
}

var errTooManyNamed = errors.New("more clusters are named as compared than a source may have")

// of returns what a source has said. The caller holds mu.
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

// stateOf returns what is said of a cluster, to change it.
func (o *source) stateOf(cluster string) *clusterState {
	c := o.named[cluster]
	if c == nil {
		c = &clusterState{state: o.rest}
		o.named[cluster] = c
	}
	return c
}

// move makes one transition, and reports whether the source vouches other than before.
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

// withhold replaces the deletions that are withheld.
func (s *Sources) withhold(c *clusterState, works map[string]codec.WithheldDeletion) {
	s.works.Add(int64(len(works) - len(c.works)))
	c.works = works
}

// tidy forgets a claim that says nothing.
func (o *source) tidy(cluster string) {
	if c := o.named[cluster]; c.state == o.rest && len(c.works) == 0 {
		delete(o.named, cluster)
	}
}

// syncReport is what a source says at once.
type syncReport struct {
	owner        store.Scope
	subscription string
	// serial is what begin returned, before anything was done about it.
	serial   uint64
	clusters []clusterReport // about each cluster once
	// all: the others are compared too, but for what is withheld on this subscription.
	all bool
}

// clusterReport is what a source says of one cluster: that it is compared, or all but the works that
// it withholds.
type clusterReport struct {
	cluster  string
	withheld bool
	reason   string
	works    map[string]codec.WithheldDeletion
}

// now returns a number that is another one whenever something else was said or revoked.
func (s *Sources) now(owner store.Scope) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of(owner).serial
}

// begin is called when a source says something, with what now returned: it counts only
// if nothing else is said or revoked until it is applied.
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

// apply makes a statement count; false: something else was said meanwhile.
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

// sizeWith is how many clusters there would be to remember with a statement.
func (o *source) sizeWith(st *syncReport) int {
	n := len(o.named)
	for _, w := range st.clusters {
		if o.named[w.cluster] == nil {
			n++
		}
	}
	return n
}

// revoke makes what a source said of a cluster count no longer. drop: what it withholds
// is forgotten too.
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

// Revoke ends that a source vouches for a cluster: something of it left the store without
// the source's doing. The agents are told how far they are also where the source did not
// vouch: they hold something else than the store now.
func (s *Sources) Revoke(scope store.Scope, owner string) {
	s.revoke(store.Scope{DataType: scope.DataType, Owner: owner}, scope.Cluster, false)
	s.agents.Recheck(Change{DataType: scope.DataType, Clusters: []string{scope.Cluster}})
}

// Release forgets everything that a source said of a cluster: what vanishes from the store
// is not its word that it does not exist. It takes no lock of others; tell, called after
// that, tells the agents.
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

// IsSynced reports whether a source has compared what it owns on a cluster.
func (s *Sources) IsSynced(scope store.Scope, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.all[store.Scope{DataType: scope.DataType, Owner: owner}]
	return o != nil && o.at(scope.Cluster) == synced
}

// SyncedSources returns, sorted, the sources that have compared what they own on a cluster.
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

// changed ends what is withheld of a record whose spec is another one, or which is gone.
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

// forget ends what is withheld of one work.
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

// Withholds reports whether a source withholds the deletion of a work whose spec has this
// revision.
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

// Approved takes note that withheld deletions were made after all. When there is none left
// on the cluster, all that kept the source from vouching for it was decided, unless it has
// said something else since:
//
//	t1  an operator approves the last deletion that is withheld
//	t2  while it is committed, the source releases the cluster
//	t3  the commit is done; the source vouches for nothing there any more
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

// scopes adds the clusters of which deletions are withheld.
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

// findings are the deletions that are withheld on a cluster.
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

// Subscription is the running one on which a source speaks.
type Subscription interface {
	// Scope is what it covers.
	Scope() store.Scope
	// Compares notes a comparison with this number, and fails if the source has
	// said something later.
	Compares(number uint64) error
}

// SyncReport makes count what a source says about its comparison. Repeating it does no
// harm as long as nothing is revoked in between.
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
	// Between the first look and the second one nothing may be said or revoked: what
	// comes later is then found when this is applied.
	before := s.now(st.owner)
	if ctx.Err() != nil { // the source may have said something else since
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

// check refuses clusters that no source can have compared.
func check(d codec.DataType, clusters []codec.ClusterSyncReport) error {
	named := make(map[string]struct{}, len(clusters))
	for i := range clusters {
		if err := store.CheckScope(d, clusters[i].Cluster); err != nil {
			return request.Invalid("data", "a compared cluster has an impossible name", "name clusters as in clustername")
		}
		named[clusters[i].Cluster] = struct{}{}
	}
	if len(named) < len(clusters) {
		return request.Invalid("data", "a cluster is named twice", "give everything about a cluster in one entry")
	}
	return nil
}

// reportOf is what is said of one cluster. A deletion is withheld only as long as there still is
// such a record.
func (s *Sources) reportOf(ctx context.Context, owner store.Scope, cl *codec.ClusterSyncReport) (clusterReport, error) {
	w := clusterReport{cluster: cl.Cluster, withheld: len(cl.Withheld) > 0, reason: cl.Reason, works: map[string]codec.WithheldDeletion{}}
	if !w.withheld {
		return w, nil
	}
	revisions := make(map[string]uint64, len(cl.Withheld))
	for _, o := range cl.Withheld {
		revisions[o.ResourceID] = o.Revision
	}
	select {
	case s.slots <- struct{}{}:
		defer s.slots.Free()
	case <-ctx.Done():
		return w, request.CallerGone(ctx)
	}
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

// conclude makes a statement count, and tells the agents whom it concerns.
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

// bookmarkOf is the name under which the store remembers which hub a source serves.
func bookmarkOf(owner string) string { return "hub/" + owner }

// hubPosition is the value of that bookmark.
type hubPosition struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// notePosition remembers which hub a source serves; nil changes nothing.
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
		return request.Superseded() // by a later position, maybe
	}
	name := bookmarkOf(st.owner.Owner)
	if string(s.cfg.Store.Bookmarks(name)[name]) == string(value) {
		return nil
	}
	return s.cfg.Store.SetBookmarks(ctx, map[string][]byte{name: value})
}

// LastPosition returns the hub that a source said it serves, and how far that had come;
// nil when it never did.
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
