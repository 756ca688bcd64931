package hubsource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/pkg/codec"
)

// eventsOf returns the Events of a hub, as kubectl describe shows them.
func eventsOf(t *testing.T, c *fake.Clientset) (all []string) {
	t.Helper()
	list, err := c.CoreV1().Events(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if o := e.InvolvedObject; o.Namespace != e.Namespace || o.Kind != "ManifestWork" || o.UID == "" {
			t.Errorf("an Event about %+v", o)
		}
		all = append(all, fmt.Sprintf("%s/%s %s %s x%d: %s", e.Namespace, e.InvolvedObject.Name, e.Type, e.Reason, e.Count, e.Message))
	}
	slices.Sort(all)
	return all
}

// eventsThat returns the number of Events with this result.
func eventsThat(t *testing.T, r prometheus.Gatherer, result string) (n int) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == metricPrefix+"events_total" && m.GetLabel()[0].GetValue() == result {
				n += int(m.GetCounter().GetValue())
			}
		}
	}
	return n
}

func TestEvents_OfAnEpoch(t *testing.T) {
	inBubble(t, func(b *bench) {
		hub := fake.NewClientset()
		b.agent("c1")
		b.source(func(c *Config) { c.Events = hub.CoreV1() })
		b.hub.apply(example("c1", "w"))
		b.settle(time.Second)
		b.hub.remove("manifestworks", "c1/w")
		b.settle(time.Second)
		want := []string{
			"c1/w Normal Applied x1: the cluster has applied generation 1",
			"c1/w Normal Deleted x1: nothing of the work is left on its cluster",
			"c1/w Normal DeletionWaits x1: the broker has the deletion; the work is removed when its cluster has confirmed the deletion",
			"c1/w Normal Published x1: the broker has generation 1",
		}
		if d := cmp.Diff(want, eventsOf(b.T, hub)); d != "" {
			b.Error(d)
		}
	})
}

// newRecordedEvents returns an eventRecorder that runs in a bubble, and the clientset that it writes to.
func newRecordedEvents(t *testing.T) (*eventRecorder, *fake.Clientset, prometheus.Gatherer) {
	t.Helper()
	r := prometheus.NewRegistry()
	m := newMetrics(r)
	hub := fake.NewClientset()
	report := newEventRecorder(hub.CoreV1(), m, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- report.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return report, hub, r
}

func conditionsOf(c ...metav1.Condition) workv1.ManifestWorkStatus {
	return workv1.ManifestWorkStatus{Conditions: c}
}

// A warning is written before earlier Events of type Normal.
func TestEvents_WarningsGoFirst(t *testing.T) {
	report, o := newEventRecorder(fake.NewClientset().CoreV1(), newMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)), example("c1", "w")
	report.ofWork(o, corev1.EventTypeNormal, "Published", "the broker has it")
	report.ofWork(o, corev1.EventTypeWarning, core.ReasonTooLarge, "too large")
	for _, want := range []string{core.ReasonTooLarge, "Published"} {
		if e := report.next(t.Context()); e.Reason != want {
			t.Errorf("%s comes before %s", e.Reason, want)
		}
	}
}

func TestEvents_OfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report, hub, _ := newRecordedEvents(t)
		failed := metav1.Condition{Type: "Applied", Status: metav1.ConditionFalse, Reason: "AppliedManifestWorkFailed", ObservedGeneration: 2, Message: strings.Repeat("é", 1000)}
		tooLarge := metav1.Condition{Type: core.ConditionDelivered, Status: metav1.ConditionFalse, Reason: core.ReasonTooLarge, Message: "too large"}
		o := example("c1", "w")
		o.UID, o.Status = "uid", conditionsOf()
		report.changed(o, conditionsOf(failed))
		o.Status = conditionsOf(failed)
		failed.Message = "another text"
		report.changed(o, conditionsOf(failed)) // nothing has changed
		report.changed(o, conditionsOf(failed, tooLarge))
		deleting := metav1.Condition{Type: workv1.WorkDeleting, Status: metav1.ConditionTrue, Reason: "WorkDeleting", Message: "ManifestWork is being deleted"}
		held := deleting
		held.Reason, held.Message = "WorkDeletionBlocked", "waits for finalizers: ConfigMap a/b"
		report.changed(o, conditionsOf(failed, deleting)) // this condition is expected
		o.Status = conditionsOf(failed, deleting)
		report.changed(o, conditionsOf(failed, held))
		o.Status = conditionsOf(failed, tooLarge, held)
		answered := metav1.Condition{Type: core.ConditionDelivered, Status: metav1.ConditionTrue, Reason: core.ReasonClusterAnswered, ObservedGeneration: 2, Message: "answered"}
		report.changed(o, conditionsOf(failed, answered, held)) // the failure is over, which is no warning
		late := metav1.Condition{Type: "ReconcileSlow", Status: metav1.ConditionTrue, Reason: "RemovalBlocked", ObservedGeneration: 2, Message: "denied: keep it"}
		report.changed(o, conditionsOf(failed, tooLarge, held, late))
		s := &shell{shellConfig: shellConfig{events: report, log: slog.New(slog.DiscardHandler)}}
		s.withheld(t.Context(), codec.ClusterSyncReport{Cluster: "c1", Withheld: []codec.WithheldDeletion{{Name: "lost", ResourceID: "uid-lost"}}}, "an operator decides")
		s.reportWithheld(t.Context(), core.Withhold{ClusterSyncReport: codec.ClusterSyncReport{
			Cluster: "c2", Withheld: []codec.WithheldDeletion{{Name: "held", ResourceID: "uid-held"}}, Reason: "the hub went back",
		}})
		<-time.After(time.Second) // the time of the bubble
		want := []string{
			"c1/lost Warning DeletionWithheld x1: an operator decides",
			"c1/w Warning ApplyFailed x1: " + strings.Repeat("é", 510) + "...",
			"c1/w Warning RemovalBlocked x1: denied: keep it",
			"c1/w Warning TooLarge x1: too large",
			"c1/w Warning WorkDeletionBlocked x1: waits for finalizers: ConfigMap a/b",
			"c2/held Warning DeletionWithheld x1: the hub lacks this work, and it stays on its cluster until an operator decides" +
				" (create a ManifestWork of the same name in the namespace of the cluster, and delete it): the hub went back",
		}
		if d := cmp.Diff(want, eventsOf(t, hub)); d != "" {
			t.Error(d)
		}
	})
}

// A repeated Event is one Event with a count. A work with too many Events, or a slow hub, costs the hub at most
// ten writes a second, and no work waits.
func TestEvents_AreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report, hub, registry := newRecordedEvents(t)
		o := example("c1", "w")
		o.UID = "uid"
		for range 100 {
			report.ofWork(o, corev1.EventTypeNormal, "Applied", "once more")
		}
		<-time.After(20 * time.Second) // the time of the bubble
		if d := cmp.Diff([]string{"c1/w Normal Applied x25: once more"}, eventsOf(t, hub)); d != "" {
			t.Error(d)
		}
		if n := eventsThat(t, registry, "dropped"); n != 75 {
			t.Errorf("%d dropped", n)
		}
		hub.ClearActions()
		for i := range 3 * eventQueue {
			o := example("c2", fmt.Sprint("w-", i))
			o.UID = "uid"
			report.ofWork(o, corev1.EventTypeNormal, "Applied", "once")
		}
		<-time.After(10*time.Second + time.Millisecond) // the time of the bubble
		if n := len(hub.Actions()); n < 95 || n > 105 {
			t.Errorf("%d writes in 10 s", n)
		}
		if n := eventsThat(t, registry, "dropped"); n < 75+2*eventQueue-2 {
			t.Errorf("%d dropped", n)
		}
	})
}

// The hub may have deleted an Event, or may forbid Events: the next one is still written.
func TestEvents_ContinueAfterDeletedOrForbiddenEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report, hub, registry := newRecordedEvents(t)
		o := example("c1", "w")
		o.UID = "uid"
		send := func() []string {
			report.ofWork(o, corev1.EventTypeNormal, "Applied", "once")
			<-time.After(time.Second) // the time of the bubble
			return eventsOf(t, hub)
		}
		send()
		list, err := hub.CoreV1().Events("c1").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatal(err, list.Items)
		}
		if err := hub.CoreV1().Events("c1").Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"c1/w Normal Applied x2: once"}, send()); d != "" {
			t.Error(d)
		}
		forbids := true
		hub.PrependReactor("*", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetVerb() == "list" || !forbids {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no role"))
		})
		send()
		forbids = false
		if got := send(); len(got) != 1 || !strings.HasPrefix(got[0], "c1/w Normal Applied x") {
			t.Errorf("%q", got)
		}
		if n := eventsThat(t, registry, "forbidden"); n != 1 {
			t.Errorf("%d forbidden", n)
		}
	})
}
