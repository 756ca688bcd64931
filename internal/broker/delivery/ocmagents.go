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

// This file is for OCM agents. Hawser agents do not need it: they order by revision, and get deletions with
// their data.

// An OCM agent that reports a work as deleted forgets it when the report is answered.
//
// Scenario:
//   t1: the agent reports that the work is deleted.
//   t2: a spec of the same id or name reaches it, because the work was created again, or was deleted by mistake.
//   t3: the report is answered; the agent forgets the work together with the spec of t2.
// Result: the broker holds back specs of that id and name until some time after the answer.
//
// The broker also holds back another deletion with a newer version, because no agent would confirm it.

// holdback contains the ids and names that are held back on one subscription.
type holdback struct {
	ends map[restKey]time.Time
	// later contains the popped queue entries that are held back.
	later []resting
	// look is the time of the next check of later.
	look time.Time
}

// restKey is an id or a name.
type restKey struct{ id, name string }

type resting struct {
	deliveryqueue.Entry
	name string
}

// unanswered is the end of a holdback before the report is answered. The answer replaces it.
var unanswered = time.Unix(1<<40, 0)

// set holds back a work until a time.
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

// end returns the end of a work's holdback; zero: it is not held back.
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

// keep stores an entry whose work is held back.
func (r *holdback) keep(e deliveryqueue.Entry, name string, end time.Time) {
	if len(r.later) == 0 || end.Before(r.look) {
		r.look = end
	}
	r.later = append(r.later, resting{Entry: e, name: name})
}

// due removes and returns the entries whose works are no longer held back.
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

// prune removes expired holdbacks. It is called with each heartbeat.
func (r *holdback) prune(now time.Time) {
	maps.DeleteFunc(r.ends, func(_ restKey, until time.Time) bool { return !now.Before(until) })
}

// rest holds back specs of a work at the OCM agents of its cluster.
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

// postpone reports whether a work is held back, and if so keeps the entry for later.
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

// unrouted tells which specs the router has not reached. If the router finds a deletion instead of such a spec, the
// OCM agents of the cluster have not been sent the spec.
type unrouted struct {
	// accepted contains the revisions of specs that this broker accepted, while the router is below them.
	accepted map[store.Key]uint64
	// head is a revision: when the router was there, it had read all changes. passed contains the revisions of the
	// specs and deletions that it has read since.
	head   uint64
	passed map[store.Key]uint64
}

func newUnrouted(head uint64) unrouted {
	return unrouted{accepted: map[store.Key]uint64{}, head: head, passed: map[store.Key]uint64{}}
}

// accepted records the revision of an accepted spec. It is called before the reply to the source, which may
// then delete the work.
func (r *registry) accepted(k store.Key, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ocm := func(s *subscription) bool { return s.hello.Protocol == 0 }
	if revision > r.routed.Load() && slices.ContainsFunc(r.ByScope[scopeOf(k)], ocm) {
		r.unrouted.accepted[k] = revision
	}
}

// flags returns the delivery flags for a change of a spec.
//
// Scenario:
//
//	t1: an OCM agent is subscribed here. A source publishes a spec at another broker, and then deletes the work.
//	t2: this broker reads the changes, of which only the deletion is left.
//
// Result: the deletion names the spec that it replaced. The agent is sent this spec first.
func (u *unrouted) flags(c *store.Change) (f deliveryqueue.Flags) {
	spec, unseen := u.accepted[c.Key]
	if c.State == store.Tombstone {
		f = deliveryqueue.Deletion
		if unseen && spec < c.Revision || c.LastSpec > max(u.head, u.passed[c.Key]) {
			f |= deliveryqueue.SpecFirst
		}
	}
	if spec <= c.Revision {
		delete(u.accepted, c.Key)
	}
	return f
}

// pass is called after the router has read changes. all: there are no more. Then a deletion that replaced a spec up
// to the last of these changes was among them.
func (u *unrouted) pass(changes []store.Change, all bool) {
	if all {
		u.head = changes[len(changes)-1].Revision
		maps.DeleteFunc(u.accepted, func(_ store.Key, revision uint64) bool { return revision <= u.head })
		clear(u.passed)
		return
	}
	for i := range changes {
		if c := &changes[i]; c.Part == store.SpecPart {
			u.passed[c.Key] = c.Revision
		}
	}
}

// ocmAgentState is the state of a stream for an OCM agent.
type ocmAgentState struct {
	// answered is the highest spec revision at the last comparison of a list. Before the first comparison it is
	// notSynced.
	answered uint64
	// deleted maps sent deletions to the revisions of their specs, until the router has passed them. Records are
	// sent in their current form, and the router may lag behind.
	deleted map[string]uint64
	// early contains the works whose spec was sent before the first comparison, until the router has passed that
	// comparison.
	early map[string]bool
}

const notSynced = math.MaxUint64

// synced records the highest spec revision that a comparison has seen.
func (k *ocmAgentState) synced(seen uint64) { k.answered = seen }

// routed records the position of the router. It is called when the stream has nothing left to do.
func (k *ocmAgentState) routed(position uint64) {
	maps.DeleteFunc(k.deleted, func(_ string, revision uint64) bool { return revision <= position })
	if position >= k.answered {
		k.early = nil
	}
}

// liveToOCM sends a spec. An agent that would drop the spec as stale gets it twice: first without a version,
// which it always accepts, then with its version. The agent needs the version because its statuses report the
// applied generation.
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

// deletionToOCM sends a deletion, after the last spec if the agent may need it. The agent must not get both
// again: the spec would restore the work while the agent reports it as deleted. So the agent gets no deletion
// before its list is compared; the comparison then queues all deletions. If the router later posts a change
// that the comparison has seen, the deletion is sent without the spec. The exception is a work that was sent
// before the comparison: the list may lack it, so its spec is sent.
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

// lastSpecUnseen reports whether the agent may not know the last spec of a tombstone. That spec defines which
// objects are deleted.
func lastSpecUnseen(r *store.Record, e deliveryqueue.Entry) bool {
	switch {
	case e.Flags&deliveryqueue.SpecFirst != 0, e.Flags&deliveryqueue.Deletion == 0:
		return true // the queued spec became a deletion before it was sent
	case e.Flags&deliveryqueue.Resync != 0:
		return false // the comparison would have set SpecFirst
	case r.StatusRevision == 0 && r.Sequence != "":
		return false // the earlier record was a confirmed tombstone: the cluster has no objects of the work
	}
	// The source may have changed the spec and then deleted the work before the change was sent. Then only the
	// deletion was sent, with the changed spec.
	env, err := codec.ParseEnvelope(r.Spec)
	return err == nil && codec.TagOf(true, env.Version, env.RawMetadata, env.Data) == r.Tag
}
