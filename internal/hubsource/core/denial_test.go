package core

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// errStore is an error of an API server with a text of etcd.
func errStore(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: text}}
}

// large is a report with a status of about bytes bytes.
func large(w *workv1.ManifestWork, n, bytes int) *Report {
	s := applied(w.Generation)
	for i := range bytes / 1000 {
		s.ResourceStatus.Manifests = append(s.ResourceStatus.Manifests, workv1.ManifestCondition{
			ResourceMeta: workv1.ManifestResourceMeta{Ordinal: int32(i), Name: strings.Repeat("n", 900)}, Conditions: []metav1.Condition{},
		})
	}
	r := report(w, n, s)
	r.Size = bytes
	return r
}

// onlyDelivered reports whether a write changes the condition Delivered alone.
func onlyDelivered(e PatchStatus) bool {
	rest := func(s workv1.ManifestWorkStatus) []metav1.Condition {
		return slices.DeleteFunc(slices.Clone(s.Conditions), isDelivered)
	}
	return apiequality.Semantic.DeepEqual(rest(e.Status), rest(e.Work.Status)) && apiequality.Semantic.DeepEqual(e.Status.ResourceStatus, e.Work.Status.ResourceStatus)
}

// showsDelivered executes the write of Delivered, which must change nothing else.
func (f *fixture) showsDelivered(w *workv1.ManifestWork, reason string) *workv1.ManifestWork {
	f.t.Helper()
	e := next[PatchStatus](f, HubQueue, w.UID)
	if d := delivered(e.Status); d == nil || d.Reason != reason || !onlyDelivered(e) || len(e.Status.ResourceStatus.Manifests) > 0 {
		f.t.Fatalf("writes %+v", e.Status)
	}
	after := newWork(w.Name, w.Generation, version("102"), withStatus(e.Status))
	f.done(e, Result{Work: after})
	f.seen(after)
	f.idle(HubQueue, w.UID)
	return after
}

// TestCore_SkipsTooLargeStatus checks that a status that is too large is not sent to the hub, and that the
// cursor moves on. After an hour the status is requested again.
func TestCore_SkipsTooLargeStatus(t *testing.T) {
	w, v := newWork("w", 1), newWork("v", 1)
	f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, w, v)
	f.core.Report(large(w, 1, 1_700_000))
	f.core.Report(report(v, 1, applied(1)))
	f.checkpoint(2, 0)
	w = f.showsDelivered(w, ReasonStatusTooLarge)
	f.at(1)
	f.done(next[PatchStatus](f, HubQueue, v.UID), Result{Work: newWork("v", 1, version("300"), withStatus(applied(1)))})
	f.at(2)
	for n := 2; n < 50; n++ { // the same report again must not cause a write on the hub
		f.core.Report(large(w, n, 1_700_000))
		f.idle(HubQueue, w.UID)
	}
	f.checkpoint(3, 0)
	f.at(3)
	f.now = f.now.Add(longestRefusal)
	f.idle(HubQueue, w.UID)
	request := nextOf[RequestStatuses](f, BrokerQueue, Key{Cluster: w.Namespace})
	if len(request.Statuses) != 1 || request.Statuses[0].UID != w.UID {
		t.Fatalf("it requests %+v", request)
	}
	f.done(request, Result{Sent: 1})
	if v := f.core.Report(report(w, 49, applied(1))); v != Taken { // the rejected report fits now
		t.Fatalf("result %s", v)
	}
	if e := next[PatchStatus](f, HubQueue, w.UID); fault(e.Status) != nil || onlyDelivered(e) {
		t.Errorf("writes %+v", e)
	}
}

// TestCore_StatusTooLargeForTheHub: fields that informers drop count for the size on the hub, so only the hub's
// answer shows the problem.
func TestCore_StatusTooLargeForTheHub(t *testing.T) {
	for name, err := range map[string]error{
		"by its store":      errStore("etcdserver: request is too large"),
		"by its client":     errStore("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2100000 vs. 2097152)"),
		"by its API server": apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWork("w", 1)
			f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, w)
			f.core.Report(large(w, 1, 1_300_000))
			f.checkpoint(2, 0)
			f.done(next[PatchStatus](f, HubQueue, w.UID), Result{Err: err})
			f.at(1) // a process that ends here leaves no trace of the rejection
			w = f.showsDelivered(w, ReasonStatusTooLarge)
			f.at(2)
			f.core.index.works[w.UID].problems.known = true // the spec was published
			f.core.Report(large(w, 2, 1_000_000))
			if e := next[PatchStatus](f, HubQueue, w.UID); len(e.Status.ResourceStatus.Manifests) != 1000 || fault(e.Status) != nil {
				t.Errorf("writes %d manifests, Delivered is %+v", len(e.Status.ResourceStatus.Manifests), delivered(e.Status))
			}
		})
	}
}

// TestCore_DeliveredTooLargeForTheHub: the write is not retried before the work changes.
func TestCore_DeliveredTooLargeForTheHub(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, w)
	f.core.Report(large(w, 1, 1_700_000))
	full := errStore("etcdserver: request is too large")
	f.done(next[PatchStatus](f, HubQueue, w.UID), Result{Err: full})
	for range 6 {
		f.idle(HubQueue, w.UID)
		f.now = f.now.Add(longestRefusal / 6)
	}
	f.done(next[PatchStatus](f, HubQueue, w.UID), Result{Err: full})
	f.idle(HubQueue, w.UID)
	f.seen(newWork("w", 1, version("200"), func(o *workv1.ManifestWork) { o.Annotations = nil }))
	next[PatchStatus](f, HubQueue, w.UID)
}

// TestCore_RetriesRejectedStatusBehindCursor: the hub returns the same error for minutes, while it accepts other
// statuses. Then the cursor passes the status, which is retried every five minutes.
func TestCore_RetriesRejectedStatusBehindCursor(t *testing.T) {
	w, v := newWork("w", 1), newWork("v", 1)
	f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, w, v)
	f.core.Report(report(w, 1, applied(1)))
	f.checkpoint(2, 0)
	patches := 0
	refuse := func(err error, until time.Duration) {
		t.Helper()
		for end := f.now.Add(until); f.now.Before(end); f.now = f.now.Add(time.Second) {
			switch e := f.core.Next(HubQueue, Key{UID: w.UID}).(type) {
			case PatchStatus:
				if patches++; onlyDelivered(e) {
					after := newWork("w", 1, version("102"), withStatus(e.Status))
					f.done(e, Result{Work: after})
					f.seen(after)
				} else {
					f.done(e, Result{Err: err})
				}
			case nil:
			default:
				t.Fatalf("next is %T", e)
			}
		}
	}
	webhook := errStore("failed calling webhook after 31 ms: no such host")
	refuse(webhook, 10*time.Minute)
	f.at(1) // the hub accepts no status at all, so this one is not rejected
	refuse(errHubDown(), 10*time.Minute)
	f.core.index.wroteAt = f.now
	refuse(errHubDown(), 10*time.Minute) // this error shows nothing about the status
	f.at(1)
	refuse(webhook, time.Minute)
	f.core.Report(report(v, 1, applied(1)))
	f.done(next[PatchStatus](f, HubQueue, v.UID), Result{Work: newWork("v", 1, version("300"), withStatus(applied(1)))})
	refuse(webhook, 2*time.Minute)
	f.at(2)
	if d := delivered(f.core.index.works[w.UID].hub.object.Status); d == nil || d.Reason != ReasonStatusRejected {
		t.Fatalf("Delivered is %+v", d)
	}
	patches = 0
	for range 10 {
		refuse(webhook, refusedDelay)
		if request, ok := f.core.Next(BrokerQueue, Key{Cluster: w.Namespace}).(RequestStatuses); ok {
			f.done(request, Result{Sent: 1})
		}
		f.core.Report(report(w, 1, applied(1)))
	}
	if patches > 10 {
		t.Errorf("%d patches in 50 minutes", patches)
	}
	if s := f.core.Stats(); s.Undelivered[ReasonStatusRejected] > 1 {
		t.Error(s.Undelivered)
	}
}

// TestCore_ARefusedStatusOutlivesTheProcess: the next process finds Delivered, and requests the status after a
// delay.
func TestCore_ARefusedStatusOutlivesTheProcess(t *testing.T) {
	s := applied(1)
	s.Conditions = append(s.Conditions, metav1.Condition{Type: ConditionDelivered, Status: "False", Reason: ReasonStatusTooLarge, Message: "no room"})
	w := newWork("w", 1, withStatus(s))
	f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, w)
	f.idle(HubQueue, w.UID) // Delivered stays
	if n := f.core.Stats().Undelivered[ReasonStatusTooLarge]; n != 1 {
		t.Errorf("%d are undelivered", n)
	}
	f.now = f.now.Add(refusedDelay)
	f.idle(HubQueue, w.UID)
	nextOf[RequestStatuses](f, BrokerQueue, Key{Cluster: w.Namespace})
	f.core.index.works[w.UID].problems.known = true // the spec was published
	f.core.Report(report(w, 1, applied(1)))
	if e := next[PatchStatus](f, HubQueue, w.UID); fault(e.Status) != nil {
		t.Errorf("Delivered stays: %+v", e.Status.Conditions)
	}
}

// TestCore_ARefusalOfAnOlderStatus: a refusal does not apply to a newer status that came meanwhile.
func TestCore_ARefusalOfAnOlderStatus(t *testing.T) {
	w := newWork("w", 1)
	f := served(t, w)
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubQueue, w.UID)
	f.core.Report(report(w, 2, applied(1)))
	f.done(e, Result{Err: errInvalid()})
	if e := next[PatchStatus](f, HubQueue, w.UID); onlyDelivered(e) || fault(e.Status) != nil {
		t.Errorf("writes %+v", e)
	}
}

// TestCore_PassesUnremovableFinalizer: a finalizer that cannot be removed does not stop the cursor either.
func TestCore_PassesUnremovableFinalizer(t *testing.T) {
	w := newWork("w", 1, deleting)
	f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, w)
	r := report(w, 1, workv1.ManifestWorkStatus{})
	r.Deleted, r.Revision = true, 1000
	f.core.Report(r)
	f.checkpoint(2, 0)
	f.at(1)
	f.done(next[RemoveFinalizer](f, HubQueue, w.UID), Result{Err: errInvalid()})
	f.at(2)
	f.now = f.now.Add(time.Minute)
	next[RemoveFinalizer](f, HubQueue, w.UID)
}

// rejected is a work whose Delivered shows that the hub rejected its status in an earlier process.
func rejected(v string) *workv1.ManifestWork {
	s := applied(1)
	s.Conditions = append(s.Conditions, metav1.Condition{Type: ConditionDelivered, Status: "False", Reason: ReasonStatusRejected, Message: "no"})
	return newWork("w", 1, withStatus(s), version(v))
}

// TestCore_RecognizesRejectedStatusFromLateInformer: the informers lag when the process starts, and first show
// the work without Delivered.
func TestCore_RecognizesRejectedStatusFromLateInformer(t *testing.T) {
	w := rejected("200")
	f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, newWork("w", 1, version("100")))
	f.idle(HubQueue, w.UID)
	f.seen(w)
	f.idle(HubQueue, w.UID)
	f.now = f.now.Add(refusedDelay)
	f.idle(HubQueue, w.UID)
	nextOf[RequestStatuses](f, BrokerQueue, Key{Cluster: w.Namespace})
}

// TestCore_ARefusedStatusWithoutABroker: the status is requested once the broker is connected.
func TestCore_ARefusedStatusWithoutABroker(t *testing.T) {
	w := rejected("100")
	f := comparingCore(t, Config{All: true, State: SavedState{Cursor: cursorAt(1).String()}})
	f.seen(w)
	f.now = f.now.Add(longestRefusal)
	f.idle(HubQueue, w.UID)
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.idle(HubQueue, w.UID)
	nextOf[RequestStatuses](f, BrokerQueue, Key{Cluster: w.Namespace})
}

// TestCore_PassesConfirmationWithoutRemoval: a deletion is confirmed, and the finalizer is still there. Then the
// cluster is released, or the broker no longer reports the deletion. The cursor does not wait for it.
func TestCore_PassesConfirmationWithoutRemoval(t *testing.T) {
	for name, end := range map[string]func(f *fixture, w *workv1.ManifestWork){
		"released": func(f *fixture, w *workv1.ManifestWork) {
			f.unselected(w.Namespace)
			f.core.Next(BrokerQueue, Key{Cluster: w.Namespace})
		},
		"forgotten": func(f *fixture, w *workv1.ManifestWork) {
			f.core.index.works[w.UID].broker.forget()
			f.core.Next(HubQueue, Key{UID: w.UID})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWork("w", 1, deleting)
			f := comparingCore(t, Config{State: SavedState{Cursor: cursorAt(1).String()}})
			f.selected(w.Namespace)
			f.seen(w)
			f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
			r := report(w, 1, workv1.ManifestWorkStatus{})
			r.Deleted, r.Revision = true, 1000
			f.core.Report(r)
			f.done(next[RemoveFinalizer](f, HubQueue, w.UID), Result{Err: errHubDown()})
			end(f, w)
			if held := f.core.index.works[w.UID].report.queued; held != 0 {
				t.Errorf("the cursor waits for it")
			}
		})
	}
}

// TestCore_ClearsRejectionOfUnchangedStatus: while hub-source is disconnected, the cluster reports the status
// that the hub shows. Then Delivered=False is removed.
func TestCore_ClearsRejectionOfUnchangedStatus(t *testing.T) {
	w := rejected("100")
	f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, w)
	f.idle(HubQueue, w.UID)
	f.now = f.now.Add(refusedDelay)
	f.idle(HubQueue, w.UID)
	if request := nextOf[RequestStatuses](f, BrokerQueue, Key{Cluster: w.Namespace}); request.Statuses[0].Work != nil || request.Statuses[0].Hash != "none" {
		t.Fatalf("it requests statuses that differ from %+v", request.Statuses[0])
	}
	f.core.Report(report(w, 1, applied(1)))
	if e := next[PatchStatus](f, HubQueue, w.UID); fault(e.Status) != nil {
		t.Errorf("writes %+v", e.Status)
	}
}
