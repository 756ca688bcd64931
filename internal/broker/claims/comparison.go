package claims

import (
	"context"
	"encoding/json"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Subscription is the running one on which a source speaks.
type Subscription interface {
	// Scope is what it covers.
	Scope() store.Scope
	// Compares notes a comparison with this number, and fails if the source has
	// said something later.
	Compares(number uint64) error
}

// Compared makes count what a source says about its comparison. Repeating it does no
// harm as long as nothing is revoked in between.
func (s *Sources) Compared(ctx context.Context, e *call.Event, sub Subscription) error {
	c, err := call.Decode(e, codec.ParseCompared)
	if err != nil {
		return err
	}
	st := &statement{owner: sub.Scope(), subscription: e.Subscription, all: c.AllClusters}
	if st.owner.Owner == "" {
		return call.NotOfSource()
	}
	if err := check(st.owner.DataType, c.Clusters); err != nil {
		return err
	}
	// Between the first look and the second one nothing may be said or revoked: what
	// comes later is then found when this is applied.
	before := s.now(st.owner)
	if ctx.Err() != nil { // the source may have said something else since
		return call.CallerGone(ctx)
	}
	if err := sub.Compares(e.Env.Order); err != nil {
		return err
	}
	if !s.begin(st, before) {
		return call.Superseded()
	}
	if err := s.notePosition(ctx, st, c.Position); err != nil {
		return call.Store(err)
	}
	for i := range c.Clusters {
		if err := s.addCluster(ctx, st, &c.Clusters[i]); err != nil {
			return call.Store(err)
		}
	}
	s.compared.WithLabelValues("compared").Add(float64(len(st.compared)))
	s.compared.WithLabelValues("withheld").Add(float64(len(st.withheld)))
	return s.conclude(st)
}

// check refuses clusters that no source can have compared.
func check(d codec.DataType, clusters []codec.ClusterComparison) error {
	named := make(map[string]struct{}, len(clusters))
	for i := range clusters {
		if err := store.CheckPlace(d, clusters[i].Cluster); err != nil {
			return call.Invalid("data", "a compared cluster has an impossible name", "name clusters as in clustername")
		}
		named[clusters[i].Cluster] = struct{}{}
	}
	if len(named) < len(clusters) {
		return call.Invalid("data", "a cluster is named twice", "give everything about a cluster in one entry")
	}
	return nil
}

// addCluster adds what is said of one cluster to a statement. A deletion is withheld only
// as long as there still is such a record.
func (s *Sources) addCluster(ctx context.Context, st *statement, cl *codec.ClusterComparison) error {
	if len(cl.Withheld) == 0 {
		st.compared = append(st.compared, cl.Cluster)
		return nil
	}
	revisions := make(map[string]uint64, len(cl.Withheld))
	for _, w := range cl.Withheld {
		revisions[w.ResourceID] = w.Revision
	}
	w := withholding{cluster: cl.Cluster, reason: cl.Reason, works: map[string]codec.WithheldDeletion{}}
	select {
	case s.slots <- struct{}{}:
		defer s.slots.Free()
	case <-ctx.Done():
		return call.CallerGone(ctx)
	}
	scope := store.Scope{DataType: st.owner.DataType, Cluster: cl.Cluster, Owner: st.owner.Owner}
	err := s.cfg.Store.Scan(ctx, scope, func(m store.Meta) error {
		if r, ok := revisions[m.ResourceID]; ok && m.State == store.Live && m.SpecRevision == r {
			w.works[m.ResourceID] = codec.WithheldDeletion{ResourceID: m.ResourceID, Name: m.Name, Revision: r}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.cfg.Log.Warn("source withholds deletions until an operator approves",
		"source", st.owner.Owner, "cluster", cl.Cluster, "count", len(w.works))
	st.withheld = append(st.withheld, w)
	return nil
}

// conclude makes a statement count, and tells the agents whom it concerns.
func (s *Sources) conclude(st *statement) error {
	changed, ok, err := s.apply(st)
	switch {
	case err != nil:
		return call.Invalid("data", err.Error(), "set all_clusters instead of naming them")
	case !ok:
		return call.Superseded()
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
func (s *Sources) notePosition(ctx context.Context, st *statement, p *codec.HubPosition) error {
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
		return call.Superseded() // by a later position, maybe
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
