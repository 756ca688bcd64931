package broker

import (
	"context"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// calmFactor is how many times as long as a comparison took the stream then
// makes none, so that whoever keeps asking does not occupy a processor.
const calmFactor = 9

// compare answers a list: what the party lacks goes into its mailbox. It gives
// the slot back that the caller has taken.
func (b *Broker) compare(ctx context.Context, s *subscription, l *list) error {
	defer l.settle()
	defer func() { <-b.comparing }()
	start := b.cfg.Now()
	var sends int
	var err error
	if s.part == codec.Spec {
		sends, err = b.compareSpecs(ctx, s, l)
	} else {
		sends, err = b.compareStatuses(ctx, s, l)
	}
	if err != nil {
		return storeError(err)
	}
	end := b.cfg.Now()
	took := end.Sub(start)
	s.calm = end.Add(calmFactor * took)
	s.compared(end, l)
	b.metrics.compared(s.part, l.silent, sends, took)
	return nil
}

func (b *Broker) compareSpecs(ctx context.Context, s *subscription, l *list) (sends int, err error) {
	plan := resync.NewSpecs(l.versions)
	var hashes []codec.StatusHash
	ahead := map[string]aheadWork{}
	p := place{s.scope.DataType, s.scope.Cluster}
	seen := b.store.Head().Revision
	scope := store.Scope{DataType: s.scope.DataType, Cluster: s.scope.Cluster}
	err = b.store.Scan(ctx, scope, func(m store.Meta) error {
		seen = max(seen, m.SpecRevision)
		key := route.Key{Cluster: m.Cluster, ResourceID: m.ResourceID}
		var flags route.Flags
		if m.State != store.Live {
			flags = route.Deletion
		}
		switch plan.Decide(specOf(m)) {
		case resync.SpecThenDeletion:
			flags |= route.SpecFirst
			fallthrough
		case resync.Send:
			s.answer(key, m.SpecRevision, flags)
			sends++
		case resync.Ahead:
			w := aheadWork{owner: m.Owner, revision: m.SpecRevision, flags: flags, listed: plan.Version(m.ResourceID)}
			if b.stands(&m) || b.comparisons.has(p, m.Owner) {
				b.overruleOne(s, m.ResourceID, w)
				sends++
			} else {
				ahead[m.ResourceID] = w
			}
		case resync.Skip:
		}
		if m.Waiting != nil {
			plan.Explain(m.Waiting.ResourceID)
		}
		if m.State != store.Grave && plan.Lists(m.ResourceID) {
			// No status has the empty hash: the agent is asked to report.
			hashes = append(hashes, codec.StatusHash{ResourceID: m.ResourceID, StatusHash: m.StatusHash})
		}
		return nil
	})
	if err != nil {
		return sends, err
	}
	s.answered, s.hashes = seen, nil
	for chunk := range resync.Chunks(hashes) {
		s.hashes = append(s.hashes, chunk)
	}
	if !l.silent {
		b.noteOddities(s, plan, ahead)
	}
	return sends, nil
}

// specOf is a record as a comparison sees it.
func specOf(m store.Meta) resync.Spec {
	r := resync.Spec{
		ID: m.ResourceID, Version: m.Version, Tag: m.Tag, Supersedes: m.SpecSupersedes,
		Reported: m.StatusRevision != 0, ReportedVersion: m.StatusVersion,
	}
	switch m.State {
	case store.Live:
		r.State = resync.Live
	case store.Tombstone:
		r.State = resync.Deleted
	case store.Grave:
		r.State = resync.Confirmed
		if m.DeletedAt.IsZero() {
			r.State = resync.GivenUp
		}
	}
	return r
}

// shownIDs is how many ids a log line shows.
const shownIDs = 10

// noteOddities remembers what an agent holds and the broker cannot explain, and
// what it holds in a newer version. Nothing is done about the first: absence is
// no deletion. The second waits until the sources of these works have compared.
func (b *Broker) noteOddities(s *subscription, plan *resync.Specs, ahead map[string]aheadWork) {
	orphans := plan.Orphans()
	b.ledger.list(place{s.scope.DataType, s.scope.Cluster}, orphans, slices.Sorted(maps.Keys(ahead)))
	if len(orphans) > 0 {
		b.metrics.orphans.Add(float64(len(orphans)))
		b.log.Warn("agent holds works that no record explains, they stay as they are",
			"cluster", s.scope.Cluster, "count", len(orphans), "first_ids", orphans[:min(len(orphans), shownIDs)])
	}
	if len(ahead) > 0 {
		b.metrics.ahead.Add(float64(len(ahead)))
		b.log.Warn("agent holds newer versions than the broker, their sources have to publish them again",
			"cluster", s.scope.Cluster, "count", len(ahead))
	}
	kept, size := within(orphans, min(listedBytes, b.cfg.MaxEventBytes/2))
	give := func() { b.kept.give(s.party, size) }
	if !b.kept.take(s.party, size) {
		kept, give = nil, nil
	}
	versions := make(map[string]int64, len(kept))
	for _, id := range kept {
		versions[id] = plan.Version(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sync.keep(versions, give)
	s.sync.ahead = ahead
}

// within returns the first ids that take no more than a number of bytes, and
// how many they take.
func within(ids []string, bytes int) (some []string, size int) {
	for i, id := range ids {
		if size+len(id) > bytes {
			return ids[:i], size
		}
		size += len(id)
	}
	return ids, size
}

func (b *Broker) compareStatuses(ctx context.Context, s *subscription, l *list) (sends int, err error) {
	plan := resync.NewStatuses(l.hashes)
	scope := store.Scope{DataType: s.scope.DataType, Cluster: l.cluster, Owner: s.scope.Owner}
	err = b.store.Scan(ctx, scope, func(m store.Meta) error {
		final := m.State == store.Grave
		if m.StatusRevision == 0 && !final {
			return nil
		}
		if plan.Needs(resync.Status{ID: m.ResourceID, Hash: m.StatusHash, Final: final}) {
			s.answer(route.Key{Cluster: m.Cluster, ResourceID: m.ResourceID}, m.StatusRevision, 0)
			sends++
		}
		return nil
	})
	return sends, err
}

// ask sends an agent the hashes of the statuses that the broker holds, so that
// it reports those that differ.
func (b *Broker) ask(s *subscription, out transport.Stream, chunk []codec.StatusHash) error {
	e, err := codec.NewStatusResyncRequest(codec.ResyncParams{
		ID: b.cfg.NewID(), Time: b.cfg.Now(), Source: brokerSource, Cluster: s.scope.Cluster, DataType: s.scope.DataType,
	}, chunk)
	if err != nil {
		return internalError(err)
	}
	event, err := codec.Marshal(e)
	if err != nil {
		return internalError(err)
	}
	b.metrics.asked.Inc()
	return out.Send(event)
}
