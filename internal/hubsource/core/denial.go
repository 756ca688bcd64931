package core

import (
	"fmt"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/kubeerror"
)

// A report that the hub rejects must not stop the cursor, because all works share it. Otherwise every reconnect
// would bring all later statuses of all clusters again.
//
// Scenario:
//   t1: the agent reports; the hub rejects the report.
//   t2: the report is dropped, Delivered gives the reason, then the cursor moves on.
//   t3: later the report is requested again, because it may fit by then.
// Result: a process that restarts between t2 and t3 finds Delivered on the work, and continues with t3.

// largeReport is the size in bytes from which a report is measured before it is sent. A report is requested
// after longestRefusal if the hub never accepts it, and after refusedDelay if it failed repeatedly.
const (
	largeReport    = 64 << 10
	longestRefusal = time.Hour
)

// denial is the state of the rejected reports of one work.
type denial struct {
	kubeerror.Series
	// retryAt is when the report is requested again, zero if none was rejected. The hub rejected a write of
	// Delivered alone; it is not repeated before unreportedSince.
	retryAt, unreportedSince time.Time
}

// changed permits a write of Delivered again, because the work has changed.
func (d *denial) changed() { d.unreportedSince = time.Time{} }

// fitting returns the report, or nil if it does not fit on the hub; then refuse was called. For nil it returns
// nil.
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

// mayWrite reports whether a report, or the condition Delivered alone, may be written now. If the hub has
// rejected Delivered too, the cursor does not wait for it.
func (s *statuses) mayWrite(w *work) bool {
	if w.report.pending == nil && s.f.until(HubQueue, w.key(), w.report.denial.unreportedSince) {
		w.report.letGo(s.cursor)
		return false
	}
	return s.f.due(HubQueue, w.key(), &w.report.retry)
}

// refuse drops a report until it is requested again. err is nil if no write was tried. r is nil if the hub
// rejected the condition Delivered alone.
func (s *statuses) refuse(w *work, o *workv1.ManifestWork, r *Report, err error) {
	if r == nil {
		w.report.denial.unreportedSince = s.f.Now().Add(longestRefusal)
	}
	if r == nil || w.report.pending != r {
		return // a newer report has come, which the hub has not rejected
	}
	p, after := newProblem(o, ReasonStatusRejected, fmt.Sprint("the hub rejects the status that the cluster reported, so the shown one is older: ", err)), longestRefusal
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

// retryRefused requests a rejected report again when it is time.
func (s *statuses) retryRefused(w *work) {
	if at := w.report.denial.retryAt; !at.IsZero() && w.report.pending == nil && !s.f.until(HubQueue, w.key(), at) && s.f.begun {
		w.report.denial.retryAt = time.Time{}
		w.report.forgetSequence()
		s.cursor.request(w)
	}
}

// adopt takes over a rejected report of an earlier process from the condition Delivered; the cursor may have
// passed that report. The informer may lag, and show the condition late.
func (s *statuses) adopt(w *work) {
	if p := problemOnHub(w, ReasonStatusRejected, ReasonStatusTooLarge); p != nil && w.report.pending == nil && w.problems.status == nil {
		s.giveUp(w, p, refusedDelay)
	}
}
