package sim

import (
	"maps"
	"slices"
	"strconv"

	workv1 "open-cluster-management.io/api/work/v1"
)

// informer is what a replica of the hub source has read of the hub. It begins with
// the process, while another replica leads, and lives on when that one ends: what
// it has by then is what the next core begins with.
type informer struct {
	// seen is how much it has read of the log of one of the hub's lives.
	seen, epoch int
	has         map[string]*workv1.ManifestWork
	// news are of a list, and not told yet.
	news []news
	of   int // the life of the core that it was made for
	// until is how much of the log one had read when it was stopped.
	until int
}

// news is what an informer has to tell of a work after it has listed anew.
type news struct {
	o       *workv1.ManifestWork
	missing bool // it is not in the list
}

// informer is one that has read the hub as it was before the last lag events.
func (h *hub) informer(lag int) *informer {
	lag = min(lag, len(h.log)-h.listed) // there never was less
	return &informer{seen: len(h.log) - lag, epoch: h.epoch, has: h.before(lag)}
}

// sawLater reports whether it has seen a state of the hub that is later than a
// copy.
func (i *informer) sawLater(b *hubBackup) bool {
	for _, o := range i.has {
		if version, err := strconv.Atoi(o.ResourceVersion); err == nil && version > b.rv {
			return true
		}
	}
	return false
}

// standBy hears that the hub is about to be replaced by an older copy. The informer
// of the replica that waits goes on showing the hub as it was until it has listed
// it anew; it may have failed to do so since the hub was replaced last.
func (s *source) standBy() {
	if s.standby == nil || s.w.rng.IntN(2) == 0 {
		s.standby = s.hub.informer(s.w.rng.IntN(4))
	}
}

// takeOver makes the replica that waits the leader.
func (s *source) takeOver() {
	read := s.standby
	s.standby = nil // the one before waits now, in a new process
	s.restart(read)
	if b := s.hub.restored; b != nil && s.sawLater(b) {
		s.hub.saw = s.process
	}
}

// behind reports whether the informer has something to tell.
func (i *informer) behind(h *hub) bool {
	return len(i.news) > 0 || i.seen < len(h.log) || i.epoch != h.epoch
}

// stop ends the informer of a life of the core. It reads nothing any more, but what it
// has read by then it still tells: that is all that the hub has sent, or a list.
func (i *informer) stop(h *hub) *informer {
	stopped := *i
	if stopped.epoch != h.epoch && len(stopped.news) == 0 {
		stopped.list(h)
	}
	stopped.until = len(h.log)
	return &stopped
}

// sentAll reports whether one that was stopped has nothing more to tell.
func (i *informer) sentAll(h *hub) bool {
	return len(i.news) == 0 && (i.epoch != h.epoch || i.seen >= i.until)
}

// watchFormer is what the informer of the life before tells next.
func (s *source) watchFormer() {
	present := s.informer
	s.informer = *s.former
	s.watch()
	*s.former, s.informer = s.informer, present
}

// watch is what the informer sees next.
func (s *source) watch() {
	switch {
	case len(s.news) > 0:
		n := s.news[0]
		if s.news = s.news[1:]; n.missing {
			delete(s.has, keyOf(n.o))
			s.core.WorkMissing(s.of, n.o.UID)
		} else {
			s.take(n.o)
		}
		return
	case s.epoch != s.hub.epoch:
		s.list(s.hub)
		s.head = s.seen
		return
	}
	e := s.hub.log[s.seen]
	s.seen++
	if e.gone {
		delete(s.has, keyOf(e.o))
		s.core.WorkDeleted(s.of, e.o.UID)
	} else {
		s.take(e.o)
	}
}

// take is an object of the informer. It tells nothing of one that it has so.
func (s *source) take(o *workv1.ManifestWork) {
	old := s.has[keyOf(o)]
	s.has[keyOf(o)] = o
	switch {
	case old != nil && old.UID != o.UID:
		s.core.WorkMissing(s.of, old.UID)
	case old != nil && old.ResourceVersion == o.ResourceVersion:
		return
	}
	s.core.WorkSeen(s.of, o)
}

// list reads the hub anew, as an informer does whose watch cannot go on. What is
// missing is told first, and one work after the other.
func (i *informer) list(h *hub) {
	i.seen, i.epoch = len(h.log), h.epoch
	for _, key := range slices.Sorted(maps.Keys(i.has)) {
		if h.works[key] == nil {
			i.news = append(i.news, news{i.has[key], true})
		}
	}
	for _, key := range h.keys() {
		i.news = append(i.news, news{h.works[key], false})
	}
}
