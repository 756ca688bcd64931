package broker

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// takeComparison takes over what a source says about its comparison. Repeating
// it does no harm as long as nothing is revoked in between. A source that does not
// wait for the answer any more may release a cluster: that it went away arrives
// ahead of the release, so what was begun before is not taken behind it.
func (b *Broker) takeComparison(ctx context.Context, s *subscription, c codec.Compared) error {
	if err := notForAgents(s); err != nil {
		return err
	}
	o := outcome{ownership: ownership{s.scope.DataType, s.scope.Owner}, subscription: s.id, all: c.AllClusters}
	o.begun = b.comparisons.begin(o.ownership)
	if ctx.Err() != nil {
		return callerGone(ctx)
	}
	if err := o.read(c.Clusters); err != nil {
		return err
	}
	if err := b.notePosition(ctx, o.owner, c.Position); err != nil {
		return storeError(err)
	}
	for i := range c.Clusters {
		if err := b.noteWithheld(ctx, o, &c.Clusters[i]); err != nil {
			return storeError(err)
		}
	}
	if c.AllClusters {
		b.ledger.settle(o.dataType, o.owner, s.id)
	}
	b.metrics.comparison(len(o.compared), len(o.open))
	return b.concluded(o)
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

// noteWithheld remembers which deletions a source withholds on a cluster, as far
// as there still are such records.
func (b *Broker) noteWithheld(ctx context.Context, o outcome, cl *codec.ClusterComparison) error {
	var works []codec.WithheldDeletion
	if len(cl.Withheld) > 0 {
		said := make(map[string]codec.WithheldDeletion, len(cl.Withheld))
		for _, w := range cl.Withheld {
			said[w.ResourceID] = w
		}
		err := b.scanInTurn(ctx, store.Scope{DataType: o.dataType, Cluster: cl.Cluster, Owner: o.owner}, func(m store.Meta) error {
			if w, ok := said[m.ResourceID]; ok && m.State == store.Live && m.SpecRevision == w.Revision {
				w.Name = m.Name
				works = append(works, w)
			}
			return nil
		})
		if err != nil {
			return err
		}
		b.log.Warn("source withholds deletions until an operator approves",
			"source", o.owner, "cluster", cl.Cluster, "count", len(works))
	}
	b.ledger.withhold(place{o.dataType, cl.Cluster}, o.owner, o.subscription, cl.Reason, works)
	return nil
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
func (b *Broker) notePosition(ctx context.Context, owner string, p *codec.HubPosition) error {
	if p == nil {
		return nil
	}
	value, err := json.Marshal(hubPosition(*p))
	if err != nil {
		return err
	}
	b.marking.Lock()
	defer b.marking.Unlock()
	name := hubBookmark(owner)
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

// concluded takes over what a source said of its comparison, and tells the
// agents whom it concerns.
func (b *Broker) concluded(o outcome) error {
	changed, err := b.comparisons.apply(o)
	switch {
	case errors.Is(err, errRevokedSince):
		return &transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: comeBack,
			Message: err.Error(), Hint: "say it again of what is so now",
		}
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
