package judge

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// indexed is a history by work and by client.
type indexed struct {
	events    []Event // in the order of their ends
	works     []*work // in the order of their ids
	byID      map[string]*work
	failovers []Event
	losses    []Event // the lossy failovers
}

// work has the events of one work.
type work struct {
	id      string
	writes  []Event // in the order of their begin: one source writes one after the other
	reports []Event
	reads   []Event
	specs   []Event // received
}

func index(history []Event) *indexed {
	h := &indexed{events: slices.Clone(history), byID: map[string]*work{}}
	slices.SortStableFunc(h.events, func(a, b Event) int { return cmp.Compare(a.To, b.To) })
	for _, e := range h.events {
		switch e.Kind {
		case Write:
			w := h.work(e.Work)
			w.writes = append(w.writes, e)
		case Report:
			w := h.work(e.Work)
			w.reports = append(w.reports, e)
		case Read:
			w := h.work(e.Work)
			w.reads = append(w.reads, e)
		case Spec:
			w := h.work(e.Work)
			w.specs = append(w.specs, e)
		case Failover:
			h.failovers = append(h.failovers, e)
			if e.Lossy {
				h.losses = append(h.losses, e)
			}
		default:
		}
	}
	for _, w := range h.byID {
		byBegin(w.writes)
		byBegin(w.reports)
		h.works = append(h.works, w)
	}
	slices.SortFunc(h.works, func(a, b *work) int { return cmp.Compare(a.id, b.id) })
	return h
}

func byBegin(list []Event) {
	slices.SortStableFunc(list, func(a, b Event) int { return cmp.Compare(a.From, b.From) })
}

func (h *indexed) work(id string) *work {
	w := h.byID[id]
	if w == nil {
		w = &work{id: id}
		h.byID[id] = w
	}
	return w
}

// wrote reports whether the version, or the deletion, of a work was published before a time.
func (h *indexed) wrote(e Event) bool {
	w := h.byID[e.Work]
	return w != nil && slices.ContainsFunc(w.writes, func(x Event) bool {
		return x.From <= e.To && x.Deleted == e.Deleted && (x.Version == e.Version || e.Deleted)
	})
}

func (h *indexed) reported(e Event) bool {
	w := h.byID[e.Work]
	return w != nil && slices.ContainsFunc(w.reports, func(x Event) bool { return x.From <= e.To && x.Number == e.Number })
}

// commitOrder checks the revisions in the answers to publishes. Those on both sides of a loss are not compared.
func (h *indexed) commitOrder() (found []Violation) {
	var writes []Event
	for _, e := range h.events {
		if e.Kind == Write && e.Acked {
			writes = append(writes, e)
		}
	}
	ended := slices.Clone(writes) // in the order of their ends
	byBegin(writes)
	var highest Event
	for _, e := range writes {
		for ; len(ended) > 0 && ended[0].To < e.From; ended = ended[1:] {
			if ended[0].Revision > highest.Revision || h.lost(highest.To, ended[0].From) {
				highest = ended[0]
			}
		}
		if highest.Revision > e.Revision && !h.lost(highest.From, e.To) {
			found = append(found, Violation{CommitOrder, fmt.Sprintf("the answer to a publish of %s has revision %d, after an answer with %d", e.Work, e.Revision, highest.Revision), []Event{highest, e}})
		}
	}
	return found
}

// lost reports whether writes were lost between two times.
func (h *indexed) lost(from, to time.Duration) bool {
	return slices.ContainsFunc(h.losses, func(e Event) bool { return e.To >= from && e.From <= to })
}

// subscriber is what a client received last, by work. Received events that were lost since are no longer in it.
type subscriber struct {
	last map[string]Event
	at   time.Duration // of its last subscription
}

// received checks what subscribers receive.
func (h *indexed) received() (found []Violation) {
	clients := map[string]*subscriber{}
	for _, e := range h.events {
		c := clients[e.Client]
		if c == nil {
			c = &subscriber{last: map[string]Event{}}
			clients[e.Client] = c
		}
		switch e.Kind {
		case Subscribe:
			c.forgetLost(h.losses, c.at, e.To)
			c.at = e.From
		case Spec, Status:
			if last, seen := c.last[e.Work]; seen {
				c.forgetLost(h.losses, last.To, e.To)
			}
			found = append(found, h.receives(c, e)...)
		default:
		}
	}
	return found
}

// forgetLost removes what the store lost between two times. Events of lost writes may arrive until the subscription
// ends.
func (c *subscriber) forgetLost(losses []Event, from, to time.Duration) {
	for _, loss := range losses {
		if loss.To < from || loss.From > to {
			continue
		}
		for id, e := range c.last {
			if e.Revision > loss.Revision {
				delete(c.last, id)
			}
		}
	}
}

func (h *indexed) receives(c *subscriber, e Event) (found []Violation) {
	violation := func(r Rule, format string, args ...any) {
		found = append(found, Violation{r, e.Client + " receives " + fmt.Sprintf(format, args...), []Event{c.last[e.Work], e}})
	}
	last, seen := c.last[e.Work]
	switch {
	case e.Kind == Spec && !h.wrote(e):
		violation(Invented, "version %d of %s (deleted: %t), which was not published", e.Version, e.Work, e.Deleted)
	case e.Kind == Status && !h.reported(e):
		violation(Invented, "report %d about %s, which was not published", e.Number, e.Work)
	}
	switch {
	case !seen:
	case last.Deleted && !e.Deleted:
		violation(Undone, "%s alive at revision %d, after its deletion at %d", e.Work, e.Revision, last.Revision)
	case e.Revision < last.Revision, e.Version < last.Version && !h.lostSpec(last, e), e.Number < last.Number:
		violation(Forward, "version %d of %s (report %d) at revision %d after version %d (report %d) at %d", e.Version, e.Work, e.Number, e.Revision, last.Version, last.Number, last.Revision)
	}
	c.last[e.Work] = e
	return found
}

// lostSpec reports whether a loss explains that a status is about an older version than the last one. The revisions of
// both may be higher than those that survived:
//
//	t1: an agent applies a spec, and the database loses it.
//	t2: the agent reports the version of that spec.
//	t3: the agent compares, and reports the version that survived.
//
// A spec that survived in a later version, or that the agent received again, was not lost.
func (h *indexed) lostSpec(last, status Event) bool {
	w := h.byID[status.Work]
	if status.Kind != Status || w == nil {
		return false
	}
	reported := status.To
	for _, r := range w.reports {
		if r.Number == status.Number {
			reported = r.From
		}
	}
	return slices.ContainsFunc(h.losses, func(loss Event) bool {
		survived := int64(0)
		for _, e := range slices.Concat(w.writes, w.specs) {
			if (e.Acked || e.Kind == Spec) && e.From <= loss.To && e.Revision <= loss.Revision {
				survived = max(survived, e.Version)
			}
		}
		return loss.From <= status.To && survived <= status.Version && survived < last.Version && !w.received(last.Version, loss.To, reported)
	})
}

// received reports whether a version was published between two times, and an agent received it.
func (w *work) received(version int64, from, to time.Duration) bool {
	return slices.ContainsFunc(w.writes, func(e Event) bool {
		return e.Acked && e.Version == version && e.To > from && slices.ContainsFunc(w.specs, func(s Event) bool {
			return s.Version == version && s.To >= e.To && s.To < to
		})
	})
}

// cursors checks the cursors after each failover.
func (h *indexed) cursors() (found []Violation) {
	for _, f := range h.failovers {
		before := map[string]bool{} // incarnations
		begun := map[string]bool{}  // clients that have subscribed since
		for _, e := range h.events {
			switch {
			case e.Kind == Checkpoint && e.To < f.From:
				before[e.Incarnation] = true
			case e.Kind == Subscribe && e.From > f.To:
				begun[e.Client] = true
				if !e.List && before[e.Incarnation] && e.Revision > f.Revision {
					found = append(found, Violation{Cursors, fmt.Sprintf("%s continues from revision %d, although revisions above %d were lost", e.Client, e.Revision, f.Revision), []Event{f, e}})
				}
			case e.Kind == Checkpoint && begun[e.Client] && before[e.Incarnation] && e.Revision > f.Revision:
				found = append(found, Violation{Cursors, fmt.Sprintf("%s gets a cursor at revision %d in an incarnation that ended at %d", e.Client, e.Revision, f.Revision), []Event{f, e}})
			}
		}
	}
	return found
}

// acknowledged compares the store at the end with the writes.
func (h *indexed) acknowledged() (found []Violation) {
	stored := map[string]Event{}
	ended := false
	for _, e := range h.events {
		ended = ended || e.Kind == Complete
		if e.Kind == Stored {
			stored[e.Work] = e
			if !h.wrote(e) {
				found = append(found, Violation{Invented, fmt.Sprintf("the store has version %d of %s (deleted: %t), which was not published", e.Version, e.Work, e.Deleted), []Event{e}})
			}
		}
	}
	if !ended {
		return found // the run ended before its end could be compared
	}
	for _, w := range h.works {
		var last Event
		for _, e := range w.writes {
			if e.Acked && e.Version >= last.Version {
				last = e
			}
		}
		s, there := stored[w.id]
		switch {
		case !there && last.Version > 0 && !last.Deleted && !slices.ContainsFunc(w.writes, func(e Event) bool { return e.Deleted }):
			found = append(found, Violation{Acknowledged, fmt.Sprintf("the store has no %s, whose version %d was acknowledged", w.id, last.Version), []Event{last}})
		case there && !s.Deleted && last.Deleted:
			found = append(found, Violation{Undone, fmt.Sprintf("the store has %s alive, whose deletion was acknowledged", w.id), []Event{last, s}})
		case there && s.Version < last.Version:
			found = append(found, Violation{Acknowledged, fmt.Sprintf("the store has version %d of %s, and %d was acknowledged", s.Version, w.id, last.Version), []Event{last, s}})
		}
	}
	return found
}

// converged compares each subscriber with the store at the end.
func (h *indexed) converged() (found []Violation) {
	stored := map[string]Event{} // live
	held := map[string]map[string]Event{}
	var complete []Event
	for _, e := range h.events {
		switch e.Kind {
		case Stored:
			if !e.Deleted {
				stored[e.Work] = e
			}
		case Held, Known:
			if held[e.Client] == nil {
				held[e.Client] = map[string]Event{}
			}
			held[e.Client][e.Work] = e
		case Complete:
			complete = append(complete, e)
		default:
		}
	}
	for _, c := range complete {
		for _, id := range slices.Sorted(keysOf(stored, held[c.Client])) {
			s, has := stored[id], held[c.Client][id]
			if mine := c.Cluster != "" && (s.Cluster == c.Cluster || has.Cluster == c.Cluster) || h.owner(id) == c.Client; !mine {
				continue
			}
			if s.Version != has.Version {
				found = append(found, Violation{Converged, fmt.Sprintf("%s ends with version %d of %s, and the store with %d", c.Client, has.Version, id, s.Version), []Event{s, has}})
			} else if r := h.lastReport(id); c.Cluster == "" && has.Number < r.Number {
				found = append(found, Violation{Converged, fmt.Sprintf("%s ends with report %d about %s, and report %d was acknowledged", c.Client, has.Number, id, r.Number), []Event{r, has}})
			}
		}
	}
	return found
}

// owner returns the source of a work, "" if it was never published.
func (h *indexed) owner(id string) string {
	if w := h.byID[id]; w != nil && len(w.writes) > 0 {
		return w.writes[0].Client
	}
	return ""
}

// lastReport returns the last acknowledged report about a work.
func (h *indexed) lastReport(id string) (last Event) {
	if w := h.byID[id]; w != nil {
		for _, e := range w.reports {
			if e.Acked {
				last = e
			}
		}
	}
	return last
}

func keysOf(maps ...map[string]Event) func(func(string) bool) {
	return func(yield func(string) bool) {
		seen := map[string]bool{}
		for _, m := range maps {
			for id := range m {
				if !seen[id] && !yield(id) {
					return
				}
				seen[id] = true
			}
		}
	}
}

// digests compares the digests that brokers sent at the end.
func (h *indexed) digests() (found []Violation) {
	first := map[string]Event{}
	for _, e := range h.events {
		if e.Kind != Digest {
			continue
		}
		if f, seen := first[e.Cluster]; seen && f.Digest != e.Digest {
			found = append(found, Violation{Digests, fmt.Sprintf("the digest of %s is %s for %s and %s for %s", e.Cluster, f.Digest, f.Client, e.Digest, e.Client), []Event{f, e}})
		} else if !seen {
			first[e.Cluster] = e
		}
	}
	return found
}
