package broker

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// takeComparison takes over what a source says about its comparison. Repeating
// it does no harm as long as nothing is revoked in between.
func (b *Broker) takeComparison(ctx context.Context, s *subscription, c codec.Compared, order uint64) error {
	if err := notForAgents(s); err != nil {
		return err
	}
	o := outcome{ownership: ownership{s.scope.DataType, s.scope.Owner}, subscription: s.id, all: c.AllClusters}
	if err := o.read(c.Clusters); err != nil {
		return err
	}
	// Between the first look and the second one nothing may be said or revoked:
	// what comes later is then found when this is applied.
	before := b.comparisons.now(o.ownership)
	if ctx.Err() != nil { // the source may have said something else since
		return callerGone(ctx)
	}
	if err := s.compares(order); err != nil {
		return err
	}
	var ok bool
	if o.begun, ok = b.comparisons.begin(o.ownership, before); !ok {
		return overtaken()
	}
	if err := b.notePosition(ctx, o, c.Position); err != nil {
		return storeError(err)
	}
	withheld := make([][]codec.WithheldDeletion, len(c.Clusters))
	for i := range c.Clusters {
		var err error
		if withheld[i], err = b.withheldOf(ctx, o, &c.Clusters[i]); err != nil {
			return storeError(err)
		}
	}
	b.metrics.comparison(len(o.compared), len(o.open))
	return b.concluded(o, func() {
		for i := range c.Clusters {
			cl := &c.Clusters[i]
			b.ledger.withhold(place{o.dataType, cl.Cluster}, o.owner, s.id, cl.Reason, withheld[i])
		}
		if c.AllClusters {
			b.ledger.settle(o.dataType, o.owner, s.id)
		}
	})
}

// read sorts the clusters that a source names.
func (o *outcome) read(clusters []codec.ClusterComparison) error {
	named := make(map[string]struct{}, len(clusters))
	for i := range clusters {
		cl := &clusters[i]
		if err := store.CheckPlace(o.dataType, cl.Cluster); err != nil {
			return invalid("data", "a compared cluster has an impossible name", "name clusters as in clustername")
		}
		named[cl.Cluster] = struct{}{}
		if len(cl.Withheld) == 0 {
			o.compared = append(o.compared, cl.Cluster)
		} else {
			o.open = append(o.open, cl.Cluster)
		}
	}
	if len(named) < len(clusters) {
		return invalid("data", "a cluster is named twice", "give everything about a cluster in one entry")
	}
	return nil
}

// withheldOf returns which deletions a source withholds on a cluster, as far as
// there still are such records.
func (b *Broker) withheldOf(ctx context.Context, o outcome, cl *codec.ClusterComparison) (works []codec.WithheldDeletion, err error) {
	if len(cl.Withheld) == 0 {
		return nil, nil
	}
	said := make(map[string]codec.WithheldDeletion, len(cl.Withheld))
	for _, w := range cl.Withheld {
		said[w.ResourceID] = w
	}
	err = b.scanInTurn(ctx, store.Scope{DataType: o.dataType, Cluster: cl.Cluster, Owner: o.owner}, func(m store.Meta) error {
		if w, ok := said[m.ResourceID]; ok && m.State == store.Live && m.SpecRevision == w.Revision {
			w.Name = m.Name
			works = append(works, w)
		}
		return nil
	})
	if err == nil {
		b.log.Warn("source withholds deletions until an operator approves",
			"source", o.owner, "cluster", cl.Cluster, "count", len(works))
	}
	return works, err
}

// scanInTurn scans with one of the slots for comparing.
func (b *Broker) scanInTurn(ctx context.Context, s store.Scope, f func(store.Meta) error) error {
	select {
	case b.comparing <- struct{}{}:
		defer func() { <-b.comparing }()
		return b.store.Scan(ctx, s, f)
	case <-ctx.Done():
		return callerGone(ctx)
	}
}

// hubBookmark is the name under which the store remembers which hub a source
// serves.
func hubBookmark(owner string) string { return "hub/" + owner }

// hubPosition is the value of that bookmark.
type hubPosition struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// notePosition remembers which hub a source serves; nil changes nothing.
func (b *Broker) notePosition(ctx context.Context, o outcome, p *codec.HubPosition) error {
	if p == nil {
		return nil
	}
	value, err := json.Marshal(hubPosition(*p))
	if err != nil {
		return err
	}
	b.marking.Lock()
	defer b.marking.Unlock()
	if b.comparisons.now(o.ownership) != o.begun {
		return overtaken() // by a later position, maybe
	}
	name := hubBookmark(o.owner)
	if string(b.store.Bookmarks(name)[name]) == string(value) {
		return nil
	}
	return b.store.SetBookmarks(ctx, map[string][]byte{name: value})
}

// lastPosition returns what notePosition remembers, nil when there is nothing.
func (b *Broker) lastPosition(owner string) (*codec.HubPosition, error) {
	name := hubBookmark(owner)
	value, ok := b.store.Bookmarks(name)[name]
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

// concluded takes over what a source said of its comparison, calls then, which
// must not block, and tells the agents whom it concerns.
func (b *Broker) concluded(o outcome, then func()) error {
	changed, err := b.comparisons.apply(o, then)
	switch {
	case errors.Is(err, errOvertaken):
		return overtaken()
	case err != nil:
		return invalid("data", err.Error(), "set all_clusters instead of naming them")
	}
	b.hub.recheck(o.dataType, changed)
	return nil
}

// revoke ends that a source counts as having compared what it owns on a
// cluster: something of it left the store without the source's doing.
func (b *Broker) revoke(p place, source string) {
	if b.comparisons.revoke(ownership{p.dataType, source}, p.cluster) {
		b.hub.recheck(p.dataType, changes{clusters: []string{p.cluster}})
	}
}

// overrule sends an agent the records that it holds in a newer version, where
// their sources have made sure that the records are the truth.
func (b *Broker) overrule(s *subscription) {
	p := place{s.scope.DataType, s.scope.Cluster}
	owners := b.comparisons.at(p)
	for id, w := range s.aheadNow() {
		key := store.Key{DataType: p.dataType, Cluster: p.cluster, ResourceID: id}
		if !slices.Contains(owners, w.owner) && !b.hub.wasRepeated(key, w.revision) {
			continue
		}
		if _, still := s.noLongerAhead(id); still {
			b.overruleOne(s, id, w)
			b.ledger.sentAnyway(key)
		}
	}
}

// overruleOne puts one such record into the mailbox. An agent that orders by
// version takes it without one; one of ours is told a deletion with its own,
// because its confirmation will name it.
func (b *Broker) overruleOne(s *subscription, id string, w aheadWork) {
	if s.overruled == nil {
		s.overruled = map[string]int64{}
	}
	s.overruled[id] = w.listed
	b.metrics.overruled.Inc()
	s.answer(route.Key{Cluster: s.scope.Cluster, ResourceID: id}, w.revision, w.flags|route.Overrule)
}
