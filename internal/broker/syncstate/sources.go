package syncstate

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

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

// Sources holds the sync reports of sources. They are rows of the store, so all brokers over it know them; see
// [syncRows]. Its methods are safe for concurrent use.
type Sources struct {
	cfg    *settings.Config
	agents Agents
	slots  *Slots
	// await waits until this broker has followed the store up to a revision.
	await  func(ctx context.Context, revision uint64) error
	synced *prometheus.CounterVec

	rows syncRows
}

// Change names the clusters for which a source became synced, or no longer is.
type Change struct {
	DataType   codec.DataType
	Everywhere bool
	Clusters   []string
}

var errTooManyNamed = errors.New("more clusters are named as compared than a source may have")

// syncReport is one report of a source.
type syncReport struct {
	owner        store.Scope
	fence        store.Fence
	subscription string
	clusters     []clusterReport // one entry per cluster
	// all is true if the other clusters are synced too, except for deletions withheld on this subscription.
	all      bool
	position *codec.HubPosition // nil if the report has none
}

// clusterReport reports one cluster as synced, or as synced except for withheld deletions.
type clusterReport struct {
	cluster  string
	withheld bool
	reason   string
	works    map[string]codec.WithheldDeletion
}

// write returns the writes of a report in an incarnation of the store.
func (o *source) write(st *syncReport, incarnation string) ([]store.Op, error) {
	if o.sizeWith(st) > maxNamed {
		return nil, errTooManyNamed
	}
	w := writes{owner: st.owner, incarnation: incarnation, rest: o.rest.in(incarnation)}
	if st.all && w.rest != synced {
		w.rest = synced
		w.setState("", synced)
	}
	reports := make(map[string]*clusterReport, len(st.clusters))
	for i := range st.clusters {
		reports[st.clusters[i].cluster] = &st.clusters[i]
	}
	if st.all {
		for cluster := range o.named {
			if reports[cluster] == nil {
				reports[cluster] = nil
			}
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(reports)) {
		w.cluster(cluster, o.named[cluster], o.after(cluster, st, reports[cluster], incarnation))
	}
	return w.ops, nil
}

// after returns the state of a cluster after a report. r is what the report says about the cluster, nil if it
// does not name it.
func (o *source) after(cluster string, st *syncReport, r *clusterReport, incarnation string) next {
	n := next{state: o.at(cluster, incarnation), keep: true}
	subscription := o.named[cluster].withholder(incarnation)
	switch {
	case r == nil:
	case r.withheld:
		n = next{state: transitions[n.state][withholds], parts: encodeWithheld(incarnation, st.subscription, r.reason, r.works)}
		subscription = st.subscription
	default:
		n = next{state: transitions[n.state][reportedSynced]}
	}
	switch {
	case !st.all:
	case subscription == st.subscription:
		n.state = transitions[n.state][allSyncedHere]
	default:
		n = next{state: transitions[n.state][allSyncedOtherSubscription]}
	}
	return n
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

// serial returns the revision of the last change of a source's rows. The rows in memory are not older.
func (s *Sources) serial(ctx context.Context, owner store.Scope) (uint64, error) {
	b, _ := s.cfg.Store.Bookmark(serialRow(owner))
	return b.Revision, s.await(ctx, b.Revision)
}

// commit writes rows of a source, all of them or none. It returns after this broker has followed them. ok is
// false if the rows of the source have changed since the revision before.
func (s *Sources) commit(ctx context.Context, owner store.Scope, before uint64, fence store.Fence, ops []store.Op) (ok bool, err error) {
	serial := serialRow(owner)
	ops = append(ops, store.Op{Kind: store.SetBookmark, Name: serial, Value: []byte(s.cfg.NewID())})
	for i := range ops {
		op := &ops[i]
		op.Conditional, op.Guard, op.IfRevision, op.Fence = true, serial, before, fence
		if problem := store.CheckBookmark(op.Name, op.Value); problem != "" {
			return false, request.Invalid("data", problem, "use shorter names")
		}
	}
	outcomes, err := s.cfg.Store.Commit(ctx, ops)
	if err != nil {
		return false, request.Store(err)
	}
	last := outcomes[len(outcomes)-1]
	switch last.Result {
	case store.ConditionFailed:
		return false, nil
	case store.Fenced:
		return false, request.SubscriptionOver()
	}
	if err := s.await(ctx, last.Revision); err != nil {
		return false, request.Store(err)
	}
	return true, nil
}

// Revoke returns the writes that reset the state of a source for a cluster, because a record leaves the store
// without the source. They belong into the commit that removes the record, before it: no agent may see a synced
// source without that record.
func (s *Sources) Revoke(scope store.Scope, owner string) []store.Op {
	return s.revoke(store.Scope{DataType: scope.DataType, Owner: owner}, scope.Cluster, false)
}

// Release is Revoke for all records of a source on a cluster that it releases. It also drops the withheld
// deletions.
func (s *Sources) Release(owner, cluster string) (ops []store.Op) {
	for _, d := range codec.DataTypes() {
		ops = append(ops, s.revoke(store.Scope{DataType: d, Owner: owner}, cluster, true)...)
	}
	return ops
}

// revoke returns the writes that reset the state of a source for a cluster to unknown. If drop is set, the
// withheld deletions are dropped too. The writes have no condition: reports that are processed now fail.
func (s *Sources) revoke(owner store.Scope, cluster string, drop bool) []store.Op {
	s.rows.mu.Lock()
	defer s.rows.mu.Unlock()
	o := s.rows.of(owner)
	w := writes{owner: owner, incarnation: s.cfg.Store.Head().Incarnation}
	reset := cluster
	if o.named[cluster] == nil && len(o.named) >= maxNamed || store.CheckBookmark(stateRow(owner, cluster), nil) != "" {
		reset = "" // there is no row for this cluster
	}
	w.setState(reset, unknown)
	if drop {
		w.setWithheld(cluster, o.named[cluster], nil)
	}
	w.set(serialRow(owner), []byte(s.cfg.NewID()))
	for i := range w.ops {
		w.ops[i].Key.Cluster = cluster // the commit queue keeps the order of the ops of one cluster
	}
	return w.ops
}

// IsSynced reports whether a source has compared its works on a cluster with the store.
func (s *Sources) IsSynced(scope store.Scope, owner string) bool {
	return s.stateOf(store.Scope{DataType: scope.DataType, Owner: owner}, scope.Cluster) == synced
}

// stateOf returns the state of a source for a cluster. It reads the rows as the last commit left them. In the
// feed, a row may be missing that was changed again: then a source would be synced which never was.
func (s *Sources) stateOf(owner store.Scope, cluster string) sourceState {
	incarnation := s.cfg.Store.Head().Incarnation
	// The row of the other clusters is read first. A commit that removes the row of a cluster does so because both
	// are equal then.
	rest, _ := s.cfg.Store.Bookmark(stateRow(owner, ""))
	if b, ok := s.cfg.Store.Bookmark(stateRow(owner, cluster)); ok {
		return parseState(b.Value).in(incarnation)
	}
	return parseState(rest.Value).in(incarnation)
}

// SyncedSources returns the sorted names of the sources that are synced for a cluster.
func (s *Sources) SyncedSources(at store.Scope) []string {
	var owners []string
	for _, owner := range s.rows.owners(at.DataType) {
		if s.IsSynced(at, owner) {
			owners = append(owners, owner)
		}
	}
	slices.Sort(owners)
	return owners
}

// changed follows a row, and notifies the agents of the clusters that it is about.
func (s *Sources) changed(c *store.Change) {
	n, ok := parseRow(c.Key.ResourceID)
	if !ok {
		return
	}
	s.rows.follow(n, c.Value)
	if n.part < 0 {
		s.agents.Recheck(Change{DataType: n.owner.DataType, Everywhere: n.cluster == "", Clusters: []string{n.cluster}})
	}
}

// Withholds reports whether a source withholds the deletion of a work whose spec has this revision.
func (s *Sources) Withholds(k store.Key, owner string, revision uint64) bool {
	incarnation := s.cfg.Store.Head().Incarnation
	s.rows.mu.Lock()
	defer s.rows.mu.Unlock()
	c := s.rows.of(store.Scope{DataType: k.DataType, Owner: owner}).named[k.Cluster]
	if c.withholder(incarnation) == "" {
		return false
	}
	w, ok := c.works[k.ResourceID]
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
func (s *Sources) Approved(ctx context.Context, scope store.Scope, owner string, ids []string) error {
	of := store.Scope{DataType: scope.DataType, Owner: owner}
	for {
		before, err := s.serial(ctx, of)
		if err != nil {
			return request.Store(err)
		}
		ops := s.approve(of, scope.Cluster, ids)
		if len(ops) == 0 {
			return nil
		}
		if ok, err := s.commit(ctx, of, before, store.Fence{}, ops); ok || err != nil {
			return err
		}
	}
}

// approve returns the writes after an approval.
func (s *Sources) approve(owner store.Scope, cluster string, ids []string) []store.Op {
	incarnation := s.cfg.Store.Head().Incarnation
	s.rows.mu.Lock()
	defer s.rows.mu.Unlock()
	o := s.rows.of(owner)
	c := o.named[cluster]
	subscription := c.withholder(incarnation)
	if subscription == "" {
		return nil
	}
	n := next{state: o.at(cluster, incarnation)}
	left := make(map[string]codec.WithheldDeletion, len(c.works))
	for id, w := range c.works {
		if !slices.Contains(ids, id) {
			left[id] = w.WithheldDeletion
		}
	}
	if len(left) > 0 {
		n.parts = encodeWithheld(incarnation, subscription, c.reason, left)
	} else {
		n.state = transitions[n.state][approved]
	}
	w := writes{owner: owner, incarnation: incarnation, rest: o.rest.in(incarnation)}
	w.cluster(cluster, c, n)
	return w.ops
}

// Subscription is the running subscription of the source that reports.
type Subscription interface {
	// Scope returns the scope of the subscription.
	Scope() store.Scope
	// Compares records a sync report with this number. It fails if the source has sent a later one.
	Compares(number uint64) *transport.Error
	// Shared returns the fence of the subscription for all brokers.
	Shared() store.Fence
}

// SyncReport processes the sync report of a source. A repeated report has no further effect, unless a
// revocation came in between.
func (s *Sources) SyncReport(ctx context.Context, e *request.Event, sub Subscription) error {
	c, err := request.Decode(e, codec.ParseSyncReport)
	if err != nil {
		return err
	}
	st := &syncReport{owner: sub.Scope(), fence: sub.Shared(), subscription: e.Subscription, all: c.AllClusters, position: c.Position}
	if st.owner.Owner == "" {
		return request.NotOfSource()
	}
	if err := check(st.owner.DataType, c.Clusters); err != nil {
		return err
	}
	// A report or a revocation that is committed after this makes the commit of the report fail.
	before, err := s.serial(ctx, st.owner)
	if err != nil {
		return request.Store(err)
	}
	if ctx.Err() != nil { // the source may have sent another report since
		return request.CallerGone(ctx)
	}
	if err := sub.Compares(e.Env.Fence); err != nil {
		return err
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
	return s.conclude(ctx, st, before)
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

// conclude writes a report. When it returns, the affected agents of this broker are notified.
func (s *Sources) conclude(ctx context.Context, st *syncReport, before uint64) error {
	s.rows.mu.Lock()
	ops, err := s.rows.of(st.owner).write(st, s.cfg.Store.Head().Incarnation)
	s.rows.mu.Unlock()
	if err != nil {
		return request.Invalid("data", err.Error(), "set all_clusters instead of naming them")
	}
	if st.position != nil {
		value, err := json.Marshal(hubPosition(*st.position))
		if err != nil {
			return request.Internal(err)
		}
		ops = append(ops, store.Op{Kind: store.SetBookmark, Name: bookmarkOf(st.owner.Owner), Value: value})
	}
	ok, err := s.commit(ctx, st.owner, before, st.fence, ops)
	if err == nil && !ok {
		return request.Superseded()
	}
	return err
}

// bookmarkOf returns the bookmark under which the store keeps the hub position of a source.
func bookmarkOf(owner string) string { return "hub/" + owner }

// hubPosition is the value of that bookmark.
type hubPosition struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// LastPosition returns the hub position that a source reported last. It returns nil if there is none.
func (s *Sources) LastPosition(owner string) (*codec.HubPosition, error) {
	b, ok := s.cfg.Store.Bookmark(bookmarkOf(owner))
	if !ok {
		return nil, nil //nolint:nilnil // absent is a value here
	}
	var p hubPosition
	if err := json.Unmarshal(b.Value, &p); err != nil {
		return nil, err
	}
	position := codec.HubPosition(p)
	return &position, nil
}
