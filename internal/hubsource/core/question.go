package core

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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

// Get asks the hub for a work. The result carries the work if there is one under
// that name, else an error for which apierrors.IsNotFound is true.
type Get struct {
	UID             types.UID
	Namespace, Name string
	asked           int
	attempt         int // of the comparison that asks, 0 for none
}

// List asks the hub which works of a namespace there are. The result carries them
// in Present.
type List struct {
	Namespace string
	asked     int
	attempt   int // as in [Get]
}

// Present are the resource versions of works by uid, at one moment.
type Present map[types.UID]string

func (Get) effect()  {}
func (List) effect() {}

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

// wrote takes the hub's answer to a write of ours.
func (q *questions) wrote(w *work, o *workv1.ManifestWork, asked int) {
	if o != nil {
		q.lives.shown(o)
	}
	w.hub.wrote(o, asked, q.f.tick(), q.f.now())
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
func (q *questions) next(w *work) Effect {
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
	return Get{UID: w.uid, Namespace: w.cl.name, Name: w.name(), asked: q.f.tick()}
}

// nextList decides about asking for all works of a cluster.
func (q *questions) nextList(cl *cluster) Effect {
	if cl.asking.wanted <= maxGets || !q.f.due(HubLane, cl.key(), &cl.asking.retry) {
		return nil
	}
	return List{Namespace: cl.name, asked: q.f.tick()}
}

func (q *questions) doneGet(w *work, e Get, r Result) {
	was := w.hub.asking
	switch {
	case apierrors.IsNotFound(r.Err), r.Err == nil && r.Work.UID != e.UID:
		w.hub.notThere(e.asked, q.f.tick(), q.f.now())
		if w.hub.asking {
			q.f.failed(HubLane, w.key(), &w.hub.retry, missingDelay)
		}
	case r.Err != nil:
		q.f.hubFailed(w.key(), &w.hub.retry, r.Err)
	default:
		q.lives.shown(r.Work)
		q.lives.contradicted(w.hub.found(r.Work, e.asked, q.f.tick(), q.f.now()))
	}
	q.keep(w, was)
	q.heard(w)
}

func (q *questions) doneList(e List, r Result) {
	cl := q.f.clusters[e.Namespace]
	if cl == nil {
		return
	}
	if r.Err != nil {
		q.f.hubFailed(cl.key(), &cl.asking.retry, r.Err)
		return
	}
	cl.asking.retry.reset()
	for uid, w := range cl.works {
		if !w.hub.asking {
			continue
		}
		if version, there := r.Present[uid]; there {
			q.lives.contradicted(w.hub.listed(version, e.asked, q.f.now()))
		} else {
			w.hub.notThere(e.asked, q.f.tick(), q.f.now())
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
