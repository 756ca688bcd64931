package sim

import (
	"maps"
	"slices"
	"strconv"

	workv1 "open-cluster-management.io/api/work/v1"
)

// informer is the state that a replica of hub-source has read from the hub. It starts with the process, while
// another replica leads. When that leader ends, the next core starts from this state.
type informer struct {
	// seen is the number of log entries that it has read, in one epoch of the hub.
	seen, epoch int
	has         map[string]*workv1.ManifestWork
	// news are the changes of a list that are not delivered yet.
	news []news
	of   int // the hub epoch that it was created for
	// until is the length of the log when the informer was stopped.
	until int
}

// news is a change that an informer delivers after a relist.
type news struct {
	o       *workv1.ManifestWork
	missing bool // it is not in the list
}

// informer returns an informer that has read the hub as it was before the last lag events.
func (h *hub) informer(lag int) *informer {
	lag = min(lag, len(h.log)-h.listed) // there never was less
	return &informer{seen: len(h.log) - lag, epoch: h.epoch, has: h.before(lag)}
}

// sawLater reports whether it has seen a state of the hub that is later than a copy.
func (i *informer) sawLater(b *hubBackup) bool {
	for _, o := range i.has {
		if version, err := strconv.Atoi(o.ResourceVersion); err == nil && version > b.rv {
			return true
		}
	}
	return false
}

// standBy is called before the hub is replaced by an older copy. The informer of the standby replica shows the
// previous hub until its next list. That list may have failed since the hub was replaced last.
func (s *source) standBy() {
	if s.standby == nil || s.w.rng.IntN(2) == 0 {
		s.standby = s.hub.informer(s.w.rng.IntN(4))
	}
}

// takeOver makes the standby replica the leader.
func (s *source) takeOver() {
	read := s.standby
	s.standby = nil // the former leader is now the standby, in a new process
	s.restart(read)
	if b := s.hub.restored; b != nil && s.sawLater(b) {
		s.hub.saw = s.process
	}
}

// behind reports whether the informer has changes to deliver.
func (i *informer) behind(h *hub) bool {
	return len(i.news) > 0 || i.seen < len(h.log) || i.epoch != h.epoch
}

// stop ends the informer of one hub epoch. It reads nothing more, and still delivers what it has read: all
// events that the hub has sent, or a list.
func (i *informer) stop(h *hub) *informer {
	stopped := *i
	if stopped.epoch != h.epoch && len(stopped.news) == 0 {
		stopped.list(h)
	}
	stopped.until = len(h.log)
	return &stopped
}

// sentAll reports whether a stopped informer has delivered everything.
func (i *informer) sentAll(h *hub) bool {
	return len(i.news) == 0 && (i.epoch != h.epoch || i.seen >= i.until)
}

// watchFormer delivers the next change of the informer of the previous hub epoch.
func (s *source) watchFormer() {
	present := s.informer
	s.informer = *s.former
	s.watch()
	*s.former, s.informer = s.informer, present
}

// watch delivers the next change of the informer.
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

// take delivers an object to the core, unless the informer already has that version.
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

// list reads the hub again, as an informer does when its watch cannot continue. It delivers missing works
// first, then the others, one at a time.
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
