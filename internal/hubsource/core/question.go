package core

import (
	workv1 "open-cluster-management.io/api/work/v1"
)

// questions asks the hub itself where an informer is no evidence: it may lag, or
// show a hub that is no more. One work is asked for by name; beyond some of a
// cluster the hub lists them all.
type questions struct {
	f     *fleet
	lives *hubEpochs
}

// maxGets is how many works of a cluster are asked for one by one.
const maxGets = 10

// ask wants the hub's own word of a work.
func (q *questions) ask(w *work) {
	w.hub.ask()
	q.f.wake(HubLane, w.key(), 0)
}

// write writes a work on the hub. done is told what came of it, and says whether that
// is tried again where it failed.
func (q *questions) write(l Queue, w *work, retry *retry, e Effect, done func(error) (again bool)) *todo {
	asked := q.f.tick()
	return q.f.ofWork(w, e, func(r Result) {
		again := done(r.Err)
		switch {
		case r.Err == nil:
			retry.reset()
			q.wrote(w, r.Work, asked)
		case again:
			q.f.hubFailed(l, w.key(), retry, r.Err)
		}
	})
}

// wrote takes the hub's answer to a write of ours.
func (q *questions) wrote(w *work, o *workv1.ManifestWork, asked int) {
	if o != nil {
		q.lives.shown(o)
	}
	w.hub.wrote(o, asked, q.f.tick(), q.f.Now())
	if !w.hub.lagging.IsZero() {
		q.f.wakeAt(HubLane, w.key(), w.hub.lagging.Add(informerLag))
	}
	q.f.recount(w)
}

// next decides about asking for a work.
func (q *questions) next(w *work) *todo {
	h := &w.hub
	if !h.asking && !h.lagging.IsZero() && !q.f.until(HubLane, w.key(), h.lagging.Add(informerLag)) {
		h.ask()
	}
	switch {
	case !h.asking:
		return nil
	case h.object != nil && asksForMany(w.cl):
		q.f.wakeCluster(HubLane, w.cl)
		return nil
	case !q.f.due(HubLane, w.key(), &h.retry):
		return nil
	}
	asked := q.f.tick()
	return q.f.ofWork(w, Get{UID: w.uid, Namespace: w.cl.name, Name: w.name()}, func(r Result) { q.doneGet(w, asked, r) })
}

// asksForMany reports whether so many works of a cluster are asked for that one list
// answers for all.
func asksForMany(cl *cluster) bool {
	n := 0
	for _, w := range cl.works {
		if w.hub.asking {
			n++
		}
		if n > maxGets {
			return true
		}
	}
	return false
}

// nextList decides about asking for all works of a cluster.
func (q *questions) nextList(cl *cluster) *todo {
	if !asksForMany(cl) || !q.f.due(HubLane, cl.key(), &cl.listing) {
		return nil
	}
	asked := q.f.tick()
	return q.f.ofCluster(cl, List{Namespace: cl.name}, func(r Result) { q.doneList(cl, asked, r) })
}

func (q *questions) doneGet(w *work, asked int, r Result) {
	switch {
	case r.lacks(w.uid):
		w.hub.notThere(asked, q.f.tick(), q.f.Now())
		if w.hub.asking {
			q.f.failed(HubLane, w.key(), &w.hub.retry, missingDelay)
		}
	case r.Err != nil:
		q.f.hubFailed(HubLane, w.key(), &w.hub.retry, r.Err)
	default:
		q.lives.shown(r.Work)
		q.lives.endEpoch(w.hub.found(r.Work, asked, q.f.tick(), q.f.Now()))
	}
	q.heard(w)
}

func (q *questions) doneList(cl *cluster, asked int, r Result) {
	if r.Err != nil {
		q.f.hubFailed(HubLane, cl.key(), &cl.listing, r.Err)
		return
	}
	cl.listing.reset()
	for uid, w := range cl.works {
		if !w.hub.asking {
			continue
		}
		if version, there := r.Present[uid]; there {
			q.lives.endEpoch(w.hub.listed(version, asked, q.f.Now()))
		} else {
			w.hub.notThere(asked, q.f.tick(), q.f.Now())
		}
		q.heard(w)
	}
	if asksForMany(cl) { // the informer is about to say what became of them
		q.f.failed(HubLane, cl.key(), &cl.listing, missingDelay)
	}
}

// heard has a work looked at of which the hub said something.
func (q *questions) heard(w *work) {
	q.f.recount(w)
	q.f.wakeWork(w)
}

// name is that of a work of which at least a report is known.
func (w *work) name() string {
	switch {
	case w.hub.object != nil:
		return w.hub.object.Name
	case w.report.pending != nil:
		return w.report.pending.Name
	}
	return ""
}
