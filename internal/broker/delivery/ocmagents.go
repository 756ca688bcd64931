package delivery

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Everything here is for agents of Open Cluster Management. Ours order by revision, get a
// deletion with its data, and need none of it.

// A stock agent that reports a work as gone forgets it when its report was answered:
//
//	t1  it reports that the work is gone
//	t2  a spec of the same id or name reaches it, because the work was created anew, or
//	    should never have been deleted
//	t3  the report is answered, and it forgets the work, and what came at t2 with it
//
// So does another deletion of a newer version, which then nobody confirms. Therefore what is
// of that id and name rests until a while after the answer.

// holdback are the ids and names that rest at one subscription.
type holdback struct {
	ends map[restKey]time.Time
	// later are entries that were popped from the mailbox and have to rest.
	later []resting
	// look is when later has to be looked at next.
	look time.Time
}

// restKey is an id or a name.
type restKey struct{ id, name string }

type resting struct {
	deliveryqueue.Entry
	name string
}

// unanswered is the end of a rest that has not been set yet.
var unanswered = time.Unix(1<<40, 0)

// set lets a work rest until a time.
func (r *holdback) set(id, name string, until time.Time) {
	if r.ends == nil {
		r.ends = map[restKey]time.Time{}
	}
	r.ends[restKey{id: id}] = until
	if name != "" {
		r.ends[restKey{name: name}] = until
	}
	if until.Before(r.look) {
		r.look = until
	}
}

// end returns until when a work rests; zero when it does not.
func (r *holdback) end(id, name string, now time.Time) (end time.Time) {
	for _, k := range []restKey{{id: id}, {name: name}} {
		until, ok := r.ends[k]
		switch {
		case !ok:
		case !now.Before(until):
			delete(r.ends, k)
		case until.After(end):
			end = until
		}
	}
	return end
}

// keep keeps an entry whose work rests.
func (r *holdback) keep(e deliveryqueue.Entry, name string, end time.Time) {
	if len(r.later) == 0 || end.Before(r.look) {
		r.look = end
	}
	r.later = append(r.later, resting{Entry: e, name: name})
}

// due returns the entries whose works rest no longer.
func (r *holdback) due(now time.Time) (entries []deliveryqueue.Entry) {
	if len(r.later) == 0 || now.Before(r.look) {
		return nil
	}
	r.look = unanswered
	r.later = slices.DeleteFunc(r.later, func(l resting) bool {
		end := r.end(l.ResourceID, l.name, now)
		if end.IsZero() {
			entries = append(entries, l.Entry)
			return true
		}
		if end.Before(r.look) {
			r.look = end
		}
		return false
	})
	return entries
}

// prune forgets rests that are over; it is called now and then.
func (r *holdback) prune(now time.Time) {
	maps.DeleteFunc(r.ends, func(_ restKey, until time.Time) bool { return !now.Before(until) })
}

// rest lets specs of a work wait at the stock agents of its cluster.
func (r *registry) rest(k store.Key, name string, until time.Time) {
	for _, s := range r.of(scopeOf(k)) {
		if s.hello.Protocol == 0 {
			s.rest(k.ResourceID, name, until)
		}
	}
}

func (s *subscription) rest(id, name string, until time.Time) {
	s.mu.Lock()
	s.holdback.set(id, name, until)
	waiting := len(s.holdback.later) > 0
	s.mu.Unlock()
	if waiting {
		s.wake.Ring()
	}
}

// postpone reports whether a work rests, and if so keeps the entry for later.
func (s *subscription) postpone(e deliveryqueue.Entry, name string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.holdback.end(e.ResourceID, name, now)
	if end.IsZero() {
		return false
	}
	s.holdback.keep(e, name, end)
	return true
}

// unrouted are the revisions of specs that were accepted and that the router has not come to,
// for clusters with stock agents: a deletion that the router finds in the place of one is the
// first that they hear of it.
type unrouted map[store.Key]uint64

// accepted takes note of the spec that a record has at a revision. It is called before the
// source is told, which may then delete the work.
func (r *registry) accepted(k store.Key, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ocm := func(s *subscription) bool { return s.hello.Protocol == 0 }
	if revision > r.routed.Load() && slices.ContainsFunc(r.byScope[scopeOf(k)], ocm) {
		r.unrouted[k] = revision
	}
}

// flags says how a change of a spec is to be delivered.
func (u unrouted) flags(c *store.Change) (f deliveryqueue.Flags) {
	spec, unseen := u[c.Key]
	if c.State == store.Tombstone {
		f = deliveryqueue.Deletion
		if unseen && spec < c.Revision {
			f |= deliveryqueue.SpecFirst
		}
	}
	if spec <= c.Revision {
		delete(u, c.Key)
	}
	return f
}

// forget drops what the router is past, when it has seen everything: what replaced them was
// among the changes, or is in no feed.
func (u unrouted) forget(routed uint64) {
	maps.DeleteFunc(u, func(_ store.Key, revision uint64) bool { return revision <= routed })
}

// ocmAgentState is what a stream remembers for a stock agent.
type ocmAgentState struct {
	// answered is the highest spec revision that the last comparison of a list saw;
	// notSynced before the first one.
	answered uint64
	// deleted are the deletions that were sent, with the revisions of their specs, until the
	// router is past them: what is sent is the record as it is, and the router may lag.
	deleted map[string]uint64
	// early are the works of which a spec was sent before the first comparison, until the
	// router is past that.
	early map[string]bool
}

const notSynced = math.MaxUint64

// synced says up to where a comparison has seen the specs.
func (k *ocmAgentState) synced(seen uint64) { k.answered = seen }

// routed says how far the router is, when nothing is left to do.
func (k *ocmAgentState) routed(position uint64) {
	maps.DeleteFunc(k.deleted, func(_ string, revision uint64) bool { return revision <= position })
	if position >= k.answered {
		k.early = nil
	}
}

// liveToOCM sends a spec. An agent that would think it is stale gets it without a version
// first, which it never refuses, and then as it is: it says in its status which generation it
// applied, and orders by that.
func (t *stream) liveToOCM(f form) error {
	if t.ocm.answered == notSynced {
		if t.ocm.early == nil {
			t.ocm.early = map[string]bool{}
		}
		t.ocm.early[f.record.ResourceID] = true
	}
	if v := f.record.Version; f.unversioned() && v > 0 && v <= math.MaxInt32 {
		if err := t.send(f.spec); err != nil {
			return err
		}
		f.known = true
	}
	return t.send(f.spec)
}

// deletionToOCM sends a deletion, behind the last spec if the agent may need it. It must not
// get the two once more: the spec would bring the work back while the report that it is gone
// is under way. So it hears of no deletion before its list was compared, which answers for all
// of them, and the spec stays away when the router comes with what the comparison has seen. Of
// a work that it was sent before that comparison its list may say nothing: it gets the spec.
func (t *stream) deletionToOCM(f form, e deliveryqueue.Entry) error {
	r := f.record
	if t.ocm.answered == notSynced && e.Flags&deliveryqueue.Resync == 0 {
		return nil
	}
	if r.Spec != nil && t.ocm.deleted[r.ResourceID] != r.SpecRevision && (t.ocm.early[r.ResourceID] || lastSpecUnseen(r, e)) {
		if err := t.send(f.spec); err != nil {
			return err
		}
	}
	if t.ocm.deleted == nil {
		t.ocm.deleted = map[string]uint64{}
	}
	t.ocm.deleted[r.ResourceID] = r.SpecRevision
	return t.send(f.deletion)
}

// lastSpecUnseen reports whether the agent may not know the last spec of a tombstone, which
// says what deletion means.
func lastSpecUnseen(r *store.Record, e deliveryqueue.Entry) bool {
	switch {
	case e.Flags&deliveryqueue.SpecFirst != 0, e.Flags&deliveryqueue.Deletion == 0:
		return true // it was a spec that became a deletion before it was its turn
	case e.Flags&deliveryqueue.Resync != 0:
		return false // the comparison would have said so
	case r.StatusRevision == 0 && r.Sequence != "":
		return false // it was a grave: the cluster has nothing left of the work
	}
	// The source may have changed the spec and then deleted the work so soon that only the
	// deletion went out, with the changed spec.
	env, err := codec.ParseEnvelope(r.Spec)
	return err == nil && codec.TagOf(true, env.Version, env.RawMetadata, env.Data) == r.Tag
}
