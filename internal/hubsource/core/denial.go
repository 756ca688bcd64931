package core

import (
	"fmt"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/kubeerror"
)

// A report that the hub does not take must not hold up the cursor, which all works share: every
// reconnect would bring the statuses of all clusters again that came after it.
//
//	t1 the agent reports, the hub refuses
//	t2 the report is dropped, Delivered says why, then the cursor goes on
//	t3 after a while the broker is asked for it again: there may be room for it by then
//
// A restart of this process between t2 and t3 finds Delivered on the work, and goes on from there.

// largeReport is what is measured before it is sent. A report is asked for after longestRefusal where the hub
// said that it never takes it, after refusedDelay where it failed again and again.
const (
	largeReport    = 64 << 10
	longestRefusal = time.Hour
)

// denial is what the hub said of reports of one work that it did not take.
type denial struct {
	kubeerror.Series
	// retryAt is when the report is asked for, zero if none was refused. Before untold the condition
	// Delivered alone is not written: there was no room for that either.
	retryAt, unreportedSince time.Time
}

// changed lets Delivered be written: the work is another one now.
func (d *denial) changed() { d.unreportedSince = time.Time{} }

// fitting returns the report, nil for none, and for one that the hub has no room for, which is refused.
func (s *statuses) fitting(w *work, o *workv1.ManifestWork, r *Report) *Report {
	if r == nil || r.Size < largeReport {
		return r
	}
	with := *o
	if with.Status, _ = s.desired(w, o, r); kubeerror.SizeOf(&with) > kubeerror.MaxObject {
		s.refuse(w, o, r, nil)
		return nil
	}
	return r
}

// mayWrite reports whether a report may be written now, or the condition Delivered alone. Where there is no room for
// that either, the cursor does not wait for it.
func (s *statuses) mayWrite(w *work) bool {
	if w.report.pending == nil && s.f.until(HubQueue, w.key(), w.report.denial.unreportedSince) {
		w.report.letGo(s.cursor)
		return false
	}
	return s.f.due(HubQueue, w.key(), &w.report.retry)
}

// refuse gives a report up until it is asked for; err is nil if the hub was not asked. r is nil where the
// condition Delivered alone was refused.
func (s *statuses) refuse(w *work, o *workv1.ManifestWork, r *Report, err error) {
	if r == nil {
		w.report.denial.unreportedSince = s.f.Now().Add(longestRefusal)
	}
	if r == nil || w.report.pending != r {
		return // a newer one has come, of which the hub has said nothing
	}
	p, after := newProblem(o, ReasonStatusRejected, fmt.Sprint("the hub does not take the status that the cluster reported, the one shown is older: ", err)), longestRefusal
	switch {
	case err == nil || kubeerror.TooLarge(err):
		p = statusTooLarge(o)
	case !kubeerror.Rejected(err):
		after = refusedDelay
	}
	w.report.clear(s.f) // the cursor waits for Delivered
	s.giveUp(w, p, after)
}

func (s *statuses) giveUp(w *work, p *problem, after time.Duration) {
	s.f.setStatusProblem(w, p)
	w.report.denial.retryAt = s.f.Now().Add(after + s.f.jittered(after/4))
	s.f.wakeAt(HubQueue, w.key(), w.report.denial.retryAt)
}

// retryRefused asks for a report that was refused, when it is time.
func (s *statuses) retryRefused(w *work) {
	if at := w.report.denial.retryAt; !at.IsZero() && w.report.pending == nil && !s.f.until(HubQueue, w.key(), at) && s.f.begun {
		w.report.denial.retryAt = time.Time{}
		w.report.forgetSequence()
		s.cursor.request(w)
	}
}

// adopt goes on with what an earlier process said of a report that was refused: the cursor is behind it. The
// informer may lag, and show it late.
func (s *statuses) adopt(w *work) {
	if p := problemOnHub(w, ReasonStatusRejected, ReasonStatusTooLarge); p != nil && w.report.pending == nil && w.problems.status == nil {
		s.giveUp(w, p, refusedDelay)
	}
}
