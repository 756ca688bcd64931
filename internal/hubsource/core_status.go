package hubsource

import (
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Report is what an agent says about one work.
type Report struct {
	UID           types.UID
	Cluster, Name string
	// Version is the generation the report is about, 0 when it has none.
	Version int64
	// Sequence orders the reports of one work, decimal.
	Sequence string
	// Hash is the agent's hash of Status; may be "".
	Hash string
	// Deleted: nothing of the work is left on the cluster.
	Deleted bool
	Status  workv1.ManifestWorkStatus
}

// Verdict says what became of a [Report].
type Verdict string

// The verdicts, as the metric names them.
const (
	// Taken: it is held and will be written, if it differs.
	Taken Verdict = "taken"
	// Stale: a newer report was taken before, or one about a newer generation.
	Stale Verdict = "stale"
	// Ignored: it means nothing for this work.
	Ignored Verdict = "ignored"
	// NotDeleting: it says that a work is deleted which the hub does not delete;
	// told once per work, then Ignored.
	NotDeleting Verdict = "not_deleting"
	// Incomparable: its sequence id cannot be ordered; it is dropped.
	Incomparable Verdict = "incomparable"
)

// reportState is the way of one work's status to the hub.
type reportState struct {
	busy bool
	// pending waits for its patch; a newer report replaces it.
	pending *Report
	// sequence and version are the highest taken from this process on. After a
	// restart the generations in the conditions on the hub stand in for version.
	sequence string
	version  int64
	warned   bool // NotDeleting was told
	retry    retry
	// held is the part of the stream whose cursor waits for the report, or for
	// the end that it brought about; see stream.
	held *segment
	// early is when the informer was found to lag behind the pending report.
	early time.Time
}

// Report takes a report. The core keeps r and never changes it. When it returns
// Taken the report is not lost as long as the process lives; after that, the
// next resync brings it again.
func (c *Core) Report(r *Report) Verdict {
	w := c.addressee(r)
	if w == nil {
		return Ignored
	}
	if r.Deleted {
		return c.reportDeleted(w, r)
	}
	s := &w.report
	newer, err := codec.CompareSequence(s.sequence, r.Sequence)
	switch {
	case err != nil:
		c.forgetUnseen(w)
		return Incomparable
	case !newer, r.Version != 0 && r.Version < c.reportedVersion(w):
		return Stale
	}
	s.sequence, s.version = r.Sequence, max(s.version, r.Version)
	c.keepReport(w, r)
	return Taken
}

// addressee returns the work that a report is about, nil when it means nothing.
func (c *Core) addressee(r *Report) *work {
	w := c.works[r.UID]
	if w == nil {
		if cl := c.clusters[r.Cluster]; (cl == nil || !cl.selected) && !c.cfg.All {
			return nil
		}
		w = c.work(r.UID, r.Cluster)
	}
	if w.cluster != r.Cluster || w.gone || w.confirmed || !c.clusters[w.cluster].selected {
		return nil
	}
	return w
}

// reportDeleted takes the word that the cluster is rid of the work. Where
// nobody is left to say so, or an operator gave the work up, the broker says it
// in the agent's place: its sequence id is not newer than the agent's last one.
func (c *Core) reportDeleted(w *work, r *Report) Verdict {
	if cl := c.clusters[w.cluster]; cl.comparing.later || cl.comparing.withholds(string(r.UID)) {
		c.compareAgain(cl, 0) // what waited does no longer; an operator had it deleted
	}
	o := c.current(w)
	switch {
	case o != nil && o.DeletionTimestamp != nil:
		c.hold(w)
		c.confirm(w)
		return Taken
	case o == nil || r.Version > o.Generation || r.Version == 0:
		c.keepReport(w, r) // the informer may lag behind an earlier leader's
		return Taken
	}
	w.spec.alive = false // the informer may lag behind the end, which the broker forgets now
	if w.report.warned {
		return Ignored
	}
	w.report.warned = true
	return NotDeleting
}

// confirm takes it that nothing of a work is left on its cluster. The cursor
// goes on waiting, for the finalizer now.
func (c *Core) confirm(w *work) {
	w.confirmed = true
	c.accepted(w)
	if w.report.pending != nil {
		c.pending--
		w.report.pending = nil
	}
	c.wake(HubLane, w, 0)
}

// reportedVersion is the newest generation that a report was about, in so far as
// the hub has it: one that went back in time begins again below.
func (c *Core) reportedVersion(w *work) int64 {
	o := c.current(w)
	if o == nil {
		return w.report.version
	}
	v := w.report.version
	if w.report.pending == nil {
		for _, cond := range o.Status.Conditions {
			if !isDelivered(cond) {
				v = max(v, cond.ObservedGeneration)
			}
		}
	}
	return min(v, o.Generation)
}

func (c *Core) keepReport(w *work, r *Report) {
	if w.report.pending == nil {
		c.pending++
	}
	c.hold(w)
	w.report.pending, w.report.early = r, time.Time{}
	if w.blame.status != nil { // of the report before
		c.setBlame(w, blame{known: w.blame.known, spec: w.blame.spec})
	}
	c.wake(HubLane, w, 0)
}

func (c *Core) dropReport(w *work) {
	if w.report.pending != nil {
		c.pending--
		w.report.pending = nil
		c.letGo(w)
	}
}

// loseReport drops a report that was not written because nobody served its
// work. Should the work be served again, it is asked for, and taken once more.
func (c *Core) loseReport(w *work) {
	if w.report.pending != nil {
		w.report.sequence = ""
		c.dropReport(w)
	}
}

// forgetUnseen drops a work of which nothing but a report is known.
func (c *Core) forgetUnseen(w *work) {
	if w.seen == nil && w.report.pending == nil && !w.report.busy {
		c.forget(w)
	}
}

// nextHub decides the next write of a work on the hub.
func (c *Core) nextHub(w *work) Effect {
	switch {
	case w.report.busy || w.gone:
		return nil
	case w.seen == nil:
		return c.nextLookup(w, Key{UID: w.uid})
	}
	o := c.current(w)
	if p := w.report.pending; p != nil && p.Deleted && o.DeletionTimestamp != nil {
		c.confirm(w)
	}
	if w.confirmed {
		return c.nextEnd(w, o)
	}
	if e := c.nextEarly(w, o); e != nil {
		return e
	}
	r := c.ready(w, o)
	if r == nil && !c.deliveredMayDiffer(w, o) {
		return c.nextCleanUp(w, o)
	}
	status := c.desired(w, o, r)
	if apiequality.Semantic.DeepEqual(status, o.Status) {
		if r != nil {
			c.dropReport(w)
		}
		if _, expires := c.expires(w, o); !expires { // else the back-off is of that
			w.report.retry = retry{}
		}
		return c.nextCleanUp(w, o)
	}
	if !c.due(HubLane, Key{UID: w.uid}, &w.report.retry) {
		return nil
	}
	w.report.busy = true
	return PatchStatus{Work: o, Status: status, report: r}
}

// nextEnd decides about a work whose deletion is confirmed.
func (c *Core) nextEnd(w *work, o *workv1.ManifestWork) Effect {
	if o.DeletionTimestamp != nil && !hasFinalizer(o) {
		c.letGo(w)
	}
	if o.DeletionTimestamp == nil || !hasFinalizer(o) || !c.due(HubLane, Key{UID: w.uid}, &w.report.retry) {
		return nil
	}
	w.report.busy = true
	return RemoveFinalizer{Work: o}
}

// nextLookup decides about a report whose work the informer does not have.
func (c *Core) nextLookup(w *work, key Key) Effect {
	p := w.report.pending
	if p == nil {
		c.forgetUnseen(w)
		return nil
	}
	if !c.due(HubLane, key, &w.report.retry) {
		return nil
	}
	w.report.busy = true
	return Lookup{UID: w.uid, Namespace: p.Cluster, Name: p.Name, about: p}
}

// informerPatience bounds how long a report about something that the informer has not
// seen waits for it, before the hub is asked.
const informerPatience = 3 * time.Second

// isEarly reports whether a report is about something that the hub does not
// have yet, as far as the informer has seen.
func isEarly(p *Report, o *workv1.ManifestWork) bool {
	return p != nil && (p.Version > o.Generation || p.Deleted && o.DeletionTimestamp == nil)
}

// nextEarly decides about a report about something that the informer has not
// seen. It waits a while, then the hub itself says whether it ever will: after
// a hub went back in time there is nothing to wait for, and what the cluster
// makes of the older state it reports again.
func (c *Core) nextEarly(w *work, o *workv1.ManifestWork) Effect {
	p := w.report.pending
	if !isEarly(p, o) {
		return nil
	}
	now := c.cfg.Now()
	if w.report.early.IsZero() {
		w.report.early = now
	}
	if d := w.report.early.Add(informerPatience).Sub(now); d > 0 {
		c.wake(HubLane, w, d)
		return nil
	}
	if !c.due(HubLane, Key{UID: w.uid}, &w.report.retry) {
		return nil
	}
	w.report.busy = true
	return Lookup{UID: w.uid, Namespace: o.Namespace, Name: o.Name, about: p}
}

// ready returns the report to write now.
func (c *Core) ready(w *work, o *workv1.ManifestWork) *Report {
	if isEarly(w.report.pending, o) {
		return nil
	}
	return w.report.pending
}

// deliveredMayDiffer is a cheap look at whether the condition Delivered has to
// be written or removed.
func (c *Core) deliveredMayDiffer(w *work, o *workv1.ManifestWork) bool {
	if w.blame.problem() != nil {
		return true
	}
	return w.blame.known && slices.ContainsFunc(o.Status.Conditions, isDelivered)
}

// desired is the status the work should have on the hub.
func (c *Core) desired(w *work, o *workv1.ManifestWork, r *Report) workv1.ManifestWorkStatus {
	status := o.Status
	if r != nil {
		status = r.Status
		status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), func(c metav1.Condition) bool {
			return c.Type == manifestwork.ConditionDeleted // a word between agent and source, never shown
		})
	}
	now := metav1.NewTime(c.cfg.Now().Truncate(1e9))
	status.Conditions = withDelivered(status.Conditions, o.Status.Conditions, w.blame, now)
	return status
}

func (c *Core) donePatchStatus(e PatchStatus, r Result) {
	w := c.works[e.Work.UID]
	w.report.busy = false
	switch {
	case r.Err == nil:
		w.report.retry = retry{}
		c.wrote(w, r.Work)
		c.written(w, e.report)
	case apierrors.IsNotFound(r.Err):
		c.written(w, e.report)
		c.hubFailed(HubLane, Key{UID: w.uid}, &w.report.retry, r.Err)
	case e.report != nil && rejected(r.Err):
		c.written(w, e.report)
		c.setBlame(w, blame{known: w.blame.known, spec: w.blame.spec, status: newProblem(e.Work, ReasonStatusRejected,
			"the hub does not take the status that the cluster reported, the one shown is older: "+r.Err.Error())})
	default:
		c.hubFailed(HubLane, Key{UID: w.uid}, &w.report.retry, r.Err)
	}
	c.afterHub(w)
}

// written drops a report unless a newer one took its place.
func (c *Core) written(w *work, r *Report) {
	if r != nil && w.report.pending == r {
		c.dropReport(w)
	}
}

func (c *Core) doneRemoveFinalizer(e RemoveFinalizer, r Result) {
	w := c.works[e.Work.UID]
	w.report.busy = false
	switch {
	case r.Err == nil:
		w.report.retry = retry{}
		c.wrote(w, r.Work)
		c.letGo(w)
	case apierrors.IsNotFound(r.Err):
		c.letGo(w)
		c.hubFailed(HubLane, Key{UID: w.uid}, &w.report.retry, r.Err)
	default:
		c.hubFailed(HubLane, Key{UID: w.uid}, &w.report.retry, r.Err)
	}
	c.afterHub(w)
}

func (c *Core) doneLookup(e Lookup, r Result) {
	w := c.works[e.UID]
	w.report.busy = false
	switch {
	case apierrors.IsNotFound(r.Err), r.Err == nil && r.Work.UID != e.UID:
		if w.seen == nil {
			if !e.about.Deleted { // so the broker has a work that the hub has not
				c.compareAgain(c.clusters[w.cluster], missingDelay)
			}
			c.forget(w)
			return
		}
		w.spec.alive = false
		c.dropReport(w) // the informer is about to say that the work is gone
	case r.Err != nil, w.seen == nil: // the hub does not answer, or the informer will have it
		c.hubFailed(HubLane, Key{UID: e.UID}, &w.report.retry, r.Err)
	case !w.gone:
		w.report.retry, w.report.early = retry{}, time.Time{}
		c.wrote(w, r.Work)
		if p := w.report.pending; p == e.about && isEarly(p, r.Work) {
			if p.Deleted { // so the broker has the work no longer
				w.spec.sentOn = 0
				c.notAccepted(w)
				c.compareAgain(c.clusters[w.cluster], 0)
				c.wake(SpecLane, w, 0)
			}
			c.dropReport(w) // the hub does not have what it is about, and did once
		}
		c.wake(HubLane, w, 0)
	}
	c.afterHub(w)
}

// afterHub lets a work go whose end waited for a write.
func (c *Core) afterHub(w *work) {
	if w.gone {
		c.wake(SpecLane, w, 0)
	}
}

// rejected reports whether the hub will never take what it was given.
func rejected(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}
