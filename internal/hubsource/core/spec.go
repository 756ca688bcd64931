package core

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// specs is the way of the works to the broker: finalizer, spec, deletion.
type specs struct {
	f         *workIndex
	epochs    *hubEpochs
	questions *hubQueries
	compare   *clusterSync
	responder *agentResponder
}

// specState is the way of one work's spec.
type specState struct {
	// attempted: a publish may have reached the broker, or it has a record.
	attempted bool
	// fresh: the hub took our finalizer before anything was published. adding: it is asked to.
	fresh, adding bool
	// late: the hub showed the work, without our finalizer, after a subscription had begun
	// in this life. What the broker has of it all the same is from another one, and its
	// status was not taken.
	late bool
	// elsewhere: the work was published before a subscription whose broker does
	// not know our cursor. That may be another store than the one it went into
	// and from which its cluster got it.
	elsewhere bool
	// sending: a publish is under way, on that subscription.
	sending int
	// staleRuns counts answers in a row that the broker has a newer version.
	staleRuns int
	// tryAgain is when what was refused is tried again although nothing changed;
	// the zero time is never.
	tryAgain time.Time
	retry    retry
	// redelivery is when it is published once more where nobody keeps it.
	redelivery redelivery
	// overtaken: what is under way was not on a list of its agent that was answered meanwhile.
	overtaken bool
}

func (s *specState) markElsewhere() { s.elsewhere = true }

// isSending reports whether the answer to a publish is still to come on a subscription.
func (s *specState) isSending(sub int) bool { return sub != 0 && s.sending == sub }

// overtake takes it that a list of the agent was answered, and whether the work was missing there.
func (s *specState) overtake(missed bool, sub int) { s.overtaken = missed && s.isSending(sub) }

// known takes it that the broker has a record. It reports whether that is from another
// life of the hub.
func (s *specState) known() (another bool) {
	another = s.late && !s.attempted
	s.attempted = true
	return another
}

// agreed takes it that the broker has the work as it is.
func (s *specState) agreed() {
	s.attempted, s.fresh, s.staleRuns, s.tryAgain = true, false, 0, time.Time{}
	s.retry.reset()
}

// next decides the next step of a work towards the broker.
func (s *specs) next(w *work) *todo {
	switch {
	case w.hub.object == nil:
		return nil
	case w.hub.ended != alive:
		return s.nextEnded(w)
	case !s.f.mayReport(w.cl) || w.hub.querying: // what is in question is not told
		return nil
	}
	o, m := w.hub.object, w.hub.fingerprint()
	switch has := w.broker.on(s.f.sub); {
	case isLarge(o) && !m.deleting:
		s.f.setSpecProblem(w, tooLarge(o))
		s.f.wake(HubQueue, w.key(), 0)
		return nil
	case has == confirmedDeleted && m.deleting:
		return nil // the finalizer goes
	case has == holds && w.broker.fingerprint.equal(m) && !s.responder.dueAgain(w):
		w.broker.setFingerprint(m) // lets go of an older object's maps
		return s.nextHeld(w)
	case m.deleting:
		s.compare.giveUpName(w)
	case s.isUncompared(w):
		return nil
	}
	return s.nextPublish(w, m)
}

// isUncompared reports whether it is still to come out what the broker has of a work.
func (s *specs) isUncompared(w *work) bool {
	return s.compare.on && (w.broker.on(s.f.sub) == unknown || w.cl.comparing.stage < waits)
}

// nextHeld decides about a work that the broker has as it is. It keeps its
// finalizer: somebody may have removed it.
func (s *specs) nextHeld(w *work) *todo {
	o := w.hub.object
	if o.DeletionTimestamp != nil || hasFinalizer(o) || !s.f.due(BrokerQueue, w.key(), &w.spec.retry) {
		return nil
	}
	return s.addFinalizer(w)
}

// addFinalizer puts our finalizer on a work. Whose it is the answer says, for the write has the
// state without it as its precondition:
//
//	t1  the finalizer is written
//	t2  the informer shows it
//	t3  the answer: taken, so it is ours, or not, so an earlier leader put it there
func (s *specs) addFinalizer(w *work) *todo {
	bare := w.hub.object
	w.spec.adding = true
	return s.questions.write(BrokerQueue, w, &w.spec.retry, AddFinalizer{OfWork{bare}}, func(err error) bool {
		w.spec.adding = false
		w.spec.fresh = w.spec.fresh || err == nil && !w.spec.attempted
		if err != nil {
			s.adopt(w, bare)
		}
		return true
	})
}

// adopt asks for the status of a work that was published by an earlier leader, or in another life
// of the hub, when it turns out that it was: the finalizer is there, and this process did not put it
// there. bare is what the hub showed before, nil for nothing. What was without it after this leader
// had located the hub, no earlier one has published: the finalizer is ours, also where the answer to
// the write was lost. Else the informer may show a work late, and without the finalizer first; a hub
// that went back may be replaced by a later copy.
func (s *specs) adopt(w *work, bare *workv1.ManifestWork) {
	if !hasFinalizer(w.hub.object) || bare != nil && (hasFinalizer(bare) || w.spec.adding || s.epochs.isSince(bare)) {
		return
	}
	s.compare.cursor.request(w)
	if s.f.lists {
		w.spec.markElsewhere()
	}
}

// nextPublish decides about a state of a work that the broker is to be told. What
// contradicts the broker's records is taken for true only when the hub itself
// said so after they were heard: the informer may lag, also behind a deletion
// that an earlier process saw to its end; or the hub went back in time.
func (s *specs) nextPublish(w *work, m specFingerprint) *todo {
	o := w.hub.object
	behind := w.isBehind(s.f.sub)
	switch {
	case s.stillRefused(w, m) || !s.f.ready(w.key(), &w.spec.retry):
		return nil
	case m.deleting && s.compare.nameIsQueued(w.cl, o.Name):
		return nil // what has the name goes first
	case m.deleting:
		return s.publish(w, m)
	case w.hub.absent:
		return nil
	case s.needsConfirmation(w):
		s.questions.query(w)
		return nil
	case behind && !s.epochs.suspicionIsSaved("the hub has works in an older state than the broker"):
		return nil
	case !hasFinalizer(o):
		return s.addFinalizer(w)
	}
	return s.publish(w, m)
}

// needsConfirmation reports whether the hub itself is to say that it has a work. The informer
// may lag behind the end of one with our finalizer on it, as far as it is not certain
// that the broker has had a record since.
func (s *specs) needsConfirmation(w *work) bool {
	switch started := hasFinalizer(w.hub.object); w.broker.on(s.f.sub) {
	case listed:
		return w.isBehind(s.f.sub) && w.hub.answered <= w.broker.reports
	case isAbsent:
		return started && w.hub.answered <= w.broker.reports
	case differs:
		return started && !w.spec.attempted && w.hub.answered == 0
	case unknown:
		return s.f.stateless && started && !w.spec.attempted && w.hub.answered == 0
	case unsure, holds, confirmedDeleted, refused:
	}
	return false
}

// nextEnded decides about a work that left the hub.
func (s *specs) nextEnded(w *work) *todo {
	switch {
	case !s.mustDelete(w):
		s.compare.forget(w)
		return nil
	case w.hub.ended == unseen && !s.f.connected:
		return nil
	case w.hub.ended == unseen && s.compare.on:
		s.compare.miss(w)
		return nil
	case !w.hub.absent || w.hub.querying:
		s.questions.query(w)
		return nil
	case s.isUncompared(w) && !w.cl.comparing.stage.isCompared(), !s.f.mayReport(w.cl), !s.f.ready(w.key(), &w.spec.retry):
		return nil // by digests nothing comes out of a work that is being deleted: the broker is told once more
	case s.f.stateless:
		s.responder.trackDeletion(w)
		s.compare.forget(w)
		return nil
	}
	return s.publish(w, w.hub.fingerprint())
}

// mustDelete reports whether the broker may hold a work that left the hub,
// and has not been told so.
func (s *specs) mustDelete(w *work) bool {
	switch w.broker.on(s.f.sub) {
	case isAbsent, confirmedDeleted:
		return false
	case holds:
		if w.broker.fingerprint.deleting && !s.f.stateless {
			return false
		}
	case unknown, differs, unsure, listed, refused:
	}
	served := w.cl.selected || w.cl.release.pending() // it may be served again before it is released
	return served && (w.spec.attempted || hasFinalizer(w.hub.object))
}

// stillRefused reports whether m is what the broker refused and there is no
// reason yet to ask again.
func (s *specs) stillRefused(w *work, m specFingerprint) bool {
	if w.broker.on(s.f.sub) != refused || !w.broker.fingerprint.equal(m) {
		return false
	}
	return w.spec.tryAgain.IsZero() || s.f.until(BrokerQueue, w.key(), w.spec.tryAgain)
}

// publish publishes the current state of a work. A broker that knows of its
// deletion takes a create_request for a new life, so that needs the hub's word.
func (s *specs) publish(w *work, m specFingerprint) *todo {
	if !s.responder.paced(w) {
		return nil
	}
	o := w.hub.object
	if m.deleting && o.DeletionTimestamp == nil {
		o = o.DeepCopy()
		o.DeletionTimestamp = &metav1.Time{Time: w.hub.endedAt}
	}
	p := Publish{Work: o, Action: codec.UpdateRequest, Slim: isLarge(o), Fence: s.f.nextOrder()}
	p.Unversioned = m.deleting && w.spec.staleRuns > 0
	p.RequireConfirmation = m.deleting && w.spec.elsewhere
	if s.f.stateless {
		p.Stamp, p.First = s.f.stamp(w.cl), s.responder.first(w, m)
		w.spec.retry.goes()
	}
	has := w.broker.on(s.f.sub)
	switch {
	case m.deleting:
		p.Action = codec.DeleteRequest
	case w.isBehind(s.f.sub):
		p.Action, p.Supersedes = codec.CreateRequest, w.broker.row.Revision
	case has == isAbsent, w.spec.fresh, has == unknown:
		p.Action = codec.CreateRequest
	}
	if !m.deleting {
		w.turnaround.Sent(o.Generation, reportedVersion(w))
	}
	w.spec.redelivery.goes(p)
	w.spec.attempted, w.spec.sending, w.spec.overtaken = true, s.f.sub, false
	w.cl.release.begin()
	return &todo{p, func(r Result) { s.donePublish(w, p, r) }}
}

// fingerprint is that of the state which is published.
func (p Publish) fingerprint() specFingerprint { return fingerprintOf(p.Work) }

func (s *specs) donePublish(w *work, e Publish, r Result) {
	cl := w.cl
	if cl.release.finish(s.f.sub, isOpen(r.Err)); cl.release.must {
		s.f.wakeCluster(BrokerQueue, cl)
	}
	if s.f.works[w.uid] != w || w.spec.sending != s.f.sub {
		cl.release.strayed()
		if isOpen(r.Err) {
			s.f.endSubscription() // nobody is left who would repeat it, or undo it
		}
		s.compare.repeat(cl, 0) // it is not what was looked for
		s.compare.tidy(cl)
		return
	}
	w.spec.sending = 0
	if cl.selected {
		s.outcome(w, e, r)
		s.f.recount(w)
		s.f.wakeWork(w)
	}
}

// outcome takes what the broker said of a publish.
func (s *specs) outcome(w *work, e Publish, r Result) {
	reported := transportErrorOf(r.Err)
	switch {
	case r.Err == nil && r.Receipt.Outcome == codec.OutcomeStale:
		s.stale(w, e, r.Receipt.Revision)
	case r.Err == nil:
		s.accepted(w, e, r.Receipt)
	case reported.Code == transport.CodeConflict && w.hub.gone(): // what has its name by now is not older
		s.refused(w, e, r)
	case reported.Code == transport.CodeConflict:
		s.f.failed(BrokerQueue, w.key(), &w.spec.retry, 0)
		w.broker.forget()
		s.compare.repeat(w.cl, 0)
	case reported.Code == transport.CodeOverloaded && reported.Attribute != "" && !e.fingerprint().deleting: // over a quota, which says nothing about other works
		s.refused(w, e, r)
		s.tryAgainAfter(w, reported.Delay)
	case s.f.brokerFailed(w.key(), &w.spec.retry, r.Err):
		if needsPerson(reported) && w.hub.ended == alive {
			s.f.setSpecProblem(w, refusal(e.Work, r.Err))
		}
		if isOpen(r.Err) {
			w.broker.assume(unsure, s.f.sub, s.f.tick())
			s.nameTaken(w, e) // perhaps
		}
	default:
		s.refused(w, e, r)
	}
}

func (s *specs) accepted(w *work, e Publish, r transport.Receipt) {
	if w.spec.overtaken || s.responder.isDropped(w.cl, e.Stamp) {
		s.f.failed(BrokerQueue, w.key(), &w.spec.retry, 0) // as if it had not been published
		return
	}
	if w.spec.fresh && r.Outcome == codec.OutcomeUnchanged {
		s.compare.cursor.request(w) // it has the work from another life of the hub
	}
	what := holds
	if e.fingerprint().deleting && r.Outcome == codec.OutcomeConfirmed {
		what = confirmedDeleted
	}
	w.broker.answer(s.f.sub, what, e.fingerprint(), r.Revision, s.f.tick())
	w.spec.agreed()
	w.spec.redelivery.sent(&s.f.agenda)
	w.hub.untag()
	s.f.setSpecProblem(w, nil)
	if !e.fingerprint().deleting {
		w.turnaround.Accepted(e.Work.Generation, r.Outcome != "" && r.Outcome != codec.OutcomeAccepted, s.f.Now())
	}
	if p := w.report.pending; p != nil && p.Deleted && !e.fingerprint().deleting {
		w.report.drop(s.f, s.compare.cursor) // it was the end of an earlier life of the work
	}
	s.nameTaken(w, e)
}

// nameTaken takes it that a work has its name now. What only the broker had under it
// is no more.
func (s *specs) nameTaken(w *work, e Publish) {
	if s.compare.nameIsQueued(w.cl, e.Work.Name) {
		s.compare.repeat(w.cl, 0)
	}
}

// refused takes a refusal that stays until something changes.
func (s *specs) refused(w *work, e Publish, r Result) {
	code := transport.CodeOf(r.Err)
	if e.fingerprint().deleting && (w.hub.gone() || code == transport.CodeAlreadyExists) {
		// Nobody is left to tell (the shell has logged it), or another source has the
		// name on this cluster: the work never became a record, and there is nothing to
		// clean up.
		w.broker.answer(s.f.sub, confirmedDeleted, e.fingerprint(), 0, s.f.tick())
		return
	}
	s.refuse(w, e, r.Receipt.Revision)
	s.f.setSpecProblem(w, refusal(e.Work, r.Err))
	if code == transport.CodeTooLarge || code == transport.CodeInvalid {
		w.spec.tryAgain = time.Time{}
	}
}

// shownStaleRuns is after how many comparisons that did not help a work says
// that it is not delivered.
const shownStaleRuns = 3

// stale takes the answer that the broker has a newer version. Right after a
// change of leaders the informer may lag; if it persists, the hub went back in
// time, and the comparison finds out. Where there is none, a spec is given up. A
// deletion is sent without a version: that the work goes does not depend on how
// often it was changed.
func (s *specs) stale(w *work, e Publish, revision uint64) {
	w.spec.staleRuns++
	if s.compare.on && !e.fingerprint().deleting {
		if w.spec.staleRuns >= shownStaleRuns {
			s.f.setSpecProblem(w, staleSpec(e.Work))
		}
		w.broker.forget()
		s.compare.repeat(w.cl, 0)
		return
	}
	if w.spec.staleRuns == 1 || w.hub.gone() {
		w.broker.assume(unsure, s.f.sub, s.f.tick())
		s.f.failed(BrokerQueue, w.key(), &w.spec.retry, time.Second)
		return
	}
	s.refuse(w, e, revision)
	s.f.setSpecProblem(w, staleSpec(e.Work))
}

func (s *specs) refuse(w *work, e Publish, revision uint64) {
	w.broker.answer(s.f.sub, refused, e.fingerprint(), revision, s.f.tick())
	w.spec.retry.reset()
	s.tryAgainAfter(w, refusedDelay)
}

// tryAgainAfter has a refused work wait so long at most, although nothing changes.
func (s *specs) tryAgainAfter(w *work, delay time.Duration) {
	delay = min(delay, refusedDelay)
	w.spec.tryAgain = s.f.Now().Add(delay/2 + s.f.jittered(delay/2))
}

// changed takes it that a work has another state on the hub than was known, or is
// new. What changes while the broker listens waits for no comparison: it cannot
// be what the broker has.
func (s *specs) changed(w *work, before *workv1.ManifestWork) {
	w.spec.retry.changed()
	s.adopt(w, before)
	w.spec.late = w.spec.late || before == nil && s.f.begun && !hasFinalizer(w.hub.object)
	if before == nil || !fingerprintOf(before).equal(w.hub.fingerprint()) {
		if w.broker.on(s.f.sub) == unknown && s.f.mayReport(w.cl) && (s.compare.on || s.f.stateless) {
			w.broker.assume(differs, s.f.sub, s.f.tick())
		}
	}
}
