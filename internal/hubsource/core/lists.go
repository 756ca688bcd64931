package core

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/transport"
)

// statusLists is what is to be asked for of the statuses of a cluster: those that
// may have been missed.
type statusLists struct {
	// all: those of all its works; left is what is left to be listed. attempt tells
	// an answer to an earlier attempt.
	all, asking bool
	left        []types.UID
	attempt     int
	counted     bool // one of them is to be done
	retry       retry
}

// maxListed is the number of works in one [Ask].
const maxListed = resync.MaxHashes

// repeat begins anew with listing all works of the cluster, or with nothing.
func (s *statusLists) repeat(c *cursor, all bool) {
	s.all, s.left = all, nil
	s.attempt++
	s.count(c)
}

// add lists one work.
func (s *statusLists) add(c *cursor, uid types.UID) {
	if !s.all {
		s.left = append(s.left, uid)
		s.count(c)
	}
}

// count keeps the number of clusters whose statuses are still to be asked for.
func (s *statusLists) count(c *cursor) {
	if open := s.all || s.asking || len(s.left) > 0; open != s.counted {
		s.counted = open
		c.asking(open)
	}
}

// subscribe begins anew with a subscription. What was to be listed still is.
func (s *statusLists) subscribe(c *cursor, all bool) {
	s.asking = false
	s.retry.reset()
	if all {
		s.repeat(c, true)
		return
	}
	s.attempt++
	s.count(c)
}

// listed lets go of the first n that were to be listed.
func (s *statusLists) listed(n int) {
	if s.left = s.left[n:]; len(s.left) == 0 {
		s.left = nil
	}
}

// askFor lists one work. What there was before the first subscription is listed there,
// if it has to be.
func (c *cursor) askFor(w *work) {
	if c.f.begun && w.cl.selected {
		w.cl.lists.add(c, w.uid)
		c.f.wakeCluster(SpecLane, w.cl)
	}
}

// nextAsk decides about the statuses of a cluster that may have been missed.
func (s *statuses) nextAsk(cl *cluster) *todo {
	l := &cl.lists
	defer l.count(s.cursor)
	if l.asking || !s.f.mayTell(cl) {
		return nil
	}
	if l.all {
		l.all, l.left = false, slices.Sorted(maps.Keys(cl.works))
	}
	for len(l.left) > 0 {
		n := min(maxListed, len(l.left))
		held := heldOf(cl, l.left[:n])
		if len(held) == 0 { // they left since
			l.listed(n)
			continue
		}
		if !s.f.due(SpecLane, cl.key(), &l.retry) {
			return nil
		}
		l.asking = true
		attempt := l.attempt
		return s.f.ofCluster(cl, Ask{Cluster: cl.name, Held: held}, func(r Result) { s.doneAsk(cl, n, attempt == l.attempt, r) })
	}
	return nil
}

// heldOf returns what the hub holds of the statuses of works.
func heldOf(cl *cluster, uids []types.UID) []Held {
	var held []Held
	for _, uid := range uids {
		w := cl.works[uid]
		if w == nil || w.hub.object == nil || w.hub.ended != alive {
			continue
		}
		h := Held{UID: uid}
		if p := w.report.pending; p != nil && p.Hash != "" {
			h.Hash = p.Hash
		} else {
			h.Work = w.hub.object
		}
		held = append(held, h)
	}
	return held
}

// doneAsk takes what came of asking for n works of a list; wanted: it still is.
func (s *statuses) doneAsk(cl *cluster, n int, wanted bool, r Result) {
	l := &cl.lists
	l.asking = false
	refused := false
	switch {
	case !wanted:
	case r.Err == nil:
		l.retry.reset()
		l.listed(n)
	case transport.Retryable(r.Err):
		s.f.brokerFailed(cl.key(), &l.retry, r.Err)
	default: // until the next subscription
		l.left, refused = nil, true
	}
	s.cursor.listed(r.Sent, refused)
	l.count(s.cursor)
	s.cursor.resume()
	s.f.wakeCluster(SpecLane, cl)
	s.compare.tidy(cl)
}
