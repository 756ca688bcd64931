package core

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// specs moves works to the broker: finalizer, spec, deletion.
type specs struct {
	f         *workIndex
	epochs    *hubEpochs
	questions *hubQueries
	compare   *clusterSync
	responder *agentResponder
}

// specState is the progress of one work's spec to the broker.
type specState struct {
	// attempted: a publish may have reached the broker, or the broker has a record.
	attempted bool
	// fresh: this source added the finalizer before anything was published. adding: the write of the finalizer is
	// in flight.
	fresh, adding bool
	// late: the hub showed the work without the finalizer of this source, after a subscription had begun in this
	// hub epoch. If the broker has a record, that is from another epoch, and its status was not taken.
	late bool
	// elsewhere: the work was published before a subscription whose broker does not know the cursor of this source.
	// So the work may be in another store, from which its cluster received it.
	elsewhere bool
	// sending is the subscription of the publish in flight, 0 without one.
	sending int
	// staleRuns counts answers in a row that the broker has a newer version.
	staleRuns int
	// tryAgain is when a refused state is published again without a change; zero means never.
	tryAgain time.Time
	retry    retry
	// redelivery plans the next publish behind a stateless broker.
	redelivery redelivery
	// overtaken: a list of the agent was answered while the publish was in flight, and the list lacked the work.
	overtaken bool
}

func (s *specState) markElsewhere() { s.elsewhere = true }

// isSending reports whether a publish is in flight on a subscription.
func (s *specState) isSending(sub int) bool { return sub != 0 && s.sending == sub }

// overtake records that a list of the agent was answered; missed: the list lacked the work.
func (s *specState) overtake(missed bool, sub int) { s.overtaken = missed && s.isSending(sub) }

// known records that the broker has a record. It returns true if the record is from another hub epoch.
func (s *specState) known() (another bool) {
	another = s.late && !s.attempted
	s.attempted = true
	return another
}

// setInSync records that the broker holds the work as it is.
func (s *specState) setInSync() {
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
	case !s.f.mayReport(w.cl) || w.hub.querying: // a work with an open query is not published
		return nil
	}
	o, m := w.hub.object, w.hub.fingerprint()
	switch has := w.broker.on(s.f.sub); {
	case isLarge(o) && !m.deleting:
		s.f.setSpecProblem(w, tooLarge(o))
		s.f.wake(HubQueue, w.key(), 0)
		return nil
	case has == recordDeleted && m.deleting:
		return nil // the finalizer is removed
	case has == recordMatches && w.broker.fingerprint.equal(m) && !s.responder.dueAgain(w):
		w.broker.setFingerprint(m) // frees the maps of an older object
		return s.nextHeld(w)
	case m.deleting:
		s.compare.giveUpName(w)
	case s.isUncompared(w):
		return nil
	}
	return s.nextPublish(w, m)
}

// isUncompared reports whether the broker's record of a work is still to be compared.
func (s *specs) isUncompared(w *work) bool {
	return s.compare.on && (w.broker.on(s.f.sub) == recordUnknown || w.cl.comparing.stage < stageWaits)
}

// nextHeld decides about a work that the broker holds as it is. It restores the finalizer if another client
// removed it.
func (s *specs) nextHeld(w *work) *todo {
	o := w.hub.object
	if o.DeletionTimestamp != nil || hasFinalizer(o) || !s.f.due(BrokerQueue, w.key(), &w.spec.retry) {
		return nil
	}
	return s.addFinalizer(w)
}

// addFinalizer adds the finalizer of this source to a work. The write has the state without it as its
// precondition, so the answer shows which leader added it.
//
// Scenario:
//
//	t1: this leader writes the finalizer.
//	t2: the informer shows it.
//	t3: the answer arrives.
//
// Result: after success this leader added it; after a conflict an earlier leader did.
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

// adopt requests the status of a work that an earlier leader published, or that was published in another hub
// epoch. It detects such a work by a finalizer that this process did not add. bare is the state that the hub
// showed before, nil for none. No earlier leader published the work if bare has no finalizer and is later than
// the first position read by this leader. Then the finalizer is from this leader, even if the answer to the
// write was lost. In other cases the informer may lag and first show the work without the finalizer. A later
// copy of the hub may also replace a restored hub.
func (s *specs) adopt(w *work, bare *workv1.ManifestWork) {
	if !hasFinalizer(w.hub.object) || bare != nil && (hasFinalizer(bare) || w.spec.adding || s.epochs.isSince(bare)) {
		return
	}
	s.compare.cursor.request(w)
	if s.f.lists {
		w.spec.markElsewhere()
	}
}

// nextPublish decides how to publish a state of a work. If the state contradicts the broker's records, the hub
// itself must have confirmed it after those records came. Without this, an informer that lags, or a rollback of
// the hub, would bring back a deleted work.
func (s *specs) nextPublish(w *work, m specFingerprint) *todo {
	o := w.hub.object
	behind := w.isBehind(s.f.sub)
	switch {
	case s.stillRefused(w, m) || !s.f.ready(w.key(), &w.spec.retry):
		return nil
	case m.deleting && s.compare.nameIsQueued(w.cl, o.Name):
		return nil // the record with this name is deleted first
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

// needsConfirmation reports whether the hub itself must confirm that it has a work. The informer may lag behind
// the end of a work with the finalizer of this source, unless the broker certainly had a record since.
func (s *specs) needsConfirmation(w *work) bool {
	switch started := hasFinalizer(w.hub.object); w.broker.on(s.f.sub) {
	case recordListed:
		return w.isBehind(s.f.sub) && w.hub.answered <= w.broker.reports
	case recordAbsent:
		return started && w.hub.answered <= w.broker.reports
	case recordDiffers:
		return started && !w.spec.attempted && w.hub.answered == 0
	case recordUnknown:
		return s.f.stateless && started && !w.spec.attempted && w.hub.answered == 0
	case recordUnsure, recordMatches, recordDeleted, recordRejected:
	}
	return false
}

// nextEnded decides the next step for a work that left the hub.
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
		return nil // digests do not cover works under deletion, so the deletion is published again
	case s.f.stateless:
		s.responder.trackDeletion(w)
		s.compare.forget(w)
		return nil
	}
	return s.publish(w, w.hub.fingerprint())
}

// mustDelete reports whether the broker may hold a work that left the hub, and has not received its deletion.
func (s *specs) mustDelete(w *work) bool {
	switch w.broker.on(s.f.sub) {
	case recordAbsent, recordDeleted:
		return false
	case recordMatches:
		if w.broker.fingerprint.deleting && !s.f.stateless {
			return false
		}
	case recordUnknown, recordDiffers, recordUnsure, recordListed, recordRejected:
	}
	served := w.cl.selected || w.cl.release.pending() // the cluster may be served again before it is released
	return served && (w.spec.attempted || hasFinalizer(w.hub.object))
}

// stillRefused reports whether the broker refused m and it is too early to try again.
func (s *specs) stillRefused(w *work, m specFingerprint) bool {
	if w.broker.on(s.f.sub) != recordRejected || !w.broker.fingerprint.equal(m) {
		return false
	}
	return w.spec.tryAgain.IsZero() || s.f.until(BrokerQueue, w.key(), w.spec.tryAgain)
}

// publish publishes the current state of a work. A broker with a tombstone of the work treats a create_request
// as a new work, so the hub itself must have confirmed the work.
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
	case has == recordAbsent, w.spec.fresh, has == recordUnknown:
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

// fingerprint returns the fingerprint of the published state.
func (p Publish) fingerprint() specFingerprint { return fingerprintOf(p.Work) }

func (s *specs) donePublish(w *work, e Publish, r Result) {
	cl := w.cl
	if cl.release.finish(s.f.sub, isOpen(r.Err)); cl.release.must {
		s.f.wakeCluster(BrokerQueue, cl)
	}
	if s.f.works[w.uid] != w || w.spec.sending != s.f.sub {
		cl.release.noteUnknownAnswered()
		if isOpen(r.Err) {
			s.f.endSubscription() // the work is forgotten, so no later step would repeat or undo the publish
		}
		s.compare.repeat(cl, 0) // the comparison did not expect this work
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

// outcome handles the broker's answer to a publish.
func (s *specs) outcome(w *work, e Publish, r Result) {
	reported := transportErrorOf(r.Err)
	switch {
	case r.Err == nil && r.Receipt.Outcome == codec.OutcomeStale:
		s.stale(w, e, r.Receipt.Revision)
	case r.Err == nil:
		s.accepted(w, e, r.Receipt)
	case reported.Code == transport.CodeConflict && w.hub.gone(): // another record has the name, and is not older
		s.refused(w, e, r)
	case reported.Code == transport.CodeConflict:
		s.f.failed(BrokerQueue, w.key(), &w.spec.retry, 0)
		w.broker.forget()
		s.compare.repeat(w.cl, 0)
	case reported.Code == transport.CodeOverloaded && reported.Attribute != "" && !e.fingerprint().deleting: // over a quota; other works are not affected
		s.refused(w, e, r)
		s.tryAgainAfter(w, reported.Delay)
	case s.f.brokerFailed(w.key(), &w.spec.retry, r.Err):
		if needsPerson(reported) && w.hub.ended == alive {
			s.f.setSpecProblem(w, refusal(e.Work, r.Err))
		}
		if isOpen(r.Err) {
			w.broker.assume(recordUnsure, s.f.sub, s.f.tick())
			s.nameTaken(w, e) // the work may have the name
		}
	default:
		s.refused(w, e, r)
	}
}

func (s *specs) accepted(w *work, e Publish, r transport.Receipt) {
	if w.spec.overtaken || s.responder.isDropped(w.cl, e.Stamp) {
		s.f.failed(BrokerQueue, w.key(), &w.spec.retry, 0) // the agent has not received the publish
		return
	}
	if w.spec.fresh && r.Outcome == codec.OutcomeUnchanged {
		s.compare.cursor.request(w) // the broker has the work from another hub epoch
	}
	what := recordMatches
	if e.fingerprint().deleting && r.Outcome == codec.OutcomeConfirmed {
		what = recordDeleted
	}
	w.broker.answer(s.f.sub, what, e.fingerprint(), r.Revision, s.f.tick())
	w.spec.setInSync()
	w.spec.redelivery.sent(&s.f.agenda)
	w.hub.untag()
	s.f.setSpecProblem(w, nil)
	if !e.fingerprint().deleting {
		w.turnaround.Accepted(e.Work.Generation, r.Outcome != "" && r.Outcome != codec.OutcomeAccepted, s.f.Now())
	}
	if p := w.report.pending; p != nil && p.Deleted && !e.fingerprint().deleting {
		w.report.drop(s.f, s.compare.cursor) // the report confirmed an earlier deletion of the work
	}
	s.nameTaken(w, e)
}

// nameTaken records that a work has its name at the broker now. A record that only the broker had under this
// name no longer exists.
func (s *specs) nameTaken(w *work, e Publish) {
	if s.compare.nameIsQueued(w.cl, e.Work.Name) {
		s.compare.repeat(w.cl, 0)
	}
}

// refused handles a refusal that stays until something changes.
func (s *specs) refused(w *work, e Publish, r Result) {
	code := transport.CodeOf(r.Err)
	if e.fingerprint().deleting && (w.hub.gone() || code == transport.CodeAlreadyExists) {
		// Two cases need no problem in a condition. The work left the hub, and the shell has logged the refusal. Or
		// another source has the name on this cluster: the work never became a record, and there is nothing to clean
		// up.
		w.broker.answer(s.f.sub, recordDeleted, e.fingerprint(), 0, s.f.tick())
		return
	}
	s.refuse(w, e, r.Receipt.Revision)
	s.f.setSpecProblem(w, refusal(e.Work, r.Err))
	if code == transport.CodeTooLarge || code == transport.CodeInvalid {
		w.spec.tryAgain = time.Time{}
	}
}

// shownStaleRuns is the number of failed comparisons after which Delivered is set to False.
const shownStaleRuns = 3

// stale handles the answer that the broker has a newer version. Right after a change of leaders the informer
// may lag. If the answer persists, the hub went back in time, and the comparison finds that. Without a
// comparison, a spec is given up. A deletion is sent without a version: the number of changes does not matter
// for it.
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
		w.broker.assume(recordUnsure, s.f.sub, s.f.tick())
		s.f.failed(BrokerQueue, w.key(), &w.spec.retry, time.Second)
		return
	}
	s.refuse(w, e, revision)
	s.f.setSpecProblem(w, staleSpec(e.Work))
}

func (s *specs) refuse(w *work, e Publish, revision uint64) {
	w.broker.answer(s.f.sub, recordRejected, e.fingerprint(), revision, s.f.tick())
	w.spec.retry.reset()
	s.tryAgainAfter(w, refusedDelay)
}

// tryAgainAfter publishes a refused work again after delay at most, even without a change.
func (s *specs) tryAgainAfter(w *work, delay time.Duration) {
	delay = min(delay, refusedDelay)
	w.spec.tryAgain = s.f.Now().Add(delay/2 + s.f.jittered(delay/2))
}

// changed handles a new work, or a new state of a work on the hub. A change during a subscription waits for no
// comparison: it differs from the broker's record.
func (s *specs) changed(w *work, before *workv1.ManifestWork) {
	w.spec.retry.changed()
	s.adopt(w, before)
	w.spec.late = w.spec.late || before == nil && s.f.begun && !hasFinalizer(w.hub.object)
	if before == nil || !fingerprintOf(before).equal(w.hub.fingerprint()) {
		if w.broker.on(s.f.sub) == recordUnknown && s.f.mayReport(w.cl) && (s.compare.on || s.f.stateless) {
			w.broker.assume(recordDiffers, s.f.sub, s.f.tick())
		}
	}
}
