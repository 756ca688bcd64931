package broker

import (
	"context"
	"errors"
	"math"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// deliver sends what a mailbox entry stands for, in the form the record has
// now. A record that is gone, or no longer concerns the party, is skipped.
func (b *Broker) deliver(ctx context.Context, s *subscription, out transport.Stream, e route.Entry) error {
	key := store.Key{DataType: s.scope.DataType, Cluster: e.Cluster, ResourceID: e.ResourceID}
	r, err := b.store.Get(ctx, key)
	var damaged *store.DamageError
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case errors.As(err, &damaged):
		// One record that cannot be read does not keep the others back. The
		// store refuses writes from now on, so an operator hears of it.
		b.metrics.damaged.Inc()
		b.log.Error("record cannot be read and is not delivered", "cluster", e.Cluster, "resource_id", e.ResourceID, "error", err)
		s.undeliverable(e.Revision)
		return nil
	case err != nil:
		return storeError(err)
	}
	f := form{record: &r, hawser: s.hello.Protocol >= 1, resync: e.Flags&route.Resync != 0}
	if s.part == codec.Spec {
		return b.deliverSpec(s, out, f, e)
	}
	if r.Owner != s.scope.Owner {
		return nil
	}
	return b.send(s, out, f.status)
}

// deliverSpec sends an agent what it must know of the record.
func (b *Broker) deliverSpec(s *subscription, out transport.Stream, f form, e route.Entry) error {
	r := f.record
	if r.State != store.Grave && !f.hawser && s.holdBack(e, r.Name, b.cfg.Now()) {
		return nil
	}
	if b.overtook(s, r) {
		return nil // it comes again, so that the agent takes it
	}
	if e.Flags&route.Overrule != 0 {
		f.listed = s.overruled[e.ResourceID]
		f.overrule = r.Version < f.listed
		delete(s.overruled, e.ResourceID)
	}
	switch r.State {
	case store.Live:
		if s.caughtUp(r.ResourceID, r.Version) {
			b.ledger.sentAnyway(r.Key)
		}
		return b.deliverLive(s, out, f)
	case store.Tombstone:
		return b.deliverDeletion(s, out, f, e)
	case store.Grave:
		if f.resync && !r.DeletedAt.IsZero() {
			return b.send(s, out, f.deletion)
		}
	}
	return nil
}

// overtook reports whether a record that the agent's list lacked is older than what
// the agent has, and is sent in another way: a deletion, and what its source has
// made sure of. What remains waits for that, as if it had been there when the list
// was compared.
func (b *Broker) overtook(s *subscription, r *store.Record) bool {
	w, newer := s.overtaken(r)
	if !newer && r.State == store.Tombstone && b.stands(&r.Meta) {
		if w, newer = s.noLongerAhead(r.ResourceID); newer {
			w.revision, w.flags = r.SpecRevision, route.Deletion
			b.ledger.sentAnyway(r.Key)
		}
	}
	switch {
	case !newer:
		return false
	case r.State == store.Tombstone, b.comparisons.has(place{r.DataType, r.Cluster}, r.Owner):
		b.overruleOne(s, r.ResourceID, w)
		return true
	}
	s.setAhead(r.ResourceID, w)
	return false
}

// deliverLive sends a spec. A stock agent that would take it for stale gets it
// without a version first, which it never refuses, and then as it is: it says in
// its status which generation it applied, and orders by that.
func (b *Broker) deliverLive(s *subscription, out transport.Stream, f form) error {
	if !f.hawser && s.answered == notCompared {
		if s.early == nil {
			s.early = map[string]bool{}
		}
		s.early[f.record.ResourceID] = true
	}
	if v := f.record.Version; f.unversioned() && !f.hawser && v > 0 && v <= math.MaxInt32 {
		if err := b.send(s, out, f.spec); err != nil {
			return err
		}
		f.taken = true
	}
	return b.send(s, out, f.spec)
}

// deliverDeletion sends a deletion; to a stock agent, behind the last spec if it
// may need it. That one must not get the two once more: the spec would bring the
// work back while the report that it is gone is under way. So it hears of no
// deletion before its list was compared, which answers for all of them, and the
// spec stays away when the router comes with what the comparison has seen. Of a work
// that it was sent before that comparison its list may say nothing: it gets the spec.
func (b *Broker) deliverDeletion(s *subscription, out transport.Stream, f form, e route.Entry) error {
	r := f.record
	if f.hawser {
		return b.send(s, out, f.deletion)
	}
	if s.answered == notCompared && e.Flags&route.Resync == 0 {
		return nil
	}
	if r.Spec != nil && s.deleted[r.ResourceID] != r.SpecRevision && (s.early[r.ResourceID] || lastSpecUnseen(r, e)) {
		if err := b.send(s, out, f.spec); err != nil {
			return err
		}
	}
	if s.deleted == nil {
		s.deleted = map[string]uint64{}
	}
	s.deleted[r.ResourceID] = r.SpecRevision
	return b.send(s, out, f.deletion)
}

// lastSpecUnseen reports whether a stock agent may not know the last spec of a
// tombstone, which says what deletion means. A Hawser agent gets it with the
// deletion.
func lastSpecUnseen(r *store.Record, e route.Entry) bool {
	switch {
	case e.Flags&route.SpecFirst != 0, e.Flags&route.Deletion == 0:
		return true // it was a spec that became a deletion before it was its turn
	case e.Flags&route.Resync != 0:
		return false // the comparison would have said so
	case r.StatusRevision == 0 && r.Sequence != "":
		return false // it was a grave: the cluster has nothing left of the work
	}
	// The source may have changed the spec and then deleted the work so soon that
	// only the deletion went out, with the changed spec.
	env, err := codec.ParseEnvelope(r.Spec)
	return err == nil && codec.TagOf(true, env.Version, env.RawMetadata, env.Data) == r.Tag
}

// send sends the event that render makes, if it makes one.
func (b *Broker) send(s *subscription, out transport.Stream, render func() ([][]byte, error)) error {
	event, err := render()
	if err != nil {
		return internalError(err)
	}
	if event == nil {
		return nil
	}
	if err := out.Send(event...); err != nil {
		return err
	}
	b.metrics.delivered(s.part, event)
	return nil
}
