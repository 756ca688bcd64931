package core

import workv1 "open-cluster-management.io/api/work/v1"

// hubQueries queries the hub itself where an informer is no evidence: the informer may lag, or show a hub from
// before a rollback. One work is read by name. Beyond maxGets works of a cluster, one list is read.
type hubQueries struct {
	f      *workIndex
	epochs *hubEpochs
}

// maxGets limits the works of a cluster that are read one by one.
const maxGets = 10

// query requests the state of a work from the hub itself.
func (q *hubQueries) query(w *work) {
	w.hub.query()
	q.f.wake(HubQueue, w.key(), 0)
}

// write writes a work on the hub. done handles the error, and returns whether to try again after a failure.
func (q *hubQueries) write(l Queue, w *work, retry *retry, e Effect, done func(error) (again bool)) *todo {
	requests := q.f.tick()
	return q.f.ofWork(w, e, func(r Result) {
		again := done(r.Err)
		switch {
		case r.Err == nil:
			retry.reset()
			q.wrote(w, r.Work, requests)
		case again:
			q.f.hubFailed(l, w.key(), retry, r.Err)
		}
	})
}

// wrote stores the hub's answer to a write of this source.
func (q *hubQueries) wrote(w *work, o *workv1.ManifestWork, requests int) {
	if o != nil {
		q.epochs.shown(o)
	}
	w.hub.wrote(o, requests, q.f.tick(), q.f.Now())
	if !w.hub.lagging.IsZero() {
		q.f.wakeAt(HubQueue, w.key(), w.hub.lagging.Add(informerLag))
	}
	q.f.recount(w)
}

// next decides whether to read a work from the hub.
func (q *hubQueries) next(w *work) *todo {
	h := &w.hub
	if !h.querying && !h.lagging.IsZero() && !q.f.until(HubQueue, w.key(), h.lagging.Add(informerLag)) {
		h.query()
	}
	switch {
	case !h.querying:
		return nil
	case h.object != nil && queriesMany(w.cl):
		q.f.wakeCluster(HubQueue, w.cl)
		return nil
	case !q.f.due(HubQueue, w.key(), &h.retry):
		return nil
	}
	requests := q.f.tick()
	return q.f.ofWork(w, Get{UID: w.uid, Namespace: w.cl.name, Name: w.name()}, func(r Result) { q.doneGet(w, requests, r) })
}

// queriesMany reports whether so many works of a cluster are queried that one list answers for all.
func queriesMany(cl *cluster) bool {
	n := 0
	for _, w := range cl.works {
		if w.hub.querying {
			n++
		}
		if n > maxGets {
			return true
		}
	}
	return false
}

// nextList decides whether to list all works of a cluster on the hub.
func (q *hubQueries) nextList(cl *cluster) *todo {
	if !queriesMany(cl) || !q.f.due(HubQueue, cl.key(), &cl.listing) {
		return nil
	}
	requests := q.f.tick()
	return q.f.ofCluster(cl, List{Namespace: cl.name}, func(r Result) { q.doneList(cl, requests, r) })
}

func (q *hubQueries) doneGet(w *work, requests int, r Result) {
	switch {
	case r.isAbsent(w.uid):
		w.hub.notThere(requests, q.f.tick(), q.f.Now())
		if w.hub.querying {
			q.f.failed(HubQueue, w.key(), &w.hub.retry, missingDelay)
		}
	case r.Err != nil:
		q.f.hubFailed(HubQueue, w.key(), &w.hub.retry, r.Err)
	default:
		q.epochs.shown(r.Work)
		q.epochs.endEpoch(w.hub.found(r.Work, requests, q.f.tick(), q.f.Now()))
	}
	q.answered(w)
}

func (q *hubQueries) doneList(cl *cluster, requests int, r Result) {
	if r.Err != nil {
		q.f.hubFailed(HubQueue, cl.key(), &cl.listing, r.Err)
		return
	}
	cl.listing.reset()
	for uid, w := range cl.works {
		if !w.hub.querying {
			continue
		}
		if version, there := r.Present[uid]; there {
			q.epochs.endEpoch(w.hub.listed(version, requests, q.f.Now()))
		} else {
			w.hub.notThere(requests, q.f.tick(), q.f.Now())
		}
		q.answered(w)
	}
	if queriesMany(cl) { // the informer is about to show their end
		q.f.failed(HubQueue, cl.key(), &cl.listing, missingDelay)
	}
}

// answered wakes a work after an answer of the hub.
func (q *hubQueries) answered(w *work) {
	q.f.recount(w)
	q.f.wakeWork(w)
}

// name returns the name of a work, from the object or the pending report; "" without both.
func (w *work) name() string {
	switch {
	case w.hub.object != nil:
		return w.hub.object.Name
	case w.report.pending != nil:
		return w.report.pending.Name
	}
	return ""
}
