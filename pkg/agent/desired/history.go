package desired

import (
	"maps"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Subscribed begins a subscription whose history is not known to match that of the held works. hawser: the
// broker is a Hawser broker.
func (s *Set) Subscribed(hawser bool) {
	s.history++
	s.hawser = hawser
}

// Continued begins a subscription to a Hawser broker that resumes from the agent's cursor: every new spec has a
// higher revision. Specs received with a higher revision than the cursor may be lost with the store that
// assigned it. The cursor is of the last subscription and proves nothing about revisions of another history.
func (s *Set) Continued(cursor uint64) {
	last := s.history
	s.Subscribed(true)
	for _, e := range s.works {
		if e.history == last && e.revision <= cursor {
			e.history = s.history
		}
	}
}

// Verified records that the digest of the live works equals the broker's at this revision: every later spec has
// a higher one.
func (s *Set) Verified(revision uint64) {
	for _, e := range s.works {
		if e.history != s.history && !e.Deleting {
			e.history, e.revision = s.history, revision
		}
	}
}

// sourceSession is the current session of a source that numbers its events itself.
type sourceSession struct {
	history uint64
	// forgotten is the highest number of an event of a dropped work. An event of the source up to this number about
	// a work that is not held is late.
	forgotten uint64
}

// Session begins a new session of a source that numbers its events itself, behind a stateless broker. The
// numbers are in Revision.
func (s *Set) Session(source string) {
	s.history++
	s.lines[source] = sourceSession{history: s.history}
}

// forgotten records that a work is about to be dropped. number is a lower bound of its number.
func (s *Set) forgotten(e *entry, number uint64) {
	if l := s.lines[e.Source]; l.history != 0 && e.history == l.history {
		l.forgotten = max(l.forgotten, e.revision, number)
		s.lines[e.Source] = l
	}
}

// numbered reports whether a spec has a number of its source.
func (s *Set) numbered(spec *manifestwork.Spec) bool { return !s.hawser && spec.Revision > 0 }

// historyOf returns the history of a spec's revision.
func (s *Set) historyOf(spec *manifestwork.Spec) uint64 {
	if s.numbered(spec) {
		return s.lines[spec.Source].history
	}
	return s.history
}

// received records that the held spec of a work was received.
func (s *Set) received(e *entry, spec *manifestwork.Spec) {
	s.clock++
	if history := s.historyOf(spec); e.history == history {
		e.revision = max(e.revision, spec.Revision)
	} else {
		e.history, e.revision = history, spec.Revision
	}
	e.received, e.unconfirmed = s.clock, false
}

// renewed returns the held work with the revision of its duplicate. It returns nil if the revision is known
// already or not newer.
func (s *Set) renewed(held *entry, spec *manifestwork.Spec) *Work {
	known := held.history == s.historyOf(spec) && spec.Revision <= held.revision
	if known || spec.Revision == 0 || spec.Revision == held.Revision {
		return nil
	}
	w := *held.Work
	w.Revision = spec.Revision
	return &w
}

// classify compares a spec with the held spec of the same work, or of its name.
func (s *Set) classify(held *entry, spec *manifestwork.Spec) Outcome {
	switch {
	case s.numbered(spec):
		return s.classifyByNumber(held, spec)
	case !s.hawser:
		return s.classifyByVersion(held, spec)
	case held == nil:
		return Accepted
	case held.history == s.history:
		// A loaded spec may be of another store than the loaded cursor.
		if spec.Revision > held.revision || held.unconfirmed && spec.Version == 0 {
			return Accepted
		}
	case spec.Version == 0 || spec.Version >= held.Version:
		return Accepted // another store, with its own revisions
	case (held.finished || held.loadedDeletion()) && !spec.Deleting:
		return Accepted // the deleted work was created again
	}
	return Stale
}

// loadedDeletion reports whether a deletion was loaded and no broker has repeated it since. It may be older
// than the work:
//
// Scenario:
//
//	t1: the agent confirms the deletion.
//	t2: the work is created again under its id; its versions start again.
//	t3: a power loss takes the journal back to before t2.
//
// Result: the version of the deletion is not compared with a work, neither here nor by the broker.
func (e *entry) loadedDeletion() bool { return e.Deleting && e.unconfirmed }

// Finished records that nothing of a deleted work is left, unless it was replaced in the meantime.
func (s *Set) Finished(w *Work) {
	if held := s.works[w.ResourceID]; held != nil && held.Tag == w.Tag && held.Deleting {
		held.finished = true
	}
}

// classifyByNumber compares specs whose source numbers its events. A spec held from another session of the
// source, or from an earlier process, is compared by version only.
func (s *Set) classifyByNumber(held *entry, spec *manifestwork.Spec) Outcome {
	l := s.lines[spec.Source]
	switch {
	case held == nil && spec.Revision <= l.forgotten:
		return Stale
	case held == nil, held.history != l.history, held.unconfirmed, held.Source != spec.Source:
		return s.classifyByVersion(held, spec)
	case spec.Revision <= held.revision:
		return Stale
	}
	return Accepted
}

// classifyByVersion compares specs without revisions.
func (s *Set) classifyByVersion(held *entry, spec *manifestwork.Spec) Outcome {
	switch {
	case held == nil:
		return s.classifyName(spec)
	case s.isUnconfirmed(held) && !spec.Deleting:
		// The loaded work may predate a restore of the hub, or a creation under the same id. An agent without a journal
		// would accept the spec too.
		return Accepted
	case held.Source != spec.Source:
		return Foreign
	case spec.Deleting:
		return Accepted
	case held.Deleting && spec.Action != codec.CreateRequest && spec.Version <= held.Version:
		return Stale // sent before the deletion
	case !held.Deleting && spec.Version != 0 && spec.Version < held.Version:
		return Stale
	}
	return Accepted
}

// classifyName compares a spec of an unknown id with the work that has its name.
func (s *Set) classifyName(spec *manifestwork.Spec) Outcome {
	if n := s.names[spec.Name]; n != nil && n.live != "" && !spec.Deleting && s.works[n.live].Source != spec.Source {
		return Foreign
	}
	return Accepted
}

// isUnconfirmed reports whether the held spec cannot be compared with one from an OCM broker: it was loaded,
// and no revision orders the two.
func (s *Set) isUnconfirmed(held *entry) bool { return !s.hawser && held.unconfirmed }

// Clock returns the present clock, as the mark for Missing.
func (s *Set) Clock() uint64 { return s.clock }

// Missing returns those of the works, in the same order, that are held, live, and were not received since the
// mark.
func (s *Set) Missing(ids []string, mark uint64) []string {
	var list []string
	for _, id := range ids {
		if e := s.works[id]; e != nil && !e.Deleting && e.received <= mark {
			list = append(list, id)
		}
	}
	return list
}

// DigestOf returns the digest of the live works of a source, without the unconfirmed ones. Those must be sent
// again, as after a list.
//
// Scenario:
//
//	t1: an agent restarts, and lists nothing, so that all works are sent again.
//	t2: the broker between it and the source loses the list.
//	t3: the agent sends its digest.
//
// Without the exclusion the digest is equal, and the works stay unconfirmed.
func (s *Set) DigestOf(source string) (d codec.Digest) {
	for id, e := range s.works {
		if !e.Deleting && !e.unconfirmed && e.Source == source {
			d.Add(codec.RecordHash(id, e.Tag))
		}
	}
	return d
}

// Digest returns the digest of all live works except those in but, which must not repeat an id.
func (s *Set) Digest(but []string) codec.Digest {
	d := s.digest
	for _, id := range but {
		if e := s.works[id]; e != nil && !e.Deleting {
			d.Remove(codec.RecordHash(e.ResourceID, e.Tag))
		}
	}
	return d
}

// Load adds a work of an earlier process as unconfirmed. Of two live works with one name, the one with the
// higher revision stays; the other is returned. No process holds both, but it may end between their writes. If
// one has no revision, as behind an OCM broker, the one loaded last stays.
func (s *Set) Load(w *Work) (lost *Work) {
	if n := s.names[w.Name]; n != nil && n.live != "" && n.live != w.ResourceID && !w.Deleting {
		other := s.works[n.live].Work
		if w.Revision > 0 && (other.Revision > w.Revision || other.Revision == w.Revision && other.Version > w.Version) {
			return w
		}
		lost = other
	}
	if held := s.works[w.ResourceID]; held != nil {
		s.vacate(held.Work)
	}
	s.claim(w)
	s.put(&entry{Work: w, revision: w.Revision, unconfirmed: true})
	return lost
}

// Unconfirmed reports whether a work was loaded and not confirmed since.
func (s *Set) Unconfirmed(id string) bool { return s.works[id] != nil && s.works[id].unconfirmed }

// Confirm confirms all held live works except those in but. It returns the names of the newly confirmed works,
// sorted. A deletion is confirmed only when it is received again, which happens until it is reported. A
// deletion that a broker does not repeat may predate the present work.
func (s *Set) Confirm(but []string) (names []string) {
	except := make(map[string]bool, len(but))
	for _, id := range but {
		except[id] = true
	}
	for id, e := range s.works {
		if e.unconfirmed && !e.Deleting && !except[id] {
			e.unconfirmed = false
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Names returns every known name, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.names)) }
