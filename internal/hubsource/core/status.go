package core

import (
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
	workv1alpha1 "open-cluster-management.io/api/work/v1alpha1"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Report is what an agent says about one work.
type Report struct {
	UID           types.UID
	Cluster, Name string
	// Version is the generation the report is about, 0 when it has none.
	Version int64
	// Unversioned: the agent got the work without a version, and orders it so.
	Unversioned bool
	// Sequence orders the reports of one work, decimal.
	Sequence string
	// Hash is the agent's hash of Status; may be "".
	Hash string
	// Revision is that of the broker's store at which it was taken, 0 from a stock
	// broker.
	Revision uint64
	// Deleted: nothing of the work is left on the cluster.
	Deleted bool
	Status  workv1.ManifestWorkStatus
	// Source is whose work it is, as the agent knows it. Marks are those of the event.
	Source string
	Stamp  sessionfence.Stamp
	// Size is that of Status, in bytes as it came.
	Size int
}

// ReportResult says what became of a [Report].
type ReportResult string

// The verdicts, as the metric names them.
const (
	// Taken: it is held and will be written, if it differs.
	Taken ReportResult = "taken"
	// Stale: a newer report was taken before, or one about a newer generation.
	Stale ReportResult = "stale"
	// Ignored: it means nothing for this work.
	Ignored ReportResult = "ignored"
	// UnexpectedDeletion: it says that a work is deleted which the hub does not delete;
	// told once per work, then Ignored.
	UnexpectedDeletion ReportResult = "unexpected_deletion"
	// PreviousSession: it was said to an earlier session of this source, or in an earlier one of the
	// agent. It is asked for again.
	PreviousSession ReportResult = "previous_session"
	// Foreign: it is about another source's work, or one of another cluster.
	Foreign ReportResult = "foreign"
	// Incomparable: its sequence id cannot be ordered; it is dropped.
	Incomparable ReportResult = "incomparable"
)

// statuses is the way of the clusters' reports to the hub.
type statuses struct {
	f         *workIndex
	questions *hubQueries
	compare   *clusterSync
	cursor    *cursor
	responder *agentResponder
}

// reportState is the way of one work's status to the hub.
type reportState struct {
	// pending waits for its patch; a newer report replaces it. came is when.
	pending *Report
	came    int
	// sequence and version are the highest taken from this process on. After a
	// restart the generations in the conditions on the hub stand in for version.
	// revision is that of the report which was taken last.
	sequence string
	revision uint64
	version  int64
	last     int64         // what the last one was about
	session  codec.Session // of the agent whose sequence that is
	warned   bool          // UnexpectedDeletion was told
	retry    retry
	// queued is the number of the part of the stream whose cursor waits for the report, or
	// for the end that it brought about, 0 for none; see cursor.
	queued int
	// early is since when the pending report waits for something that the hub has
	// not shown yet.
	early  time.Time
	denial denial
	// expiry is when a completed work is to be deleted by the clock, over is when this process does so.
	expiry, over time.Time
}

// What the reports of one cluster may have the hub write. Beyond that they wait, and of each
// work the latest is written then: a hub that takes all that one cluster reports has no time
// for the others.
var (
	writesEach = fair.Rate{PerSecond: 100, Burst: 1000}
	bytesEach  = fair.Rate{PerSecond: 4 << 20, Burst: 32 << 20}
)

// clusterWriteBudget is what the reports of one cluster have had.
type clusterWriteBudget struct{ writes, bytes fair.Bucket }

// nextAt is when it has room for a report.
func (b *clusterWriteBudget) nextAt(size int, now time.Time) time.Time {
	return now.Add(max(b.writes.Reserve(writesEach, now, 1), b.bytes.Reserve(bytesEach, now, float64(size))))
}

// changed takes it that the hub shows another state of the work; first: for the
// first time.
func (r *reportState) changed(first bool) {
	if first {
		r.retry.wait(time.Time{}, false)
	}
	r.denial.changed()
	r.retry.changed()
}

// noteSession takes the session of the agent that reports: in another one its sequence begins anew.
func (r *reportState) noteSession(s codec.Session) {
	if r.session != s {
		r.session, r.sequence = s, ""
	}
}

// take takes a report that is newer than those before.
func (r *reportState) take(now *Report) {
	r.sequence, r.revision, r.version, r.last = now.Sequence, now.Revision, max(r.version, now.Version), now.Version
	if now.Unversioned {
		r.last = 0
	}
}

// forgetSequence takes it that reports begin anew: the broker has no record of
// the work, so whatever comes is about one that is still to be made.
func (r *reportState) forgetSequence() { r.sequence = "" }

// letGo ends that the cursor waits for the work.
func (r *reportState) letGo(c *cursor) {
	if n := r.queued; n != 0 {
		r.queued = 0
		c.letGo(n)
	}
}

// clear lets no report wait any more.
func (r *reportState) clear(f *workIndex) {
	if r.pending != nil {
		r.pending = nil
		f.wait(false)
	}
}

// drop lets go of the pending report, and of the cursor.
func (r *reportState) drop(f *workIndex, c *cursor) {
	r.clear(f)
	r.letGo(c)
}

// hold keeps the cursor back until the work's report is dealt with.
func (r *reportState) hold(c *cursor) {
	n := c.hold()
	r.letGo(c)
	r.queued = n
}

// receive takes a report.
func (s *statuses) receive(r *Report) ReportResult {
	cl := s.f.clusters[r.Cluster]
	if cl == nil || !cl.selected {
		return Ignored
	}
	w := s.f.works[r.UID]
	if s.responder.isForeign(w, cl, r) {
		return Foreign
	}
	if w == nil {
		w = s.f.add(r.UID, cl)
	}
	w.report.noteSession(r.Stamp.Session)
	switch {
	case w.cl != cl, w.hub.ended != alive:
		return Ignored
	case r.Deleted: // once more, of a later deletion
		return s.reportDeleted(w, r)
	case w.broker.on(s.f.sub) == confirmedDeleted:
		return Ignored
	}
	newer, err := s.isNewer(w, r)
	switch {
	case err != nil:
		s.forgetUnseen(w)
		return Incomparable
	case !newer, r.Version != 0 && r.Version < reportedVersion(w):
		return Stale
	}
	w.report.take(r)
	if took, first := w.turnaround.Reported(r.Version, s.f.Now()); first && s.f.Answered != nil {
		s.f.Answered(took)
	}
	if s.compare.nameIsQueued(cl, r.Name) && !cl.comparing.missing.has(string(r.UID)) {
		s.compare.repeat(cl, 0) // what had the name is no more: a publish came late and took it
	}
	s.keep(w, r)
	s.responder.noteReport(w)
	return Taken
}

// isNewer reports whether a report is newer than the one that was taken last. As in the broker,
// an id that nobody makes now is no measure: a clock was days ahead when it was made. Then that
// report is newer which the broker took later.
func (s *statuses) isNewer(w *work, r *Report) (bool, error) {
	if last := &w.report; last.sequence != "" && r.Revision > last.revision && !mayBeMade(last.sequence, s.f.Now()) {
		return true, nil
	}
	return codec.CompareSequence(w.report.sequence, r.Sequence)
}

// mayBeMade reports whether an agent may make such an id now.
func mayBeMade(id string, now time.Time) bool { return codec.CheckSequence(id, now) == nil }

// reportDeleted takes the word that the cluster is rid of the work. Where
// nobody is left to say so, or an operator gave the work up, the broker says it
// in the agent's place: its sequence id is not newer than the agent's last one.
func (s *statuses) reportDeleted(w *work, r *Report) ReportResult {
	if w.spec.redelivery.went == publishLastSpec {
		return PreviousSession // it answers a deletion of an earlier process, and the last spec may have come behind it
	}
	w.cl.gone(w.uid)
	if m := &w.cl.comparing.missing; m.later || m.withholds(string(r.UID)) {
		s.compare.repeat(w.cl, 0) // what waited does no longer; an operator had it deleted
	}
	o := w.hub.object
	if o != nil && o.DeletionTimestamp != nil {
		return s.confirm(w, r)
	}
	// The informer may lag behind the end, or the hub went back: the broker is about to
	// forget the work.
	if w.broker.answer(s.f.sub, isAbsent, specFingerprint{}, r.Revision, s.f.tick()) {
		s.f.recount(w)
		s.f.wake(BrokerQueue, w.key(), 0)
	}
	if o == nil || r.Version > o.Generation || r.Version == 0 {
		s.keep(w, r) // the informer may lag behind an earlier leader's
		return Taken
	}
	if w.report.warned {
		return Ignored
	}
	w.report.warned = true
	return UnexpectedDeletion
}

// confirm takes it that nothing of a work is left on its cluster. The cursor goes on
// waiting, for the finalizer now. A report that is older than what the broker said
// since is about an earlier deletion, as of a work that a restore of the hub brought
// back.
func (s *statuses) confirm(w *work, r *Report) ReportResult {
	if !w.broker.answer(s.f.sub, confirmedDeleted, w.hub.fingerprint(), r.Revision, s.f.tick()) {
		w.report.drop(s.f, s.cursor)
		return Stale
	}
	w.report.hold(s.cursor)
	w.report.clear(s.f)
	s.f.recount(w)
	s.f.hurry(HubQueue, w)
	return Taken
}

// subscribe begins anew with a subscription: that a work is deleted, the broker says
// once more.
func (s *statuses) subscribe(w *work) {
	if p := w.report.pending; p != nil && p.Deleted {
		w.report.drop(s.f, s.cursor)
	}
}

// reportedVersion is the newest generation that a report was about, in so far as
// the hub has it.
func reportedVersion(w *work) int64 {
	o, v := w.hub.object, w.report.version
	if o == nil {
		return v
	}
	if w.report.pending == nil {
		v = max(v, answered(o.Status.Conditions))
	}
	return min(v, o.Generation)
}

func (s *statuses) keep(w *work, r *Report) {
	if w.report.pending == nil {
		s.f.wait(true)
	}
	w.report.hold(s.cursor)
	w.report.pending, w.report.came, w.report.early = r, s.f.tick(), time.Time{}
	s.f.setStatusProblem(w, nil) // of the report before
	s.f.wake(HubQueue, w.key(), 0)
}

// dropReports drops a report that was not written because nobody served its work.
// Should the work be served again, it is asked for, and taken once more.
func (s *statuses) dropReports(w *work) {
	if w.report.pending != nil {
		w.report.sequence = ""
	}
	w.report.drop(s.f, s.cursor)
}

// forgetUnseen drops a work of which nothing but a report is known.
func (s *statuses) forgetUnseen(w *work) {
	if w.hub.object == nil && w.report.pending == nil {
		s.compare.forget(w)
	}
}

// next decides the next write of a work on the hub.
func (s *statuses) next(w *work) *todo {
	o := w.hub.object
	if o == nil {
		return s.nextUnseen(w)
	}
	if w.hub.ended != alive {
		return nil
	}
	if p := w.report.pending; p != nil && p.Deleted && o.DeletionTimestamp != nil {
		s.confirm(w, p)
	}
	if w.broker.on(s.f.sub) == confirmedDeleted {
		return s.nextEnd(w, o)
	}
	s.responder.updateAgentProblem(w)
	s.retryRefused(w)
	r := s.fitting(w, o, s.ready(w, o))
	status, news := o.Status, false
	if r != nil || deliveredMayDiffer(w) {
		status, news = s.desired(w, o, r)
	}
	if !news {
		if w.report.pending == r { // without one, what waited for Delivered, or a confirmation that is none any more
			w.report.drop(s.f, s.cursor)
		}
		if _, expires := s.expires(w, o); !expires { // else the back-off is of that
			w.report.retry.reset()
		}
		return s.nextCleanUp(w, o)
	}
	if !s.mayWrite(w) {
		return nil
	}
	if r != nil {
		w.report.retry.plan(func() time.Time { return w.cl.budget.nextAt(r.Size, s.f.Now()) })
		if !s.f.due(HubQueue, w.key(), &w.report.retry) {
			return nil
		}
	}
	return s.patch(w, status, r)
}

// nextEnd decides about a work whose deletion is confirmed. An answer that is still to
// come may say that the broker has begun another one.
func (s *statuses) nextEnd(w *work, o *workv1.ManifestWork) *todo {
	if o.DeletionTimestamp != nil && !hasFinalizer(o) {
		w.report.letGo(s.cursor)
	}
	if o.DeletionTimestamp == nil || !hasFinalizer(o) || w.spec.isSending(s.f.sub) || !s.f.due(HubQueue, w.key(), &w.report.retry) {
		return nil
	}
	return s.questions.write(HubQueue, w, &w.report.retry, RemoveFinalizer{OfWork{o}}, func(err error) bool {
		if err == nil || apierrors.IsNotFound(err) || w.report.denial.Final(err, s.f.Now(), s.f.wroteAt) {
			w.report.letGo(s.cursor) // that it is deleted is told again to the next process
		}
		return true
	})
}

// nextUnseen decides about a report whose work the informer does not have.
func (s *statuses) nextUnseen(w *work) *todo {
	switch p := w.report.pending; {
	case p == nil:
		s.forgetUnseen(w)
	case w.hub.absent:
		if !p.Deleted { // so the broker has a work that the hub has not, or the agent has
			s.compare.repeat(w.cl, missingDelay)
			s.responder.trackListed(w.cl, w.uid, p.Name, p.Version)
		}
		w.report.drop(s.f, s.cursor)
		s.forgetUnseen(w)
	case !w.hub.querying:
		s.questions.query(w)
	}
	return nil
}

// informerPatience bounds how long a report about something that the informer has not
// seen waits for it, before the hub is asked.
const informerPatience = 3 * time.Second

// isEarly reports whether a report is about something that the hub does not
// have yet, as far as it has shown.
func isEarly(p *Report, o *workv1.ManifestWork) bool {
	return p.Version > o.Generation || p.Deleted && o.DeletionTimestamp == nil
}

// ready returns the report to write now. One about something that the hub has not
// shown waits a while, then the hub itself says whether it ever will: after it went
// back in time there is nothing to wait for, and what the cluster makes of the
// older state it reports again.
func (s *statuses) ready(w *work, o *workv1.ManifestWork) *Report {
	p := w.report.pending
	switch {
	case p == nil || !isEarly(p, o):
		return p
	case w.report.early.IsZero():
		w.report.early = s.f.Now()
		s.f.wake(HubQueue, w.key(), informerPatience)
		s.responder.reported(w, p)
	case w.hub.answered > w.report.came:
		if p.Deleted && !w.hub.absent { // so the broker has the work no longer
			w.broker.forget()
			s.f.recount(w)
			s.compare.repeat(w.cl, 0)
			s.f.wake(BrokerQueue, w.key(), 0)
		}
		w.report.drop(s.f, s.cursor) // the hub does not have what it is about, and did once
	case !s.f.until(HubQueue, w.key(), w.report.early.Add(informerPatience)) && !w.hub.querying:
		s.questions.query(w)
	}
	return nil
}

// deliveredMayDiffer is a cheap look at whether the condition Delivered has to
// be written or removed.
func deliveredMayDiffer(w *work) bool {
	return w.problems.problem() != nil || w.problems.known && slices.ContainsFunc(w.hub.object.Status.Conditions, isFault)
}

// desired is the status the work should have on the hub, and whether that is news there.
func (s *statuses) desired(w *work, o *workv1.ManifestWork, r *Report) (status workv1.ManifestWorkStatus, news bool) {
	status = o.Status
	if r != nil {
		status = r.Status
		status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), func(c metav1.Condition) bool {
			return c.Type == manifestwork.ConditionDeleted // a word between agent and source, never shown
		})
	}
	now := metav1.NewTime(s.f.Now().Truncate(1e9))
	status.Conditions = withDelivered(status.Conditions, o.Status.Conditions, w.problems, now)
	if news = !apiequality.Semantic.DeepEqual(status, o.Status); news {
		status.Conditions = withAnswer(status.Conditions, o.Generation, now)
	}
	return status, news
}

// patch writes a status; r is the report in it, nil when only the condition Delivered
// changes.
func (s *statuses) patch(w *work, status workv1.ManifestWorkStatus, r *Report) *todo {
	o := w.hub.object
	w.report.retry.goes()
	return s.questions.write(HubQueue, w, &w.report.retry, PatchStatus{OfWork{o}, status}, func(err error) bool {
		switch {
		case err == nil:
			if s.f.wroteAt = s.f.Now(); r != nil {
				w.report.denial = denial{}
			}
			s.written(w, r)
		case apierrors.IsNotFound(err):
			s.written(w, r)
		case w.report.denial.Final(err, s.f.Now(), s.f.wroteAt):
			s.refuse(w, o, r, err)
			return false
		}
		return true
	})
}

// written drops a report unless a newer one took its place.
func (s *statuses) written(w *work, r *Report) {
	if r != nil && w.report.pending == r {
		w.report.drop(s.f, s.cursor)
	}
}

// longestTTL is a time to live that nobody waits for; longer ones could not be
// added to a time.
const longestTTL = 100 * 365 * 24 * time.Hour

// expiry returns when a work is to be deleted because it has completed: the time
// at which it completed and its time to live. What a ManifestWorkReplicaSet made
// it looks after itself.
//
// Everything is read off the work, so that any leader comes to the same end.
func expiry(o *workv1.ManifestWork) (at time.Time, expires bool) {
	d := o.Spec.DeleteOption
	if d == nil || d.TTLSecondsAfterFinished == nil || o.DeletionTimestamp != nil {
		return at, false
	}
	if _, owned := o.Labels[workv1alpha1.ManifestWorkReplicaSetControllerNameLabelKey]; owned {
		return at, false
	}
	complete := meta.FindStatusCondition(o.Status.Conditions, workv1.WorkComplete)
	ttl := *d.TTLSecondsAfterFinished
	if complete == nil || complete.Status != "True" || ttl > int64(longestTTL/time.Second) {
		return at, false
	}
	return complete.LastTransitionTime.Add(time.Duration(max(ttl, 0)) * time.Second), true
}

// trustClock is how long a source lets pass before it believes its clock that the time of a work is over. What passes
// after it has seen that the work completed is measured, whatever the clock says meanwhile.
//
//	t1 a work with a day to live completes, t2 the hub's machine resumes, with a clock that is a year ahead,
//	therefore the work would be gone before the clock is set right
const trustClock = 10 * time.Minute

// expires returns when this source is to delete a work, if it is. A report that
// waits may say that the work is not complete any more, so it is written first.
func (s *statuses) expires(w *work, o *workv1.ManifestWork) (at time.Time, expires bool) {
	if !s.f.CleanUp || w.report.pending != nil || !w.cl.selected {
		return at, false
	}
	return expiry(o)
}

// nextCleanUp decides whether a work that has nothing else to be written has had
// its time.
func (s *statuses) nextCleanUp(w *work, o *workv1.ManifestWork) *todo {
	at, expires := s.expires(w, o)
	if expires && !at.Equal(w.report.expiry) {
		w.report.expiry, w.report.over = at, s.f.Now().Add(max(at.Sub(s.f.Now()), min(trustClock, time.Duration(*o.Spec.DeleteOption.TTLSecondsAfterFinished)*time.Second)))
	}
	if !expires || s.f.until(HubQueue, w.key(), w.report.over) || !s.f.due(HubQueue, w.key(), &w.report.retry) {
		return nil
	}
	return s.f.ofWork(w, DeleteCompleted{OfWork{o}}, func(r Result) { s.doneDeleteCompleted(w, o.ResourceVersion, r) })
}

func (s *statuses) doneDeleteCompleted(w *work, version string, r Result) {
	if r.Err != nil && !apierrors.IsNotFound(r.Err) {
		s.f.hubFailed(HubQueue, w.key(), &w.report.retry, r.Err)
		return
	}
	after := time.Duration(0)
	if w.report.retry.reset(); w.hub.object.ResourceVersion == version {
		after = informerLag // the informer is about to show what has become of it
		w.report.retry.wait(s.f.Now().Add(after), true)
	}
	s.f.wake(HubQueue, w.key(), after)
}
