package desired

import (
	"maps"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Subscribed begins a subscription whose history has nothing to do with what is
// held, as far as is known. hawser says that the broker is a Hawser broker.
func (s *Set) Subscribed(hawser bool) {
	s.history++
	s.hawser = hawser
}

// Continued begins a subscription to a Hawser broker that continues from the
// agent's cursor: everything new has a revision above it. What was received
// with a higher revision may have been lost with the store that gave it. The cursor is
// of the last subscription, and says nothing of revisions of another history.
func (s *Set) Continued(cursor uint64) {
	last := s.history
	s.Subscribed(true)
	for _, e := range s.works {
		if e.history == last && e.revision <= cursor {
			e.history = s.history
		}
	}
}

// Verified says that the digest of the live works was found equal to the
// broker's at this revision: whatever comes later has a higher one.
func (s *Set) Verified(revision uint64) {
	for _, e := range s.works {
		if e.history != s.history && !e.Deleting {
			e.history, e.revision = s.history, revision
		}
	}
}

// sourceSession is the present session of a source that numbers its events itself.
type sourceSession struct {
	history uint64
	// forgotten is the highest number of an event that made the work which was forgotten
	// last. What the source sent before that, of works that are not held, came too late.
	forgotten uint64
}

// Session begins another session of a source that numbers its events itself: behind a broker
// that keeps nothing. The numbers are in Revision.
func (s *Set) Session(source string) {
	s.history++
	s.lines[source] = sourceSession{history: s.history}
}

// forgotten takes note of a work that is about to be forgotten, at least as of a number.
func (s *Set) forgotten(e *entry, number uint64) {
	if l := s.lines[e.Source]; l.history != 0 && e.history == l.history {
		l.forgotten = max(l.forgotten, e.revision, number)
		s.lines[e.Source] = l
	}
}

// numbered reports whether a spec has a number of its source's own.
func (s *Set) numbered(spec *manifestwork.Spec) bool { return !s.hawser && spec.Revision > 0 }

// historyOf is the history that the revision of a spec is of.
func (s *Set) historyOf(spec *manifestwork.Spec) uint64 {
	if s.numbered(spec) {
		return s.lines[spec.Source].history
	}
	return s.history
}

// received notes that a work was received as it is.
func (s *Set) received(e *entry, spec *manifestwork.Spec) {
	s.clock++
	if history := s.historyOf(spec); e.history == history {
		e.revision = max(e.revision, spec.Revision)
	} else {
		e.history, e.revision = history, spec.Revision
	}
	e.received, e.unconfirmed = s.clock, false
}

// renewed returns what is held as a duplicate of it has it, nil if that came before.
func (s *Set) renewed(held *entry, spec *manifestwork.Spec) *Work {
	known := held.history == s.historyOf(spec) && spec.Revision <= held.revision
	if known || spec.Revision == 0 || spec.Revision == held.Revision {
		return nil
	}
	w := *held.Work
	w.Revision = spec.Revision
	return &w
}

// classify compares a spec with what is held of the same work, or of its name.
func (s *Set) classify(held *entry, spec *manifestwork.Spec) Outcome {
	switch {
	case s.numbered(spec):
		return s.classifyByNumber(held, spec)
	case !s.hawser:
		return s.classifyByVersion(held, spec)
	case held == nil:
		return Accepted
	case held.history == s.history:
		// What was loaded may be of another store than the cursor beside it.
		if spec.Revision > held.revision || held.unconfirmed && spec.Version == 0 {
			return Accepted
		}
	case spec.Version == 0 || spec.Version >= held.Version:
		return Accepted // another store, with revisions of its own
	case (held.finished || held.loadedDeletion()) && !spec.Deleting:
		return Accepted // as if it had been forgotten already: the work was made anew
	}
	return Stale
}

// loadedDeletion reports whether a deletion was loaded, and no broker has repeated it since. It
// may be older than the work:
//
//	t1 The agent confirms the deletion.
//	t2 The work is made anew under its id. Versions begin anew.
//	t3 A power loss takes the journal back behind t2.
//
// Therefore its version says nothing against a work, neither here nor to the broker.
func (e *entry) loadedDeletion() bool { return e.Deleting && e.unconfirmed }

// Finished says that nothing is left of a deleted work, unless it was replaced
// meanwhile.
func (s *Set) Finished(w *Work) {
	if held := s.works[w.ResourceID]; held != nil && held.Tag == w.Tag && held.Deleting {
		held.finished = true
	}
}

// classifyByNumber compares where the source numbers its events. Of what is held from another
// session of it, or from an earlier process, only the version tells.
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

// classifyByVersion compares where there are no revisions.
func (s *Set) classifyByVersion(held *entry, spec *manifestwork.Spec) Outcome {
	switch {
	case held == nil:
		return s.classifyName(spec)
	case s.isUnconfirmed(held) && !spec.Deleting:
		// It may be of another life: the hub may have gone back, the work may have been
		// made anew under this id. Who remembers nothing would take it too.
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

// classifyName compares a spec of an unknown id with who has its name.
func (s *Set) classifyName(spec *manifestwork.Spec) Outcome {
	if n := s.names[spec.Name]; n != nil && n.live != "" && !spec.Deleting && s.works[n.live].Source != spec.Source {
		return Foreign
	}
	return Accepted
}

// isUnconfirmed reports whether what is held of a work says nothing about what a stock
// broker sends: it was loaded, and no revision says which of the two came later.
func (s *Set) isUnconfirmed(held *entry) bool { return !s.hawser && held.unconfirmed }

// Clock returns a mark for Lacks.
func (s *Set) Clock() uint64 { return s.clock }

// Missing reports which of these works, in the same order, are held, live, and
// were not received since the mark.
func (s *Set) Missing(ids []string, mark uint64) []string {
	var list []string
	for _, id := range ids {
		if e := s.works[id]; e != nil && !e.Deleting && e.received <= mark {
			list = append(list, id)
		}
	}
	return list
}

// DigestOf is that of all live works of a source, but for the unconfirmed ones: those have to come
// once more, as for a list.
//
//	t1  An agent is restarted, and lists nothing, so that all works come once more.
//	t2  The broker between it and the source loses the list.
//	t3  With a digest of all works nobody would notice: they would stay unconfirmed.
func (s *Set) DigestOf(source string) (d codec.Digest) {
	for id, e := range s.works {
		if !e.Deleting && !e.unconfirmed && e.Source == source {
			d.Add(codec.RecordHash(id, e.Tag))
		}
	}
	return d
}

// Digest is that of all live works but these, each of which is given once.
func (s *Set) Digest(but []string) codec.Digest {
	d := s.digest
	for _, id := range but {
		if e := s.works[id]; e != nil && !e.Deleting {
			d.Remove(codec.RecordHash(e.ResourceID, e.Tag))
		}
	}
	return d
}

// Load holds a work that an earlier process held, unconfirmed. Of two live
// works of one name the one with the higher revision stays, the other is
// returned: no process holds both, but one may end between them. Where one has no
// revision, as behind a stock broker, the one that is loaded last stays.
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

// Confirm says that everything that is held live is wanted, but for these works. It
// returns the names that this concerns, sorted. A deletion is confirmed only when it
// comes again, as it does until it is reported: one that a broker does not repeat may
// be of a life before the present one.
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

// Names returns every name about which something is known, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.names)) }
