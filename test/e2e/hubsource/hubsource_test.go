// Package hubsource runs a hub-source on a real kube-apiserver, with the permissions of deploy/. The broker
// runs in this process, and an agent reports what each test needs. The tests show how the API server treats
// each write.
package hubsource

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	workversioned "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

const cluster = "cluster1"

// hub is a kube-apiserver with the objects of deploy/hub-source.
type hub struct {
	harness.ControlPlane
	broker *testkit.Broker
	agent  *agent
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{ControlPlane: *harness.NewControlPlane(t, "../../..", "hub-source", "manifestworks", 0)}
	for _, ns := range []string{cluster, "cluster2"} {
		h.Kubectl("create", "namespace", ns)
	}
	h.Limited.QPS = -1
	h.broker = testkit.StartBroker(t, testkit.Options{})
	h.agent = &agent{hub: h, held: map[string]*manifestwork.Spec{}}
	h.agent.session = session.New(session.Config{
		Dialer: h.broker.Dialer(identity.Identity{Role: identity.Agent, Name: cluster}),
		Filter: transport.Filter{Cluster: cluster, DataType: codec.ManifestBundles}, Handler: h.agent, Log: slog.New(slog.DiscardHandler),
	})
	h.Client(h.agent.session.Run)
	return h
}

// sourceConfig returns the configuration of a hub-source with only the rights of its ServiceAccount.
func (h *hub) sourceConfig(change ...func(*hubsource.Config)) hubsource.Config {
	cfg := hubsource.Config{
		ID: "hub", Works: workversioned.NewForConfigOrDie(h.Limited), Metadata: metadata.NewForConfigOrDie(h.Limited),
		Election: leader.Election{
			Leases: kubernetes.NewForConfigOrDie(h.Limited).CoordinationV1(), Namespace: "hawser", Name: "hawser-hub-source",
			Identity: replica(), Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: time.Second,
		},
		ConfigMaps: kubernetes.NewForConfigOrDie(h.Limited).CoreV1(), StateNamespace: "hawser",
		Events:     kubernetes.NewForConfigOrDie(h.Limited).CoreV1(),
		Dialer:     h.broker.Dialer(identity.Identity{Role: identity.Source, Name: "hub"}),
		Registerer: prometheus.NewRegistry(), Health: &telemetry.Health{}, Log: slog.New(slog.NewTextHandler(h.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

// source starts a hub-source.
func (h *hub) source(change ...func(*hubsource.Config)) (stop func() error) {
	h.Helper()
	s, err := hubsource.New(h.sourceConfig(change...))
	if err != nil {
		h.Fatal(err)
	}
	return h.Client(s.Run)
}

var replicas int

func replica() string {
	replicas++
	return fmt.Sprint("replica-", replicas)
}

func (h *hub) create(name string, data string) *workv1.ManifestWork {
	h.Helper()
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: cluster, Name: name}}
	w.Spec.Workload.Manifests = manifests(data)
	w, err := h.Works.WorkV1().ManifestWorks(cluster).Create(h.Context(), w, metav1.CreateOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return w
}

func manifests(data string) []workv1.Manifest {
	return []workv1.Manifest{{RawExtension: runtime.RawExtension{
		Raw: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"},"data":{"a":"` + data + `"}}`)}}}
}

func (h *hub) patch(name, patch string) {
	h.Helper()
	_, err := h.Works.WorkV1().ManifestWorks(cluster).Patch(h.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		h.Fatal(err)
	}
}

func (h *hub) delete(name string) {
	h.Helper()
	if err := h.Works.WorkV1().ManifestWorks(cluster).Delete(h.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.Fatal(err)
	}
}

// delivered waits until the hub shows that the cluster has answered for a generation.
func (h *hub) delivered(name string, generation int64) {
	h.Helper()
	h.Eventually(func() error {
		w, err := h.Works.WorkV1().ManifestWorks(cluster).Get(h.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := meta.FindStatusCondition(w.Status.Conditions, core.ConditionDelivered); c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != generation {
			return fmt.Errorf("conditions are %+v", w.Status.Conditions)
		}
		return nil
	})
}

// shows waits until the hub shows a status condition with this message.
func (h *hub) shows(name, conditionType, message string) *workv1.ManifestWork {
	h.Helper()
	var w *workv1.ManifestWork
	h.Eventually(func() (err error) {
		if w, err = h.Works.WorkV1().ManifestWorks(cluster).Get(h.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		c := meta.FindStatusCondition(w.Status.Conditions, conditionType)
		if c != nil && strings.Contains(c.Message, message) {
			return nil
		}
		return fmt.Errorf("conditions are %+v", w.Status.Conditions)
	})
	return w
}

func (h *hub) gone(name string) {
	h.Helper()
	h.Eventually(func() error {
		w, err := h.Works.WorkV1().ManifestWorks(cluster).Get(h.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%s is still there: %+v, %w", name, w, err)
	})
}

// agent keeps the received specs, and reports each of them as applied.
type agent struct {
	hub     *hub
	session *session.Session

	mu       sync.Mutex
	held     map[string]*manifestwork.Spec // by name
	sequence codec.Sequencer
}

func (a *agent) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }

func (a *agent) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	e, err := codec.NewSpecResyncRequest(codec.ResyncParams{ID: "resync", Time: time.Now(), Source: "agent", Cluster: cluster, DataType: codec.ManifestBundles}, nil)
	return []codec.Event{e}, err
}

func (a *agent) Disconnected(error) {}

func (a *agent) Handle(ctx context.Context, e codec.Event) error {
	if e.Type() == codec.TypeCheckpoint {
		return nil // this agent keeps no cursor
	}
	s, err := manifestwork.DecodeSpec(e)
	if err != nil {
		a.hub.Errorf("agent: %v", err)
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held[s.Name] = s; s.Deleting {
		delete(a.held, s.Name)
	}
	return a.publish(ctx, s, status("as sent", s.Generation))
}

func status(message string, generation int64) workv1.ManifestWorkStatus {
	return workv1.ManifestWorkStatus{Conditions: []metav1.Condition{{
		Type: "Applied", Status: metav1.ConditionTrue, Reason: "AppliedManifestWorkComplete", Message: message,
		ObservedGeneration: generation, LastTransitionTime: metav1.Now().Rfc3339Copy(),
	}}}
}

// publish reports a status; the caller holds the lock.
func (a *agent) publish(ctx context.Context, s *manifestwork.Spec, st workv1.ManifestWorkStatus) error {
	e, err := manifestwork.EncodeStatus(s.Ref, st, manifestwork.StatusParams{
		ID: "status", Now: time.Now(), Source: "agent", OriginalSource: s.Source, Action: codec.UpdateRequest,
		SequenceID: a.sequence.Next(time.Now().UnixMilli()), Deleted: s.Deleting,
	})
	if err != nil {
		return err
	}
	_, err = a.session.Publish(ctx, e)
	return err
}

// report reports a status of a work.
func (a *agent) report(name string, st workv1.ManifestWorkStatus) {
	a.hub.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.publish(a.hub.Context(), a.held[name], st); err != nil {
		a.hub.Fatal(err)
	}
}

func (a *agent) spec(name string) *manifestwork.Spec {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[name]
}

// TestHubSource_OnAKubeAPIServer is one test, because the hub takes a while to start. Each part uses its own
// works.
func TestHubSource_OnAKubeAPIServer(t *testing.T) {
	h := newHub(t)
	stop := h.source()
	for _, part := range []struct {
		name string
		test func(*hub)
	}{
		{"CarriesAWorkToTheEnd", carriesAWorkToTheEnd},
		{"TakesEveryStatusTheSchemaTakes", takesEveryStatus},
		{"ReportsToKubectl", reportsToKubectl},
		{"ReportsClusterAnswered", reportsClusterAnswered},
		{"ShowsAStatusTheSchemaRejects", showsARejectedStatus},
		{"KeepsForeignFinalizers", keepsForeignFinalizers},
		{"DeletesWorkRemovedWithoutFinalizer", deletesWorkRemovedWithoutFinalizer},
		{"ShowsAnOversizedWork", showsAnOversizedWork},
	} {
		t.Run(part.name, func(t *testing.T) {
			local := *h
			local.T = t
			part.test(&local)
		})
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	t.Run("ReportsTooLargeStatus", func(t *testing.T) { local := *h; local.T = t; reportsTooLargeStatus(&local) })
	t.Run("SelectsNamespaces", func(t *testing.T) { local := *h; local.T = t; selectsNamespaces(&local) })
	t.Run("ReportsMissingManagedClusters", func(t *testing.T) { local := *h; local.T = t; missesAnAPI(&local) })
	t.Run("EndsDeletionsWithoutAnAgent", func(t *testing.T) { local := *h; local.T = t; endsDeletionsWithoutAnAgent(&local) })
	t.Run("SurvivesARestartOfTheHub", func(t *testing.T) { local := *h; local.T = t; survivesARestart(&local) })
}

func carriesAWorkToTheEnd(h *hub) {
	h.create("w", "1")
	w := h.shows("w", "Applied", "as sent")
	if diff := cmp.Diff([]string{workv1.ManifestWorkFinalizer}, w.Finalizers); diff != "" {
		h.Errorf("finalizers differ (-want +got):\n%s", diff)
	}
	h.patch("w", `{"metadata":{"labels":{"tier":"web"}}}`)
	h.Eventually(func() error {
		if s := h.agent.spec("w"); s.Work.Labels["tier"] != "web" || s.Work.ResourceVersion != "" || s.Work.ManagedFields != nil {
			return fmt.Errorf("the agent holds %+v", s.Work.ObjectMeta)
		}
		return nil
	})
	h.patch("w", `{"spec":{"deleteOption":{"propagationPolicy":"Orphan"}}}`)
	h.Eventually(func() error {
		if s := h.agent.spec("w"); s.Generation != 2 || s.Work.Spec.DeleteOption == nil {
			return fmt.Errorf("the agent holds %+v", s.Work)
		}
		return nil
	})
	h.delete("w")
	h.gone("w")
	if h.agent.spec("w") != nil {
		h.Error("the agent was not sent the deletion")
	}
}

func takesEveryStatus(h *hub) {
	h.create("statuses", "1")
	h.shows("statuses", "Applied", "as sent")
	three := int64(3)
	full := status("full", 1)
	full.ResourceStatus.Manifests = []workv1.ManifestCondition{
		{ResourceMeta: workv1.ManifestResourceMeta{Kind: "ConfigMap", Version: "v1", Resource: "configmaps", Name: "a", Namespace: "default"},
			StatusFeedbacks: workv1.StatusFeedbackResult{Values: []workv1.FeedbackValue{{Name: "n", Value: workv1.FieldValue{Type: workv1.Integer, Integer: &three}}}},
			Conditions:      full.Conditions},
		{ResourceMeta: workv1.ManifestResourceMeta{Ordinal: 1}}, // some agents send no conditions as null
	}
	h.agent.report("statuses", full)
	w := h.shows("statuses", "Applied", "full")
	if len(w.Status.ResourceStatus.Manifests) != 2 || *w.Status.ResourceStatus.Manifests[0].StatusFeedbacks.Values[0].Value.Integer != 3 {
		h.Errorf("status is %+v", w.Status)
	}
	h.agent.report("statuses", status("nothing left", 1))
	w = h.shows("statuses", "Applied", "nothing left")
	if len(w.Status.ResourceStatus.Manifests) != 0 {
		h.Errorf("status is %+v", w.Status)
	}
	h.delete("statuses")
	h.gone("statuses")
}

// reportsToKubectl checks the columns of deploy/crds as a kube-apiserver prints them, and Events, with the
// rights of deploy/hub-source.
func reportsToKubectl(h *hub) {
	h.create("columns", "1")
	h.shows("columns", "Applied", "as sent")
	lines := func(args ...string) []string {
		return strings.Split(strings.TrimSpace(h.Kubectl(append([]string{"-n", cluster, "get", "manifestworks", "columns"}, args...)...)), "\n")
	}
	got := lines()
	if d := cmp.Diff("NAME APPLIED AVAILABLE DELIVERED GENERATION OBSERVED STATUS UPDATED AGE", strings.Join(strings.Fields(got[0]), " ")); d != "" {
		h.Error(d)
	}
	if row := strings.Fields(got[1]); len(row) != 7 || !cmp.Equal(row[:5], []string{"columns", "True", "True", "1", "1"}) || !strings.HasSuffix(row[5], "s") {
		h.Errorf("the row is %q", row)
	}
	if wide := lines("-o", "wide"); !strings.Contains(wide[0], "DELIVERY") || !strings.Contains(wide[1], "ClusterAnswered") || !strings.HasSuffix(strings.TrimSpace(wide[1]), "as sent") {
		h.Errorf("-o wide shows %q", wide)
	}
	h.Eventually(func() error {
		out := h.Kubectl("-n", cluster, "describe", "manifestwork", "columns")
		for _, want := range []string{"Published", "the cluster has applied generation 1"} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("kubectl describe does not show %q:\n%s", want, out)
			}
		}
		return nil
	})
	h.delete("columns")
	h.gone("columns")
}

// reportsClusterAnswered checks that Delivered is True for the generation that the cluster answered, without an
// additional write. kubectl waits for it.
func reportsClusterAnswered(h *hub) {
	w := h.create("answered", "1")
	wait := func() {
		h.Kubectl("-n", cluster, "wait", "--for=condition=Delivered", "--timeout=30s", "manifestwork/answered")
	}
	wait()
	h.delivered("answered", 1)
	h.patch("answered", `{"spec":{"deleteOption":{"propagationPolicy":"Orphan"}}}`)
	wait() // the condition of the first generation does not count
	h.delivered("answered", 2)
	versions := 0
	seen, err := h.Works.WorkV1().ManifestWorks(cluster).Watch(h.Context(), metav1.ListOptions{FieldSelector: "metadata.name=answered", ResourceVersion: w.ResourceVersion})
	if err != nil {
		h.Fatal(err)
	}
	defer seen.Stop()
	for e := range seen.ResultChan() {
		versions++
		if o, ok := e.Object.(*workv1.ManifestWork); ok && o.Generation == 2 && meta.IsStatusConditionTrue(o.Status.Conditions, core.ConditionDelivered) &&
			meta.FindStatusCondition(o.Status.Conditions, core.ConditionDelivered).ObservedGeneration == 2 {
			break
		}
	}
	if versions != 4 { // finalizer, status, change, status
		h.Errorf("the work was written %d times after it was made, want 4", versions)
	}
	h.delete("answered")
	h.gone("answered")
}

func showsARejectedStatus(h *hub) {
	h.create("rejected", "1")
	h.shows("rejected", "Applied", "as sent")
	bad := status("bad", 1)
	bad.Conditions[0].Reason = "no reason has blanks"
	h.agent.report("rejected", bad)
	w := h.shows("rejected", core.ConditionDelivered, "status.conditions[0].reason")
	if c := meta.FindStatusCondition(w.Status.Conditions, "Applied"); c == nil || c.Message != "as sent" {
		h.Errorf("conditions are %+v", w.Status.Conditions)
	}
	h.agent.report("rejected", status("better", 1))
	h.shows("rejected", "Applied", "better")
	h.delivered("rejected", 1)
	h.delete("rejected")
	h.gone("rejected")
}

func keepsForeignFinalizers(h *hub) {
	h.create("shared", "1")
	h.shows("shared", "Applied", "as sent")
	h.patch("shared", `{"metadata":{"finalizers":["example.com/other","`+workv1.ManifestWorkFinalizer+`"]}}`)
	h.delete("shared")
	h.Eventually(func() error {
		w, err := h.Works.WorkV1().ManifestWorks(cluster).Get(h.Context(), "shared", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if diff := cmp.Diff([]string{"example.com/other"}, w.Finalizers); diff != "" {
			return fmt.Errorf("finalizers differ (-want +got):\n%s", diff)
		}
		return nil
	})
	h.patch("shared", `{"metadata":{"finalizers":null}}`)
	h.gone("shared")
}

func deletesWorkRemovedWithoutFinalizer(h *hub) {
	h.create("torn", "1")
	h.shows("torn", "Applied", "as sent")
	h.patch("torn", `{"metadata":{"finalizers":["example.com/other"]}}`)
	h.delete("torn")
	h.patch("torn", `{"metadata":{"finalizers":null}}`)
	h.gone("torn")
	h.Eventually(func() error {
		if s := h.agent.spec("torn"); s != nil {
			return fmt.Errorf("the agent holds %+v", s.Work)
		}
		return nil
	})
}

func showsAnOversizedWork(h *hub) {
	h.create("large", strings.Repeat("x", manifestwork.MaxManifestsSize))
	w := h.shows("large", core.ConditionDelivered, "divide its data among several objects")
	if len(w.Finalizers) != 0 {
		h.Errorf("finalizers are %v", w.Finalizers)
	}
	h.patch("large", `{"spec":{"workload":{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}]}}}`)
	h.shows("large", "Applied", "as sent")
	h.delivered("large", 2)
	h.delete("large")
	h.gone("large")
}

func selectsNamespaces(h *hub) {
	stop := h.source(func(c *hubsource.Config) { c.Selection.Namespaces = "served" })
	h.create("selected", "1")
	h.label(cluster, `{"metadata":{"labels":{"served":"yes"}}}`)
	h.shows("selected", "Applied", "as sent")
	h.label(cluster, `{"metadata":{"labels":{"served":null}}}`)
	h.Eventually(func() error {
		records := 0
		err := h.broker.Store.Scan(h.Context(), store.Scope{DataType: codec.ManifestBundles, Owner: "hub"}, func(store.Meta) error {
			records++
			return nil
		})
		if err == nil && records > 0 {
			err = fmt.Errorf("%d records after the release", records)
		}
		return err
	})
	if s := h.agent.spec("selected"); s == nil {
		h.Error("the release deleted the work on the cluster")
	}
	if err := stop(); err != nil {
		h.Fatal(err)
	}
}

func missesAnAPI(h *hub) {
	s, err := hubsource.New(h.sourceConfig(func(c *hubsource.Config) { c.Selection.Clusters = "served" }))
	if err != nil {
		h.Fatal(err)
	}
	if err := s.Run(h.Context()); err == nil || !strings.Contains(err.Error(), "--namespace-selector") {
		h.Errorf("without the ManagedCluster API it ended with %v", err)
	}
}

func (h *hub) label(namespace, patch string) {
	h.Helper()
	var ns *corev1.Namespace
	ns, err := h.Kube.CoreV1().Namespaces().Patch(h.Context(), namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil || ns.Name != namespace {
		h.Fatal(err)
	}
}

func survivesARestart(h *hub) {
	stop := h.source(func(c *hubsource.Config) {
		// A long Lease keeps the same process as leader, also on a slow machine.
		c.Election.Duration, c.Election.RenewDeadline = 3*time.Minute, 2*time.Minute
	})
	h.create("restart", "1")
	h.shows("restart", "Applied", "as sent")
	h.Kill()
	h.agent.report("restart", status("while the hub was down", 1))
	h.Start()
	h.shows("restart", "Applied", "while the hub was down")
	h.delete("restart")
	h.gone("restart")
	if err := stop(); err != nil {
		h.Fatal(err)
	}
}
