package manifestwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// feedbackOf returns a config with feedback rules for one object.
func feedbackOf(group, resource, ns, name string, rules ...workv1.FeedbackRule) workv1.ManifestConfigOption {
	return workv1.ManifestConfigOption{
		ResourceIdentifier: workv1.ResourceIdentifier{Group: group, Resource: resource, Namespace: ns, Name: name}, FeedbackRules: rules,
	}
}

func wellKnownStatus() workv1.FeedbackRule {
	return workv1.FeedbackRule{Type: workv1.WellKnownStatusType}
}

// jsonPaths returns a rule. The arguments are names and paths by turns.
func jsonPaths(namesAndPaths ...string) workv1.FeedbackRule {
	r := workv1.FeedbackRule{Type: workv1.JSONPathsType}
	for i := 0; i < len(namesAndPaths); i += 2 {
		r.JsonPaths = append(r.JsonPaths, workv1.JsonPath{Name: namesAndPaths[i], Path: namesAndPaths[i+1]})
	}
	return r
}

// values returns the feedback values of one manifest as "name Type=value", in order.
func values(w *workv1.ManifestWork, ordinal int) []string {
	var list []string
	if ordinal >= len(w.Status.ResourceStatus.Manifests) {
		return nil
	}
	for _, v := range w.Status.ResourceStatus.Manifests[ordinal].StatusFeedbacks.Values {
		s := v.Name + " " + string(v.Value.Type) + "="
		switch f := v.Value; {
		case f.Integer != nil:
			s += fmt.Sprint(*f.Integer)
		case f.Boolean != nil:
			s += fmt.Sprint(*f.Boolean)
		case f.String != nil:
			s += *f.String
		case f.JsonRaw != nil:
			s += *f.JsonRaw
		}
		list = append(list, s)
	}
	return list
}

// hasValues waits until a manifest has exactly these values.
func hasValues(t *testing.T, w *workv1.ManifestWork, ordinal int, want ...string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		live, err := shared.Get(ctx, w.Namespace, w.Name)
		if err == nil && !slices.Equal(values(live, ordinal), want) {
			err = fmt.Errorf("manifest %d has %q, want %q: %s", ordinal, values(live, ordinal), want, harness.StatusText(live))
		}
		return err
	})
}

var synced = reported{"StatusFeedbackSynced", "True", "StatusFeedbackSynced", "", 0}

// notSynced returns the condition with the text of an error.
func notSynced(text string) reported {
	return reported{"StatusFeedbackSynced", "False", "StatusFeedbackSyncFailed", "Sync status feedback failed with error " + text, 0}
}

// TestFeedback_OfADeployment: a Deployment starts and is scaled, and the hub shows its values.
func TestFeedback_OfADeployment(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "feedback-deployment", harness.DeploymentYAML(ns, "web", 2))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{feedbackOf("apps", "deployments", ns, "web", wellKnownStatus())}
	w = shared.Create(t, w)
	hasValues(t, w, 0, "ReadyReplicas Integer=2", "Replicas Integer=2", "AvailableReplicas Integer=2")
	wantReports(t, w, []reported{workApplied, workAvailable}, []reported{applied, available, synced})

	shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, harness.DeploymentYAML(ns, "web", 3))
	})
	hasValues(t, w, 0, "ReadyReplicas Integer=3", "Replicas Integer=3", "AvailableReplicas Integer=3")

	// A Deployment that left the work has no values any more.
	shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, harness.ConfigMapYAML(ns, "one", "x"))
	})
	hasValues(t, w, 0)
}

func TestFeedback_OfADaemonSet(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	nodes, err := shared.API[cluster].Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		t.Fatalf("no nodes: %v", err)
	}
	w := harness.NewWork(t, cluster, "feedback-daemonset", fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: each, namespace: %s}
spec:
  selector: {matchLabels: {app: each}}
  template:
    metadata: {labels: {app: each}}
    spec: {containers: [{name: main, image: nginx}]}
`, ns))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{feedbackOf("apps", "daemonsets", ns, "each", wellKnownStatus())}
	w = shared.Create(t, w)
	n := len(nodes.Items)
	hasValues(t, w, 0, fmt.Sprintf("NumberReady Integer=%d", n), fmt.Sprintf("DesiredNumberScheduled Integer=%d", n), fmt.Sprintf("NumberAvailable Integer=%d", n))
}

// TestFeedback_WellKnownValuesByKind: Jobs and Pods have well-known values too; other kinds have none.
func TestFeedback_WellKnownValuesByKind(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "feedback-kinds", jobYAML(ns, "once", false),
		`{apiVersion: v1, kind: Pod, metadata: {name: single, namespace: `+ns+`}, spec: {containers: [{name: main, image: nginx}]}}`,
		harness.ConfigMapYAML(ns, "one", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{
		feedbackOf("batch", "jobs", ns, "*", wellKnownStatus()), feedbackOf("", "pods", ns, "*", wellKnownStatus()), feedbackOf("", "configmaps", ns, "*", wellKnownStatus()),
	}
	w = shared.Create(t, w)
	hasValues(t, w, 0, "JobComplete String=True", "JobSucceeded Integer=1")
	hasValues(t, w, 1, "PodReady String=True", "PodPhase String=Running")
	wantReports(t, w, []reported{workApplied, workAvailable},
		[]reported{applied, available, synced}, []reported{applied, available, synced},
		[]reported{applied, available, notSynced("cannot find the wellknown statuses for resource with gvk /v1, Kind=ConfigMap")})
}

func TestFeedback_ByPaths(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "feedback-paths", harness.DeploymentYAML(ns, "web", 1), harness.DeploymentYAML(ns, "bad", 1))
	good := jsonPaths("replicas", ".spec.replicas", "image", ".spec.template.spec.containers[0].image",
		"available", `.status.conditions[?(@.type=="Available")].status`, "missing", ".status.missing", "paused", ".spec.paused")
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{
		feedbackOf("apps", "deployments", ns, "web", good),
		feedbackOf("apps", "deployments", ns, "bad", jsonPaths("replicas", ".spec.replicas", "wrong", ".spec.template.spec.containers[7].image", "structure", ".spec.selector")),
	}
	w = shared.Create(t, w)
	hasValues(t, w, 0, "replicas Integer=1", "image String=nginx", "available String=True")
	hasValues(t, w, 1, "replicas Integer=1")
	wantReports(t, w, []reported{workApplied, workAvailable}, []reported{applied, available, synced}, []reported{applied, available, notSynced(
		"[failed to find value for wrong with error: array index out of bounds: index 7, length 1, the type map[string]interface {} of the value for structure is not found]")})
}

// TestFeedback_RawJSON: with its gate enabled, an agent reports structures as JSON.
func TestFeedback_RawJSON(t *testing.T) {
	t.Parallel()
	const name = "raw-feedback"
	ns := shared.NamespaceOn(t, cluster)
	shared.JoinAs(t, name)
	shared.RunAgent(t, cluster, name, "--hub-identity="+name, "--feature-gates=RawFeedbackJsonString=true", "--max-json-raw-length=64")
	w := harness.NewWork(t, name, "feedback-raw", harness.DeploymentYAML(ns, "web", 1))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{feedbackOf("apps", "deployments", ns, "web",
		jsonPaths("selector", ".spec.selector", "replicas", ".spec.replicas", "images", ".spec.template.spec.containers[*]['name','image']", "long", ".spec"))}
	w = shared.Create(t, w)
	hasValues(t, w, 0, `selector JsonRaw={"matchLabels":{"app":"web"}}`, "replicas Integer=1", `images JsonRaw=["main","nginx"]`)
	wantReports(t, w, []reported{workApplied, workAvailable}, []reported{applied, available, notSynced("the length of returned json raw string for name long is larger than the maximum length 64")})
}

func TestFeedback_PatternForAllDeployments(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "feedback-all", harness.DeploymentYAML(ns, "a", 1), harness.DeploymentYAML(ns, "b", 2), harness.ConfigMapYAML(ns, "one", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{feedbackOf("apps", "deployments", "*", "*", wellKnownStatus())}
	w = shared.Create(t, w)
	hasValues(t, w, 0, "ReadyReplicas Integer=1", "Replicas Integer=1", "AvailableReplicas Integer=1")
	hasValues(t, w, 1, "ReadyReplicas Integer=2", "Replicas Integer=2", "AvailableReplicas Integer=2")
	wantReports(t, w, []reported{workApplied, workAvailable}, []reported{applied, available, synced}, []reported{applied, available, synced}, []reported{applied, available, noFeedback})
}

// TestFeedback_FirstConfigCounts: if several configs match, the first with feedback rules is used.
func TestFeedback_FirstConfigCounts(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "feedback-first", harness.DeploymentYAML(ns, "a", 1), harness.DeploymentYAML(ns, "b", 1))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{
		feedbackOf("apps", "deployments", ns, "a"),
		feedbackOf("apps", "deployments", ns, "a", jsonPaths("image", ".spec.template.spec.containers[0].image")),
		feedbackOf("apps", "deployments", ns, "*", jsonPaths("replicas", ".spec.replicas")),
	}
	w = shared.Create(t, w)
	hasValues(t, w, 0, "image String=nginx")
	hasValues(t, w, 1, "replicas Integer=1")
}

// TestFeedback_ReportsDuplicateName: one name for two values is reported and hides nothing. The hub accepts the
// status.
func TestFeedback_ReportsDuplicateName(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "feedback-twice", harness.DeploymentYAML(ns, "web", 1))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{feedbackOf("apps", "deployments", ns, "web", wellKnownStatus(), jsonPaths("ReadyReplicas", ".spec.replicas"))}
	w = shared.Create(t, w)
	hasValues(t, w, 0, "ReadyReplicas Integer=1", "Replicas Integer=1", "AvailableReplicas Integer=1")
	wantReports(t, w, []reported{workApplied, workAvailable}, []reported{applied, available,
		notSynced("the name ReadyReplicas is given to more than one value: only the first is reported, use another name for .spec.replicas")})
}

// TestFeedback_KeepsValuesOfDeletedObject: the values of a deleted object stay, and Available reports that it is
// gone.
func TestFeedback_KeepsValuesOfDeletedObject(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	(&scene{ns: ns}).theirs(t, "theirs")
	w := byStrategy(harness.NewWork(t, cluster, "feedback-gone", harness.ConfigMapYAML(ns, "one", "x")), workv1.UpdateStrategyTypeReadOnly, "configmaps", ns)
	w.Spec.ManifestConfigs[0].FeedbackRules = valueOfKey()
	w = shared.Create(t, w)
	reports(t, w, 0, "theirs")
	if err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Delete(t.Context(), "one", deleteNow); err != nil {
		t.Fatal(err)
	}
	wantReports(t, w, []reported{workApplied, {"Available", "False", "ResourcesNotAvailable", "not found: …", 1}}, []reported{applied, absent, synced})
	reports(t, w, 0, "theirs")
}

// arrivesInTime changes a value several times. Half of the changes must reach the hub within one second. change
// sets the value on the cluster, and returns after that.
func arrivesInTime(t *testing.T, w *workv1.ManifestWork, change func(value string)) {
	t.Helper()
	const rounds, within = 7, time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 2*harness.ConvergeTimeout)
	defer cancel()
	events, err := shared.HubAPI.Work.WorkV1().ManifestWorks(cluster).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", w.Name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	var delays []time.Duration
	for i := range rounds {
		value := fmt.Sprintf("v%d", i)
		begun := time.Now()
		change(value)
		for arrived := false; !arrived; {
			e, open := <-events.ResultChan()
			if !open {
				t.Fatalf("%s did not arrive", value)
			}
			live, ok := e.Object.(*workv1.ManifestWork)
			if !ok {
				t.Fatalf("the watch sends %+v", e.Object)
			}
			arrived = cmp.Equal(values(live, 0), []string{"value String=" + value})
		}
		delays = append(delays, time.Since(begun))
	}
	slices.Sort(delays)
	t.Logf("from the cluster to the hub: %v", delays)
	if delays[rounds/2] > within {
		t.Errorf("half of the values took longer than %v: %v", within, delays)
	}
}

func TestFeedback_ArrivesWithinASecond(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	(&scene{ns: ns}).theirs(t, "theirs")
	w := byStrategy(harness.NewWork(t, cluster, "feedback-fast", harness.ConfigMapYAML(ns, "one", "x")), workv1.UpdateStrategyTypeReadOnly, "configmaps", ns)
	w.Spec.ManifestConfigs[0].FeedbackRules = valueOfKey()
	w.Spec.ManifestConfigs[0].FeedbackScrapeType = workv1.FeedbackWatchType
	w = shared.Create(t, w)
	reports(t, w, 0, "theirs")
	arrivesInTime(t, w, func(value string) {
		patch, err := json.Marshal(map[string]any{"data": map[string]string{"key": value}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Patch(t.Context(), "one", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFeedback_OfAnObjectOfTheCluster: values of a cluster-scoped object reach the hub within one second.
func TestFeedback_OfAnObjectOfTheCluster(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	name := ns + "-made"
	w := harness.NewWork(t, cluster, "feedback-namespace", "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{feedbackOf("", "namespaces", "", name, jsonPaths("value", ".metadata.labels.value"))}
	w = shared.Deliver(t, w)
	arrivesInTime(t, w, func(value string) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"value": value}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shared.API[cluster].Kube.CoreV1().Namespaces().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFeedback_TimeOfTheLastChange: the time of StatusFeedbackSynced is the time of the last change of a value.
func TestFeedback_TimeOfTheLastChange(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "feedback-time", harness.ConfigMapYAML(ns, "one", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{feedbackOf("", "configmaps", ns, "one", valueOfKey()...)}
	w = shared.Create(t, w)
	reports(t, w, 0, "x")
	times := func() (synced, applied time.Time) {
		live, err := shared.Get(t.Context(), cluster, w.Name)
		if err != nil {
			t.Fatal(err)
		}
		list := live.Status.ResourceStatus.Manifests[0].Conditions
		return meta.FindStatusCondition(list, "StatusFeedbackSynced").LastTransitionTime.Time, meta.FindStatusCondition(list, "Applied").LastTransitionTime.Time
	}
	before, appliedAt := times()
	harness.Eventually(t, func(context.Context) error { // times are whole seconds
		if time.Since(before) < 2*time.Second {
			return errors.New("too early")
		}
		return nil
	})
	shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Labels = map[string]string{"unrelated": "yes"} })
	shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, harness.ConfigMapYAML(ns, "one", "y"))
	})
	reports(t, w, 0, "y")
	after, appliedAgain := times()
	if !after.After(before) || !appliedAgain.After(appliedAt) {
		t.Errorf("synced at %v, was %v; applied at %v, was %v", after, before, appliedAgain, appliedAt)
	}
}
