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

// Report is an agent's report about one work.
type Report struct {
	UID           types.UID
	Cluster, Name string
	// Version is the generation the report is about, 0 when it has none.
	Version int64
	// Unversioned: the agent received the work without a version, so versions do not order this report.
	Unversioned bool
	// Sequence orders the reports of one work, decimal.
	Sequence string
	// Hash is the agent's hash of Status; may be "".
	Hash string
	// Revision is the revision of the broker's store at which the report was accepted, 0 from an OCM broker.
	Revision uint64
	// Deleted: nothing of the work is left on the cluster.
	Deleted bool
	Status  workv1.ManifestWorkStatus
	// Source is the owner of the work, as the agent knows it. Stamp is the session stamp of the event.
	Source string
	Stamp  sessionfence.Stamp
	// Size is the received size of Status in bytes.
	Size int
}

// ReportResult is the result of handling a [Report].
type ReportResult string

// The results, as the metric names them.
const (
	// Taken: the report is kept and will be written if it differs.
	Taken ReportResult = "taken"
	// Stale: a newer report, or one about a newer generation, was taken before.
	Stale ReportResult = "stale"
	// Ignored: the report has no effect on this work.
	Ignored ReportResult = "ignored"
	// UnexpectedDeletion: the report confirms a deletion, but the hub does not delete the work. It is returned once
	// per work, then Ignored.
	UnexpectedDeletion ReportResult = "unexpected_deletion"
	// PreviousSession: the report belongs to an earlier session of this source or of the agent. It is requested
	// again.
	PreviousSession ReportResult = "previous_session"
	// Foreign: the report is about a work of another source or of another cluster.
	Foreign ReportResult = "foreign"
	// Incomparable: the sequence id cannot be ordered; the report is dropped.
	Incomparable ReportResult = "incomparable"
)

// statuses moves the clusters' reports to the hub.
type statuses struct {
	f         *workIndex
	questions *hubQueries
	compare   *clusterSync
	cursor    *cursor
	responder *agentResponder
}

// reportState is the progress of one work's status to the hub.
type reportState struct {
	// pending is the report that waits for its patch; a newer report replaces it. came is the tick of its
	// arrival.
	pending *Report
	came    int
	// sequence and version are the highest that this process has taken. After a restart, version comes from the
	// generations in the conditions on the hub. revision is the revision of the last report.
	sequence string
	revision uint64
	version  int64
	last     int64         // generation of the last report
	session  codec.Session // session of the agent that made sequence
	warned   bool          // UnexpectedDeletion was returned
	retry    retry
	// queued is the number of the segment whose cursor waits for the report, 0 for none. After a confirmation it
	// waits for the removal of the finalizer. See cursor.
	queued int
	// early is since when the pending report waits for a state that the hub has not shown yet.
	early  time.Time
	denial denial
	// expiry is the end of a completed work's time to live, by the time of its completion. over is when this
	// process deletes the work.
	expiry, over time.Time
}

// Limits of the writes to the hub for the reports of one cluster. Beyond them reports wait, and then the latest
// of each work is written. Without limits, one cluster could use all writes of the hub.
var (
	writesEach = fair.Rate{PerSecond: 100, Burst: 1000}
	bytesEach  = fair.Rate{PerSecond: 4 << 20, Burst: 32 << 20}
)

// clusterWriteBudget is the budget for writing the reports of one cluster.
type clusterWriteBudget struct{ writes, bytes fair.Bucket }

// nextAt reserves a write of size bytes, and returns when it may start.
func (b *clusterWriteBudget) nextAt(size int, now time.Time) time.Time {
	return now.Add(max(b.writes.Reserve(writesEach, now, 1), b.bytes.Reserve(bytesEach, now, float64(size))))
}

// changed handles another state of the work on the hub; first: the hub shows the work for the first time.
func (r *reportState) changed(first bool) {
	if first {
		r.retry.wait(time.Time{}, false)
	}
	r.denial.changed()
	r.retry.changed()
}

// noteSession stores the session of the agent that reports. A new session starts a new sequence.
func (r *reportState) noteSession(s codec.Session) {
	if r.session != s {
		r.session, r.sequence = s, ""
	}
}

// take stores the order of a report that is newer than those before.
func (r *reportState) take(now *Report) {
	r.sequence, r.revision, r.version, r.last = now.Sequence, now.Revision, max(r.version, now.Version), now.Version
	if now.Unversioned {
		r.last = 0
	}
}

// forgetSequence accepts the next report whatever its sequence id: the broker has no record of the work, or the
// report is requested again.
func (r *reportState) forgetSequence() { r.sequence = "" }

// letGo ends the wait of the cursor for the work.
func (r *reportState) letGo(c *cursor) {
	if n := r.queued; n != 0 {
		r.queued = 0
		c.letGo(n)
	}
}

// clear drops the pending report.
func (r *reportState) clear(f *workIndex) {
	if r.pending != nil {
		r.pending = nil
		f.wait(false)
	}
}

// drop drops the pending report, and ends the wait of the cursor.
func (r *reportState) drop(f *workIndex, c *cursor) {
	r.clear(f)
	r.letGo(c)
}

// hold stops the cursor until the work's report is finished.
func (r *reportState) hold(c *cursor) {
	n := c.hold()
	r.letGo(c)
	r.queued = n
}

// receive handles a report.
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
	case r.Deleted: // also a repeated confirmation, of a later deletion
		return s.reportDeleted(w, r)
	case w.broker.on(s.f.sub) == recordDeleted:
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
		s.compare.repeat(cl, 0) // a late publish took the name, so the former record no longer exists
	}
	s.keep(w, r)
	s.responder.noteReport(w)
	return Taken
}

// isNewer reports whether a report is newer than the last one taken. As in the broker, an id too far ahead of
// the clock is ignored: a clock was days ahead when it was made. Then the broker's revision decides.
func (s *statuses) isNewer(w *work, r *Report) (bool, error) {
	if last := &w.report; last.sequence != "" && r.Revision > last.revision && !mayBeMade(last.sequence, s.f.Now()) {
		return true, nil
	}
	return codec.CompareSequence(w.report.sequence, r.Sequence)
}

// mayBeMade reports whether an agent may make this id now.
func mayBeMade(id string, now time.Time) bool { return codec.CheckSequence(id, now) == nil }

// reportDeleted handles the confirmation that the cluster has deleted the work. Without an agent, or if an
// operator gave the work up, the broker sends it for the agent. Its sequence id is then not newer than the
// agent's last one.
func (s *statuses) reportDeleted(w *work, r *Report) ReportResult {
	if w.spec.redelivery.went == publishLastSpec {
		return PreviousSession // the report answers a deletion of an earlier process, and the last spec may have arrived after that
	}
	w.cl.gone(w.uid)
	if m := &w.cl.comparing.missing; m.later || m.withholds(string(r.UID)) {
		s.compare.repeat(w.cl, 0) // the queued record is live now, or an operator approved the deletion
	}
	o := w.hub.object
	if o != nil && o.DeletionTimestamp != nil {
		return s.confirm(w, r)
	}
	// The informer may lag behind the deletion, or the hub went back: the broker is about to drop the record.
	if w.broker.answer(s.f.sub, recordAbsent, specFingerprint{}, r.Revision, s.f.tick()) {
		s.f.recount(w)
		s.f.wake(BrokerQueue, w.key(), 0)
	}
	if o == nil || r.Version > o.Generation || r.Version == 0 {
		s.keep(w, r) // the informer may lag behind a deletion of an earlier leader
		return Taken
	}
	if w.report.warned {
		return Ignored
	}
	w.report.warned = true
	return UnexpectedDeletion
}

// confirm records that the cluster has deleted the work. The cursor now waits for the removal of the finalizer.
// A report older than the broker's last answer confirms an earlier deletion, as of a work that a restore of the
// hub brought back.
func (s *statuses) confirm(w *work, r *Report) ReportResult {
	if !w.broker.answer(s.f.sub, recordDeleted, w.hub.fingerprint(), r.Revision, s.f.tick()) {
		w.report.drop(s.f, s.cursor)
		return Stale
	}
	w.report.hold(s.cursor)
	w.report.clear(s.f)
	s.f.recount(w)
	s.f.hurry(HubQueue, w)
	return Taken
}

// subscribe drops a pending confirmation: the broker sends it again on the new subscription.
func (s *statuses) subscribe(w *work) {
	if p := w.report.pending; p != nil && p.Deleted {
		w.report.drop(s.f, s.cursor)
	}
}

// reportedVersion returns the newest reported generation, but at most the generation on the hub.
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
	s.f.setStatusProblem(w, nil) // the problem was that of the previous report
	s.f.wake(HubQueue, w.key(), 0)
}

// dropReports drops a report that was not written because the cluster is no longer served. If it is served
// again, the report is requested and taken once more.
func (s *statuses) dropReports(w *work) {
	if w.report.pending != nil {
		w.report.sequence = ""
	}
	w.report.drop(s.f, s.cursor)
}

// forgetUnseen drops a work that is neither on the hub nor in a pending report.
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
	if w.broker.on(s.f.sub) == recordDeleted {
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
		if w.report.pending == r { // both are nil: Delivered needs no write; or r is a confirmation that is no longer valid
			w.report.drop(s.f, s.cursor)
		}
		if _, expires := s.expires(w, o); !expires { // otherwise retry is the back-off of the clean-up
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

// nextEnd decides about a work whose deletion is confirmed. It waits for a publish in flight: the answer may
// show that the broker began another deletion.
func (s *statuses) nextEnd(w *work, o *workv1.ManifestWork) *todo {
	if o.DeletionTimestamp != nil && !hasFinalizer(o) {
		w.report.letGo(s.cursor)
	}
	if o.DeletionTimestamp == nil || !hasFinalizer(o) || w.spec.isSending(s.f.sub) || !s.f.due(HubQueue, w.key(), &w.report.retry) {
		return nil
	}
	return s.questions.write(HubQueue, w, &w.report.retry, RemoveFinalizer{OfWork{o}}, func(err error) bool {
		if err == nil || apierrors.IsNotFound(err) || w.report.denial.IsFinal(err, s.f.Now(), s.f.wroteAt) {
			w.report.letGo(s.cursor) // the broker sends the confirmation to the next process again
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
		if !p.Deleted { // the broker, or the agent, has a work that the hub lacks
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

// informerPatience is how long a report waits for a state that the informer has not shown, before the hub is
// queried.
const informerPatience = 3 * time.Second

// isEarly reports whether a report is about a state that the hub has not shown yet.
func isEarly(p *Report, o *workv1.ManifestWork) bool {
	return p.Version > o.Generation || p.Deleted && o.DeletionTimestamp == nil
}

// ready returns the report to write now. A report about a state that the hub has not shown waits for
// informerPatience. Then the hub itself is queried. If the hub went back in time, that state never comes, and
// the report is dropped. The cluster will report the older state.
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
		if p.Deleted && !w.hub.absent { // the broker no longer has the work
			w.broker.forget()
			s.f.recount(w)
			s.compare.repeat(w.cl, 0)
			s.f.wake(BrokerQueue, w.key(), 0)
		}
		w.report.drop(s.f, s.cursor) // the hub lacks the reported state, and had it once
	case !s.f.until(HubQueue, w.key(), w.report.early.Add(informerPatience)) && !w.hub.querying:
		s.questions.query(w)
	}
	return nil
}

// deliveredMayDiffer is a cheap check whether the condition Delivered may have to be written or removed.
func deliveredMayDiffer(w *work) bool {
	return w.problems.problem() != nil || w.problems.known && slices.ContainsFunc(w.hub.object.Status.Conditions, isFault)
}

// desired returns the status that the work should have on the hub, and whether it differs from the present one.
func (s *statuses) desired(w *work, o *workv1.ManifestWork, r *Report) (status workv1.ManifestWorkStatus, news bool) {
	status = o.Status
	if r != nil {
		status = r.Status
		status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), func(c metav1.Condition) bool {
			return c.Type == manifestwork.ConditionDeleted // between agent and source only, never shown
		})
	}
	now := metav1.NewTime(s.f.Now().Truncate(1e9))
	status.Conditions = withDelivered(status.Conditions, o.Status.Conditions, w.problems, now)
	if news = !apiequality.Semantic.DeepEqual(status, o.Status); news {
		status.Conditions = withAnswer(status.Conditions, o.Generation, now)
	}
	return status, news
}

// patch writes a status. r is the report in it, nil if only the condition Delivered changes.
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
		case w.report.denial.IsFinal(err, s.f.Now(), s.f.wroteAt):
			s.refuse(w, o, r, err)
			return false
		}
		return true
	})
}

// written drops a report unless a newer one has replaced it.
func (s *statuses) written(w *work, r *Report) {
	if r != nil && w.report.pending == r {
		w.report.drop(s.f, s.cursor)
	}
}

// longestTTL is the longest time to live that is honoured. A longer one could overflow when it is added to a
// time.
const longestTTL = 100 * 365 * 24 * time.Hour

// expiry returns when a completed work is to be deleted: its completion time plus its time to live. The
// controller of ManifestWorkReplicaSets deletes its own works.
//
// The result depends on the work alone, so each leader comes to the same result.
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

// trustClock is the minimum time between the first view of a completed work and its deletion, or its time to
// live if that is shorter. The clock may jump, so this process measures that time.
//
// Scenario:
//
//	t1: a work with one day to live completes.
//	t2: the hub's machine resumes with a clock that is a year ahead.
//
// Without this: the work is deleted before the clock is corrected.
const trustClock = 10 * time.Minute

// expires returns when this source is to delete a work, and whether it is. A pending report is written first:
// it may report that the work is no longer complete.
func (s *statuses) expires(w *work, o *workv1.ManifestWork) (at time.Time, expires bool) {
	if !s.f.CleanUp || w.report.pending != nil || !w.cl.selected {
		return at, false
	}
	return expiry(o)
}

// nextCleanUp decides whether to delete a completed work that has nothing else to write.
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
		after = informerLag // the informer is about to show the result
		w.report.retry.wait(s.f.Now().Add(after), true)
	}
	s.f.wake(HubQueue, w.key(), after)
}
