package hubsource

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Limits of the cost of Events for the hub. Events are for operators: an Event above the limits is dropped and
// counted, and no work waits for one. The hub keeps an Event for an hour, so it has at most 36,000 of these.
const (
	eventQueue      = 1000
	eventsPerSecond = 10
	eventTimeout    = 10 * time.Second
	longestEvent    = 1024 // bytes of a message
	longestPrefix   = 200  // bytes of a work's name in the name of its Event
)

// eventRecorder writes Kubernetes Events about works. A nil eventRecorder drops all.
type eventRecorder struct {
	events          typedcorev1.EventsGetter
	warnings, queue chan *corev1.Event // warnings go first
	metrics         *metrics
	log             *slog.Logger
}

// newEventRecorder returns nil if Events are not wanted.
func newEventRecorder(events typedcorev1.EventsGetter, m *metrics, log *slog.Logger) *eventRecorder {
	if events == nil {
		return nil
	}
	return &eventRecorder{events: events, warnings: make(chan *corev1.Event, eventQueue), queue: make(chan *corev1.Event, eventQueue), metrics: m, log: log}
}

// Run writes Events until ctx ends, one at a time. A repeated Event increases a count, and each work gets only
// a few in five minutes.
func (t *eventRecorder) Run(ctx context.Context) error {
	correlator := record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{})
	pace := flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, 1)
	failing := false
	for pace.Wait(ctx) == nil {
		e := t.next(ctx)
		if e == nil {
			break
		}
		result, err := t.write(ctx, correlator, e)
		t.metrics.events.WithLabelValues(result).Inc()
		if forbidden := result == "forbidden"; forbidden != failing {
			failing = forbidden
			t.log.WarnContext(ctx, "the right to write Events about works has changed (deploy/hub-source/rbac.yaml grants it)", "allowed", !failing, "err", err)
		}
	}
	return nil
}

// next waits for the next Event, warnings first. It returns nil if ctx has ended.
func (t *eventRecorder) next(ctx context.Context) *corev1.Event {
	select {
	case e := <-t.warnings:
		return e
	default:
	}
	select {
	case e := <-t.warnings:
		return e
	case e := <-t.queue:
		return e
	case <-ctx.Done():
		return nil
	}
}

// write writes an Event, and returns the result as the metric names it.
func (t *eventRecorder) write(ctx context.Context, c *record.EventCorrelator, e *corev1.Event) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	r, err := c.EventCorrelate(e)
	if err != nil || r.Skip {
		return "dropped", err
	}
	into, again := t.events.Events(e.Namespace), r.Event.Count > 1
	if again {
		e, err = into.Patch(ctx, r.Event.Name, types.StrategicMergePatchType, r.Patch, metav1.PatchOptions{FieldManager: fieldManager})
	}
	if !again || apierrors.IsNotFound(err) { // the hub forgets Events after an hour
		r.Event.ResourceVersion = ""
		e, err = into.Create(ctx, r.Event, metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err == nil {
		c.UpdateState(e)
	}
	return kubeerror.Result(err), err
}

// record queues an Event about a work, if there is space in the queue.
func (t *eventRecorder) record(about types.NamespacedName, uid types.UID, severity, reason, message string) {
	if t == nil {
		return
	}
	if len(message) > longestEvent {
		message = strings.ToValidUTF8(message[:longestEvent-3], "") + "..."
	}
	now := metav1.Now()
	prefix := strings.TrimRight(about.Name[:min(len(about.Name), longestPrefix)], ".-")
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.Namespace, Name: prefix + "." + uuid.NewString()},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: workv1.GroupVersion.String(), Kind: "ManifestWork", Namespace: about.Namespace, Name: about.Name, UID: uid,
		},
		Type: severity, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: fieldManager}, ReportingController: fieldManager,
	}
	queue := t.queue
	if severity == corev1.EventTypeWarning {
		queue = t.warnings
	}
	select {
	case queue <- e:
	default:
		t.metrics.events.WithLabelValues("dropped").Inc()
	}
}

func (t *eventRecorder) ofWork(o *workv1.ManifestWork, severity, reason, message string) {
	t.record(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o.UID, severity, reason, message)
}

// published records that the broker has accepted a new state.
func (t *eventRecorder) published(e core.Publish, r core.Result) {
	switch {
	case r.Err != nil || r.Receipt.Outcome != codec.OutcomeAccepted:
	case e.Action == codec.DeleteRequest:
		t.ofWork(e.Work, corev1.EventTypeNormal, "DeletionWaits", "the broker has the deletion; the work is removed when its cluster has confirmed the deletion")
	default:
		t.ofWork(e.Work, corev1.EventTypeNormal, "Published", fmt.Sprintf("the broker has generation %d", e.Work.Generation))
	}
}

// silent are the conditions, by status or by reason, without an Event: they are usual, or another condition has
// the Event.
var silent = map[[2]string]bool{
	{workv1.WorkDeleting, "WorkDeleting"}: true,
	{core.ConditionDelivered, "True"}:     true,
}

// changed records the new conditions in a written status. A change of the message alone gets no Event.
func (t *eventRecorder) changed(o *workv1.ManifestWork, status workv1.ManifestWorkStatus) {
	for _, typ := range []string{workv1.WorkApplied, core.ConditionDelivered, "Contested", "ReconcileSlow", workv1.WorkDeleting} {
		is, was := meta.FindStatusCondition(status.Conditions, typ), meta.FindStatusCondition(o.Status.Conditions, typ)
		switch {
		case is == nil, was != nil && is.Status == was.Status && is.Reason == was.Reason && is.ObservedGeneration == was.ObservedGeneration:
		case silent[[2]string{typ, is.Reason}], silent[[2]string{typ, string(is.Status)}]:
		case typ != workv1.WorkApplied:
			t.ofWork(o, corev1.EventTypeWarning, is.Reason, is.Message)
		case is.Status == metav1.ConditionTrue:
			t.ofWork(o, corev1.EventTypeNormal, "Applied", fmt.Sprintf("the cluster has applied generation %d", is.ObservedGeneration))
		case is.Status == metav1.ConditionFalse:
			t.ofWork(o, corev1.EventTypeWarning, "ApplyFailed", is.Message)
		}
	}
}

// wrote records a write on the hub. The cluster's report gets its Events even if the hub rejects it for good.
func (t *eventRecorder) wrote(e core.Effect, err error) {
	switch e := e.(type) {
	case core.PatchStatus:
		if err == nil || kubeerror.Rejected(err) {
			t.changed(e.Work, e.Status)
		}
	case core.RemoveFinalizer:
		if err == nil {
			t.ofWork(e.Work, corev1.EventTypeNormal, "Deleted", "nothing of the work is left on its cluster")
		}
	}
}
