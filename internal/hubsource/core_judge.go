package hubsource

import (
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// judge compares a cluster's works with its records, all of which have come.
func (c *Core) judge(cl *cluster) {
	k := &cl.comparing
	c.noteUnburied(cl)
	plan := resync.CompareWorks(c.worksOf(cl), k.records)
	c.noteUnheardOf(cl)
	late := c.noteDisplaced(cl, plan.Replacing)
	k.records, k.asked = nil, false
	c.forgetMissing(cl)
	for _, id := range plan.InSync {
		if w := c.undecided(cl, id); w != nil {
			if o := c.current(w); hasFinalizer(o) {
				c.inSync(w, o)
			} else {
				c.clear(w)
			}
		}
	}
	for _, id := range plan.Publish {
		if w := c.undecided(cl, id); w != nil {
			c.clear(w)
		}
	}
	for _, b := range plan.Supersede {
		if w := c.undecided(cl, b.ID); w != nil {
			w.spec.behind = &behind{Behind: b}
			k.checks++
			c.clear(w)
		}
	}
	for _, id := range plan.Replacing {
		if w := c.undecided(cl, id); w != nil {
			w.spec.replaces = true
		}
	}
	k.missing, k.candidates, k.live, k.later = plan.Missing, len(plan.Missing), plan.Live, plan.Later > 0
	if k.candidates > 0 {
		c.locateNow()
	}
	c.judged(cl)
	if late {
		c.compareAgain(cl, 0)
	}
	c.cfg.Waker.Wake(SpecLane, Key{}, 0)
}

// worksOf are the works to compare with the records of their cluster. Those that
// are gone are deleted in their own time, if they are; else the broker has
// nothing of them as far as it is for them to say.
func (c *Core) worksOf(cl *cluster) []resync.Work {
	for _, r := range cl.comparing.records {
		if w := cl.works[types.UID(r.ResourceID)]; w != nil {
			w.spec.attempted = true // if it goes, the broker has to hear of it
			w.spec.alive = w.spec.alive || !r.Tombstone
		}
	}
	works := make([]resync.Work, 0, len(cl.works))
	for _, w := range cl.works {
		if w.seen == nil || w.missing || w.gone && !c.owesDeletion(w, cl) {
			continue
		}
		works = append(works, c.workOf(w))
	}
	return works
}

// noteUnburied takes note of the works whose deletion was confirmed on an earlier
// connection and that live in the broker's store: it is an older one. As long as
// the work is there, the broker is told of its deletion again.
func (c *Core) noteUnburied(cl *cluster) {
	for _, r := range cl.comparing.records {
		w := cl.works[types.UID(r.ResourceID)]
		if w == nil || !w.confirmed || r.Tombstone || w.spec.sentOn == c.conn {
			continue
		}
		w.confirmed = false
		w.spec.sent, w.spec.sentOn = mark{}, 0
		c.letGo(w)
		c.notAccepted(w)
	}
}

// noteDisplaced takes note of works whose names the broker gave to others after it
// had accepted them: a publish of a work that was on the hub before it went back in
// time can be under way for long. It reports whether that cannot be told because the
// records may have been listed before the works were accepted.
func (c *Core) noteDisplaced(cl *cluster, replacing []string) (unsure bool) {
	for _, id := range replacing {
		w := cl.works[types.UID(id)]
		switch {
		case c.undecided(cl, id) != nil || w.gone || w.confirmed: // looked at anyway, or gone
		case w.spec.request >= cl.comparing.request:
			unsure = true
		default:
			w.spec.sent, w.spec.sentOn = mark{}, 0
			c.notAccepted(w)
		}
	}
	return unsure
}

// noteUnheardOf takes note of the works that the broker has no record of.
func (c *Core) noteUnheardOf(cl *cluster) {
	known := make(map[types.UID]bool, len(cl.comparing.records))
	for _, r := range cl.comparing.records {
		known[types.UID(r.ResourceID)] = true
	}
	for uid, w := range cl.works {
		if !known[uid] {
			c.unheardOf(w)
		}
	}
}

// unheardOf takes it that the broker has no record of the work, and so no report
// either: whatever comes is about a record that is still to be made. Where the
// broker lost its store, and the agent its own memory, the sequence ids begin
// anew with it. Where the broker calls the work stale all the same, it knows of
// its deletion: the informer lags, or the hub went back in time.
func (c *Core) unheardOf(w *work) {
	w.report.sequence = ""
	if w.seen == nil || w.gone || w.confirmed || w.spec.staleRuns == 0 || w.spec.behind != nil {
		return
	}
	w.spec.behind = &behind{Behind: resync.Behind{ID: string(w.uid), Tombstone: true}}
	c.clusters[w.cluster].comparing.checks++
	c.clear(w)
}

// workOf is a work as the comparison sees it.
func (c *Core) workOf(w *work) resync.Work {
	o := c.current(w)
	m := markOf(o)
	return resync.Work{
		ID: string(w.uid), Name: o.Name, Version: o.Generation,
		Tag: w.spec.tag, Untagged: !w.spec.tagged.equal(m),
		Deleting: m.deleting || w.gone, Stuck: !m.deleting && !w.gone && isLarge(o),
	}
}

// undecided returns the work with this id unless the broker accepted it as it
// is on this connection: that is newer than any record that was listed.
func (c *Core) undecided(cl *cluster, id string) *work {
	w := cl.works[types.UID(id)]
	if w == nil || w.gone || w.confirmed || w.spec.sentOn == c.conn && w.spec.sent.equal(markOf(c.current(w))) {
		return nil
	}
	return w
}

// judged goes on when nothing is left to be looked up first.
func (c *Core) judged(cl *cluster) {
	if cl.comparing.checks > 0 {
		c.setStage(cl, checksBehind)
		return
	}
	c.setStage(cl, checksMissing)
	c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
}

// behind is a work that looks older than its record. confirmed: the hub says
// that it is.
type behind struct {
	resync.Behind
	confirmed bool
}

// noLongerBehind takes a work to be as new as its record, or gone.
func (c *Core) noLongerBehind(w *work) {
	b := w.spec.behind
	w.spec.behind = nil
	if b != nil && !b.confirmed {
		c.checkedBehind(c.clusters[w.cluster])
	}
}

// withdraw takes it that a work is not going to be published as it was judged.
func (c *Core) withdraw(w *work) {
	c.noLongerBehind(w)
	if w.spec.replaces {
		w.spec.replaces = false
		c.compareAgain(c.clusters[w.cluster], 0)
	}
}

func (c *Core) checkedBehind(cl *cluster) {
	if cl.comparing.checks--; cl.comparing.checks == 0 && cl.comparing.stage == checksBehind {
		c.judged(cl)
	}
}

func (c *Core) doneCheckBehind(e CheckBehind, r Result) {
	w := c.works[e.Work.UID]
	w.spec.busy = false
	b := w.spec.behind
	c.wake(SpecLane, w, 0)
	switch {
	case b == nil || b.confirmed || w.gone:
		// Overtaken by something else.
	case apierrors.IsNotFound(r.Err), r.Err == nil && r.Work.UID != w.uid:
		w.spec.clearedOn, w.spec.alive = 0, false // the informer is about to say so
		c.noLongerBehind(w)
	case r.Err != nil:
		c.hubFailed(SpecLane, Key{UID: w.uid}, &w.spec.retry, r.Err)
	case r.Work.DeletionTimestamp == nil && (b.Tombstone || r.Work.Generation < b.Version):
		w.spec.retry = retry{}
		b.confirmed, w.spec.alive = true, true
		c.suspect("the hub has works in an older state than the broker")
		c.checkedBehind(c.clusters[w.cluster])
	default: // only the informer was behind
		w.spec.retry = retry{}
		c.wrote(w, r.Work)
		c.noLongerBehind(w)
	}
}

// conflicted takes the answer that a condition does not hold: the record is no
// longer the one that was listed.
func (c *Core) conflicted(w *work) {
	c.noLongerBehind(w)
	c.failed(SpecLane, Key{UID: w.uid}, &w.spec.retry, 0)
	c.judgeAgain(w)
}

// judgeAgain has a work compared with its record once more before anything of it
// is published: what was accepted of it, or found out, says nothing of what it is
// now.
func (c *Core) judgeAgain(w *work) {
	w.spec.sent, w.spec.sentOn, w.spec.refusedOn, w.spec.clearedOn, w.spec.tagged = mark{}, 0, 0, 0, mark{}
	c.notAccepted(w)
	c.compareAgain(c.clusters[w.cluster], 0)
}

// nextMissing decides about works that only the broker has. That waits until
// all clusters are judged: what one of them shows may cast doubt on the hub.
func (c *Core) nextMissing(cl *cluster) Effect {
	k := &cl.comparing
	if len(k.missing) == 0 {
		c.settle(cl)
		return nil
	}
	if c.comparison.unjudged > 0 || !c.located() {
		return nil
	}
	if reason := c.doubt(cl); reason != "" {
		c.withhold(cl, reason)
		return nil
	}
	if !c.due(SpecLane, Key{Cluster: cl.name}, &k.retry) {
		return nil
	}
	if k.absent == len(k.missing) {
		return Delete{Record: k.missing[0], Order: c.nextOrder(), round: k.round}
	}
	r := k.missing[k.absent]
	return CheckMissing{UID: types.UID(r.ResourceID), Namespace: cl.name, Name: r.Name, round: k.round}
}

// resolved goes on with the next that is missing.
func (c *Core) resolved(cl *cluster) {
	k := &cl.comparing
	for _, w := range cl.works { // what waited for its name
		if w.seen != nil && w.seen.Name == k.missing[0].Name {
			c.wake(SpecLane, w, 0)
		}
	}
	k.missing, k.absent, k.retry = k.missing[1:], k.absent-1, retry{}
	c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
}

func (c *Core) doneCheckMissing(e CheckMissing, r Result) {
	cl := c.clusters[e.Namespace]
	if cl == nil || cl.comparing.round != e.round || len(cl.comparing.missing) == 0 {
		return
	}
	k := &cl.comparing
	switch {
	case apierrors.IsNotFound(r.Err), r.Err == nil && r.Work.UID != e.UID:
		k.retry = retry{}
		if k.absent++; k.absent == len(k.missing) {
			c.locateNow() // see comparing.missing
		}
		c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
	case r.Err != nil:
		c.hubFailed(SpecLane, Key{Cluster: cl.name}, &k.retry, r.Err)
	default: // only the informer does not have it yet
		c.compareAgain(cl, missingDelay)
	}
}

func (c *Core) doneDelete(e Delete, r Result) {
	cl := c.clusters[e.Record.Cluster]
	if cl == nil || cl.comparing.round != e.round || len(cl.comparing.missing) == 0 {
		return
	}
	switch {
	case r.Err == nil:
		c.resolved(cl)
	case transport.CodeOf(r.Err) == transport.CodeConflict:
		c.compareAgain(cl, 0)
	case transport.Retryable(r.Err):
		c.brokerFailed(Key{Cluster: cl.name}, &cl.comparing.retry, r.Err)
	default: // it is another source's by now, or beyond us; the shell has logged it
		c.resolved(cl)
	}
}

// withhold leaves what is missing to a person.
func (c *Core) withhold(cl *cluster, reason string) {
	k := &cl.comparing
	k.reason = reason
	for _, r := range k.missing {
		k.withheld = append(k.withheld, codec.WithheldDeletion{ResourceID: r.ResourceID, Name: r.Name, Revision: r.Revision})
	}
	k.missing = nil
	c.settle(cl)
}

// withholds reports whether the deletion of a work is left to a person.
func (k *comparing) withholds(id string) bool {
	return slices.ContainsFunc(k.withheld, func(w codec.WithheldDeletion) bool { return w.ResourceID == id })
}

// withholdsName reports the same of a name.
func (k *comparing) withholdsName(name string) bool {
	return slices.ContainsFunc(k.withheld, func(w codec.WithheldDeletion) bool { return w.Name == name })
}

// missesName reports whether a work is still to be deleted that had the name.
func (k *comparing) missesName(name string) bool {
	return slices.ContainsFunc(k.missing, func(r codec.InventoryRecord) bool { return r.Name == name })
}

// lacks reports whether the deletion of a work is still to be decided about, by us
// or by a person, because only the broker had it.
func (k *comparing) lacks(id string) bool {
	return k.withholds(id) || slices.ContainsFunc(k.missing, func(r codec.InventoryRecord) bool { return r.ResourceID == id })
}

// settle ends the comparison of a cluster.
func (c *Core) settle(cl *cluster) {
	c.setStage(cl, settled)
	if len(cl.comparing.withheld) == 0 {
		c.trust(cl)
	}
	c.tellSoon(cl)
}
