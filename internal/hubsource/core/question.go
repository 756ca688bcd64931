package core

import (
	workv1 "open-cluster-management.io/api/work/v1"
)

// questions asks the hub itself where an informer is no evidence: it may lag, or
// show a hub that is no more. One work is asked for by name; beyond some of a
// cluster the hub lists them all.
type questions struct {
	f     *fleet
	lives *lives
}

// maxGets is how many works of a cluster are asked for one by one.
const maxGets = 10

// askingHub counts the works of a cluster that are asked for.
type askingHub struct {
	wanted int
	retry  retry
}

// ask wants the hub's own word of a work.
func (q *questions) ask(w *work) {
	q.want(w, true)
	q.f.wake(HubLane, w.key(), 0)
}

func (q *questions) want(w *work, wanted bool) {
	if w.hub.asking != wanted {
		w.hub.want(wanted)
		w.cl.asking.wanted += sign(wanted)
	}
}

// write writes a work on the hub. done is told what came of it, and says whether that
// is tried again where it failed.
func (q *questions) write(l Lane, w *work, retry *retry, e Effect, done func(error) (again bool)) *todo {
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

// less takes it that one of them is no more.
func (a *askingHub) less() { a.wanted-- }

// keep brings the count up to date after an answer changed what is wanted.
func (q *questions) keep(w *work, was bool) {
	if w.hub.asking != was {
		w.cl.asking.wanted += sign(w.hub.asking)
	}
}

// next decides about asking for a work.
func (q *questions) next(w *work) *todo {
	h := &w.hub
	if !h.asking && !h.lagging.IsZero() && !q.f.until(HubLane, w.key(), h.lagging.Add(informerLag)) {
		q.want(w, true)
	}
	switch {
	case !h.asking:
		return nil
	case w.cl.asking.wanted > maxGets && h.object != nil:
		q.f.wakeCluster(HubLane, w.cl)
		return nil
	case !q.f.due(HubLane, w.key(), &h.retry):
		return nil
	}
	asked := q.f.tick()
	return q.f.ofWork(w, Get{UID: w.uid, Namespace: w.cl.name, Name: w.name()}, func(r Result) { q.doneGet(w, asked, r) })
}

// nextList decides about asking for all works of a cluster.
func (q *questions) nextList(cl *cluster) *todo {
	if cl.asking.wanted <= maxGets || !q.f.due(HubLane, cl.key(), &cl.asking.retry) {
		return nil
	}
	asked := q.f.tick()
	return q.f.ofCluster(cl, List{Namespace: cl.name}, func(r Result) { q.doneList(cl, asked, r) })
}

func (q *questions) doneGet(w *work, asked int, r Result) {
	was := w.hub.asking
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
		q.lives.contradicted(w.hub.found(r.Work, asked, q.f.tick(), q.f.Now()))
	}
	q.keep(w, was)
	q.heard(w)
}

func (q *questions) doneList(cl *cluster, asked int, r Result) {
	if r.Err != nil {
		q.f.hubFailed(HubLane, cl.key(), &cl.asking.retry, r.Err)
		return
	}
	cl.asking.retry.reset()
	for uid, w := range cl.works {
		if !w.hub.asking {
			continue
		}
		if version, there := r.Present[uid]; there {
			q.lives.contradicted(w.hub.listed(version, asked, q.f.Now()))
		} else {
			w.hub.notThere(asked, q.f.tick(), q.f.Now())
		}
		q.keep(w, true)
		q.heard(w)
	}
	if cl.asking.wanted > maxGets { // the informer is about to say what became of them
		q.f.failed(HubLane, cl.key(), &cl.asking.retry, missingDelay)
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
