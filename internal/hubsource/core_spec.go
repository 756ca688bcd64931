package hubsource

import (
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// specState is the way of one work's spec to the broker.
type specState struct {
	busy bool
	// attempted: a publish may have reached the broker, whatever it answered.
	attempted bool
	// elsewhere: the work was published before a connection whose broker does
	// not know our cursor. That may be another store than the one it went into
	// and from which its cluster got it.
	elsewhere bool
	// fresh: the hub took our finalizer, so the work lives, and no earlier process
	// can have seen it die.
	fresh bool
	// alive: the hub, or a record of the broker, showed that the work lives, in this
	// process. unsure: it waits for that; see core_alive.go.
	alive, unsure bool
	// sent is what the broker accepted last, on connection sentOn; 0 is never.
	// request is that for records which was the last one then.
	sent    mark
	sentOn  int
	request int
	// refused is what the broker refused for good on connection refusedOn; it
	// is tried again when it changes, on the next connection, or at tryAgain.
	refused   mark
	refusedOn int
	tryAgain  time.Time
	// staleRuns counts answers in a row that the broker has a newer version.
	staleRuns int
	retry     retry

	// tag is that of the work as it was when its mark was tagged.
	tagged mark
	tag    codec.Tag
	// clearedOn is the connection on which the work may be published, as far as
	// the comparison is concerned; see [Core.cleared].
	clearedOn int
	// behind is set when the work looks older than its record; replaces, when
	// its publishing ends another record.
	behind   *behind
	replaces bool
}

// mark says whether two states of a work differ for the broker.
type mark struct {
	generation          int64
	deleting            bool
	labels, annotations map[string]string
}

func markOf(o *workv1.ManifestWork) mark {
	return mark{generation: o.Generation, deleting: o.DeletionTimestamp != nil, labels: o.Labels, annotations: o.Annotations}
}

func (m mark) equal(n mark) bool {
	return m.generation == n.generation && m.deleting == n.deleting &&
		maps.Equal(m.labels, n.labels) && maps.Equal(m.annotations, n.annotations)
}

// nextSpec decides the next step of a work towards the broker.
func (c *Core) nextSpec(w *work) Effect {
	cl := c.clusters[w.cluster]
	switch {
	case w.spec.busy || w.seen == nil:
		return nil
	case w.gone:
		return c.nextGone(w, cl)
	case w.confirmed || !c.mayTell(cl):
		return nil
	}
	o := c.current(w)
	m := markOf(o)
	large := isLarge(o)
	switch {
	case large && !m.deleting:
		c.setBlame(w, blame{known: true, spec: tooLarge(o), status: w.blame.status})
		c.noLongerBehind(w)
		c.notAccepted(w)
		c.wake(HubLane, w, 0)
		return nil
	case w.spec.sentOn == c.conn && w.spec.sent.equal(m):
		w.spec.sent = m // lets go of an older object's maps
		return c.nextSettled(w, o)
	case m.deleting:
		c.withdraw(w)
	case !c.cleared(w, cl):
		if w.spec.sentOn == c.conn {
			// It was accepted as something else, and no change was seen since: what was
			// read of the hub then is there no more.
			c.judgeAgain(w)
		}
		return nil
	}
	return c.nextPublish(w, cl, o, large)
}

// nextSettled decides about a work that the broker has as it is. It keeps its
// finalizer: somebody may have removed it, or a restore of the hub.
func (c *Core) nextSettled(w *work, o *workv1.ManifestWork) Effect {
	c.accepted(w) // it may have been gone for a moment
	if o.DeletionTimestamp != nil || hasFinalizer(o) || !c.due(SpecLane, Key{UID: w.uid}, &w.spec.retry) {
		return nil
	}
	w.spec.busy = true
	return AddFinalizer{Work: o}
}

// nextPublish decides about a state of a work that the broker is to be told.
func (c *Core) nextPublish(w *work, cl *cluster, o *workv1.ManifestWork, large bool) Effect {
	m := markOf(o)
	switch {
	case c.stillRefused(w, m) || !c.mayPublish(w):
		return nil
	case m.deleting && (cl.comparing.missesName(o.Name) || cl.comparing.withholdsName(o.Name)):
		return nil // what has the name goes first
	case w.spec.behind != nil && !w.spec.behind.confirmed:
		w.spec.busy = true
		return CheckBehind{Work: o}
	case w.spec.behind != nil && !c.doubtKept(w):
		return nil
	case !m.deleting && !hasFinalizer(o):
		w.spec.busy = true
		return AddFinalizer{Work: o}
	case !m.deleting && !c.alive(w, cl):
		return nil
	}
	return c.publish(w, cl, o, large)
}

// mayTell reports whether the broker may be told of the cluster's works now.
func (c *Core) mayTell(cl *cluster) bool { return cl.selected && !cl.leaving() && c.connected }

// nextGone decides about a work that left the hub.
func (c *Core) nextGone(w *work, cl *cluster) Effect {
	switch {
	case !c.owesDeletion(w, cl):
		if !w.report.busy {
			c.forget(w)
		}
		return nil
	case w.missing && c.cfg.NewID != nil && (!c.connected || c.comparison.on):
		c.nextGoneMissing(w, cl)
		return nil
	case !cl.selected: // it may be selected again before it is released
		return nil
	case !c.due(SpecLane, Key{UID: w.uid}, &w.spec.retry):
		return nil
	}
	o := c.current(w)
	if !w.goneChecked {
		w.spec.busy = true
		return CheckGone{Work: o}
	}
	if !c.mayTell(cl) || !c.mayPublish(w) {
		return nil
	}
	if o.DeletionTimestamp == nil {
		copied := *o
		copied.DeletionTimestamp = &metav1.Time{Time: w.goneAt}
		o = &copied
	}
	return c.publish(w, cl, o, isLarge(o))
}

// missingDelay is how long a comparison waits after a work was missing from a
// list, so that all that the list says is known by then.
const missingDelay = 5 * time.Second

// nextGoneMissing leaves a work whose deletion nobody saw to the comparison,
// which has a way to see whether the hub is to be believed.
func (c *Core) nextGoneMissing(w *work, cl *cluster) {
	k := &cl.comparing
	early := k.stage == wantsDigest || k.stage == wantsTags // the work is let go then
	if !c.connected || early || w.report.busy {
		return
	}
	c.compareAgain(cl, missingDelay)
	c.forget(w)
}

// owesDeletion reports whether the broker may hold a work that left the hub,
// and has not been told so.
func (c *Core) owesDeletion(w *work, cl *cluster) bool {
	announced := w.spec.sentOn != 0 && w.spec.sent.deleting
	published := w.spec.attempted || hasFinalizer(c.current(w))
	released := !cl.selected && !cl.mustRelease && !cl.releasing
	return published && !announced && !released && !w.confirmed
}

// stillRefused reports whether m is what the broker refused and there is no
// reason yet to ask again.
func (c *Core) stillRefused(w *work, m mark) bool {
	if w.spec.refusedOn != c.conn || !w.spec.refused.equal(m) {
		return false
	}
	if w.spec.tryAgain.IsZero() {
		return true
	}
	d := w.spec.tryAgain.Sub(c.cfg.Now())
	if d > 0 {
		c.wake(SpecLane, w, d)
	}
	return d > 0
}

// mayPublish reports whether neither the work nor the broker has to wait.
func (c *Core) mayPublish(w *work) bool {
	if d := c.pausedUntil.Sub(c.cfg.Now()); d > 0 {
		c.wake(SpecLane, w, d)
		return false
	}
	return c.due(SpecLane, Key{UID: w.uid}, &w.spec.retry)
}

// publish publishes the current state of a work. A broker that knows of its
// deletion takes a create_request for a new life. What the informer shows is no
// evidence of one: it may lag, also behind a deletion that an earlier process
// saw to its end. So it takes the hub's word, of now.
func (c *Core) publish(w *work, cl *cluster, o *workv1.ManifestWork, slim bool) Effect {
	p := Publish{Work: o, Action: codec.UpdateRequest, Slim: slim, Order: c.nextOrder(), mark: markOf(o), conn: c.conn, backs: c.backs}
	p.Unversioned = p.mark.deleting && w.spec.staleRuns > 0
	p.Held = p.mark.deleting && w.spec.elsewhere
	b := w.spec.behind
	switch {
	case p.mark.deleting:
		p.Action = codec.DeleteRequest
	case w.spec.fresh, b != nil, !c.comparison.on && w.spec.sentOn != c.conn:
		p.Action = codec.CreateRequest
	}
	if b != nil && !p.mark.deleting {
		p.Supersedes = b.Revision
	}
	w.spec.busy, w.spec.attempted = true, true
	cl.inFlight++
	return p
}

func (c *Core) doneAddFinalizer(e AddFinalizer, r Result) {
	w := c.works[e.Work.UID]
	w.spec.busy = false
	switch {
	case r.Err == nil:
		w.spec.retry = retry{}
		w.spec.fresh, w.spec.alive = w.spec.fresh || !w.spec.attempted, true
		c.wrote(w, r.Work)
	default:
		c.hubFailed(SpecLane, Key{UID: w.uid}, &w.spec.retry, r.Err)
	}
}

func (c *Core) doneCheckGone(e CheckGone, r Result) {
	w := c.works[e.Work.UID]
	w.spec.busy = false
	switch {
	case !w.gone:
		// It came back in the meantime.
	case apierrors.IsNotFound(r.Err), r.Err == nil && r.Work.UID != w.uid:
		w.goneChecked = true
		w.spec.retry = retry{}
	case r.Err == nil:
		c.fetched(r.Work)
		c.askFor(w) // its report was dropped
	default:
		c.hubFailed(SpecLane, Key{UID: w.uid}, &w.spec.retry, r.Err)
	}
}

func (c *Core) donePublish(e Publish, r Result) {
	w, cl := c.works[e.Work.UID], c.clusters[e.Work.Namespace]
	w.spec.busy = false
	cl.inFlight--
	if cl.inFlight == 0 && cl.mustRelease {
		c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
	}
	if !cl.selected {
		c.wake(SpecLane, w, 0)
		return
	}
	if r.Err != nil {
		c.publishUncertain(w, e)
	}
	switch {
	case r.Err == nil && r.Receipt.Outcome == codec.OutcomeStale:
		c.publishStale(w, e)
	case r.Err == nil:
		c.publishAccepted(w, e, r.Receipt.Outcome)
	case transport.CodeOf(r.Err) == transport.CodeConflict && w.gone: // what has its name by now is not older
		c.publishRefused(w, e, r.Err)
	case transport.CodeOf(r.Err) == transport.CodeConflict && e.conn == c.conn:
		c.conflicted(w)
	case transport.Retryable(r.Err):
		c.publishFailed(w, e, r.Err)
	default:
		c.publishRefused(w, e, r.Err)
	}
	c.wake(SpecLane, w, 0)
	c.wake(HubLane, w, 0)
}

// publishUncertain takes it that a publish may have reached the broker all the
// same: what was accepted before it may be what the broker has no longer, also
// if the work is as it was then, on a hub that went back in time.
func (c *Core) publishUncertain(w *work, e Publish) {
	if s := &w.spec; s.sentOn == c.conn && !s.sent.equal(e.mark) {
		s.sent, s.clearedOn = mark{}, c.conn
	}
}

func (c *Core) publishAccepted(w *work, e Publish, outcome string) {
	s := &w.spec
	if e.backs != c.backs {
		return // published once more, as it is now
	}
	s.sent, s.sentOn, s.refusedOn, s.staleRuns, s.retry = e.mark, e.conn, 0, 0, retry{}
	s.fresh, s.request = false, c.requests
	s.tagged = mark{} // what the broker has now may have other finalizers than what was tagged
	c.setBlame(w, blame{known: true, status: w.blame.status})
	switch p := w.report.pending; {
	case e.mark.deleting && outcome == codec.OutcomeConfirmed:
		w.confirmed = true
	case !e.mark.deleting && p != nil && p.Deleted:
		c.dropReport(w) // the broker has the work, so that end was one of an earlier life
	}
	if e.conn != c.conn {
		return
	}
	c.noLongerBehind(w)
	s.replaces = s.replaces && e.mark.deleting
	c.accepted(w)
	c.compareName(w, e.Work.Name) // what had the name is no more
}

// compareName has the broker asked once more what it has on a cluster, if a work that
// the hub lacks had the name there.
func (c *Core) compareName(w *work, name string) {
	cl := c.clusters[w.cluster]
	if cl.comparing.missesName(name) || cl.comparing.withholdsName(name) {
		c.compareAgain(cl, 0)
	}
}

// publishFailed plans the next attempt of a publish that may succeed later.
func (c *Core) publishFailed(w *work, e Publish, err error) {
	if e.conn != c.conn {
		return // the new connection starts afresh
	}
	c.brokerFailed(Key{UID: w.uid}, &w.spec.retry, err)
	c.compareName(w, e.Work.Name) // it may have been accepted, and what had the name is no more
}

// publishRefused takes a refusal that stays until something changes.
func (c *Core) publishRefused(w *work, e Publish, err error) {
	if w.gone && e.mark.deleting {
		w.confirmed = true // nobody is left to tell; the shell has logged it
		c.accepted(w)
		return
	}
	if e.mark.deleting && transport.CodeOf(err) == transport.CodeAlreadyExists {
		// Another source has the name on this cluster, so this work never
		// became a record: there is nothing to clean up.
		w.confirmed = true
		c.accepted(w)
		return
	}
	c.refuse(w, e)
	c.setBlame(w, blame{known: true, spec: refusal(e.Work, err), status: w.blame.status})
	if code := transport.CodeOf(err); code == transport.CodeTooLarge || code == transport.CodeInvalid {
		w.spec.tryAgain = time.Time{}
	}
}

// shownStaleRuns is after how many comparisons that did not help a work says
// that it is not delivered.
const shownStaleRuns = 3

// publishStale takes the answer that the broker has a newer version. Right
// after a change of leaders the informer may lag; if it persists, the hub went
// back in time, and the comparison finds out. Where there is none, a spec is
// given up. A deletion is sent without a version: that the work goes does not
// depend on how often it was changed.
func (c *Core) publishStale(w *work, e Publish) {
	w.spec.staleRuns++
	w.spec.sentOn = 0
	c.notAccepted(w)
	switch {
	case c.comparison.on && e.conn == c.conn && !e.mark.deleting:
		if w.spec.staleRuns >= shownStaleRuns {
			c.setBlame(w, blame{known: true, spec: staleSpec(e.Work), status: w.blame.status})
		}
		w.spec.clearedOn = 0
		c.compareAgain(c.clusters[w.cluster], 0)
		return
	case w.spec.staleRuns == 1 || w.gone:
		c.failed(SpecLane, Key{UID: w.uid}, &w.spec.retry, time.Second)
		return
	}
	c.refuse(w, e)
	c.setBlame(w, blame{known: true, spec: staleSpec(e.Work), status: w.blame.status})
}

func (c *Core) refuse(w *work, e Publish) {
	c.notAccepted(w)
	w.spec.refused, w.spec.refusedOn, w.spec.retry = e.mark, e.conn, retry{}
	w.spec.tryAgain = c.cfg.Now().Add(refusedDelay/2 + time.Duration(c.cfg.Jitter()*float64(refusedDelay/2)))
}

func hasFinalizer(o *workv1.ManifestWork) bool {
	return slices.Contains(o.Finalizers, workv1.ManifestWorkFinalizer)
}
