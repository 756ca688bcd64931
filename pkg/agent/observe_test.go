package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/feedback"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// status sets the status of an object, as its controller would.
func (r *rig) status(kind, name, status string) {
	r.t.Helper()
	if _, err := r.f.Patch(r.t.Context(), r.objectRef(kind, name), []byte(`{"status":`+status+`}`), "status"); err != nil {
		r.t.Fatal(err)
	}
	r.f.TakeCalls()
}

func (r *rig) objectRef(kind, name string) ref {
	if kind == "Job" {
		return r.f.Ref("batch/v1", kind, "default", name)
	}
	return r.ref(kind, name)
}

// config is the configuration of one manifest in a work.
func config(group, resource, name string, feedbackRules []workv1.FeedbackRule, conditionRules ...workv1.ConditionRule) workv1.ManifestConfigOption {
	return workv1.ManifestConfigOption{
		ResourceIdentifier: workv1.ResourceIdentifier{Group: group, Resource: resource, Namespace: "default", Name: name},
		FeedbackRules:      feedbackRules, ConditionRules: conditionRules,
	}
}

var wellKnownStatus = []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}}

func celRule(condition, expression string) workv1.ConditionRule {
	return workv1.ConditionRule{Condition: condition, Type: workv1.CelConditionExpressionsType, CelExpressions: []string{expression}}
}

func (r *rig) values(id string, ordinal int) []string {
	r.t.Helper()
	var list []string
	for _, v := range r.statuses[id].Status.ResourceStatus.Manifests[ordinal].StatusFeedbacks.Values {
		switch f := v.Value; {
		case f.Integer != nil:
			list = append(list, fmt.Sprintf("%s=%d", v.Name, *f.Integer))
		case f.String != nil:
			list = append(list, v.Name+"="+*f.String)
		case f.JsonRaw != nil:
			list = append(list, v.Name+"="+*f.JsonRaw)
		}
	}
	return list
}

func (r *rig) expectValues(id string, ordinal int, want ...string) {
	r.t.Helper()
	if got := r.values(id, ordinal); !slices.Equal(got, want) {
		r.t.Fatalf("values of manifest %d of %s: got %q, want %q", ordinal, id, got, want)
	}
}

const synced = "StatusFeedbackSynced=True/StatusFeedbackSynced: "

func TestCore_FeedbackReachesTheHubWhenItChanges(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, deployment("a", "1"), deployment("b", "1"), configMap("c", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("apps", "deployments", "a", wellKnownStatus)}
	r.apply(w)
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, synced)
	r.expectManifest("w-1", 1, manifestApplied, resourceThere, noFeedback)
	r.expectValues("w-1", 0)
	r.requests()
	sent := len(r.sent)

	r.status("Deployment", "a", `{"replicas":3,"readyReplicas":1}`)
	r.status("Deployment", "b", `{"replicas":3,"readyReplicas":1}`) // no work requests it
	r.settle(time.Second)
	r.expectValues("w-1", 0, "ReadyReplicas=1", "Replicas=3")
	r.expectRequests("get deployments.apps default/a") // one object, once
	if len(r.sent) != sent+1 {
		t.Errorf("%d statuses were sent for one change", len(r.sent)-sent)
	}

	// A change of the object that leaves the reported values unchanged causes a read but no report.
	r.status("Deployment", "a", `{"observedGeneration":1}`)
	r.settle(time.Second)
	r.expectRequests("get deployments.apps default/a")
	r.settle(50 * time.Minute)
	r.expectRequests()
	if len(r.sent) != sent+1 {
		t.Error("a status was sent without need")
	}

	// A new spec that leaves an object unchanged causes no read of the object.
	w = w.DeepCopy()
	w.Generation = 2
	w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[:2]
	r.apply(w)
	r.expectValues("w-1", 0, "ReadyReplicas=1", "Replicas=3")
	r.expectManifest("w-1", 0, resourceThere, synced, manifestApplied)
	if slices.ContainsFunc(r.requests(), func(c string) bool { return c == "get deployments.apps default/a" }) {
		t.Error("an object was read that did not change")
	}

	// Without feedback rules, a work reports no values.
	w = w.DeepCopy()
	w.Generation, w.Spec.ManifestConfigs = 3, nil
	r.apply(w)
	r.expectValues("w-1", 0)
	r.expectManifest("w-1", 0, resourceThere, manifestApplied, noFeedback)
}

func TestCore_FeedbackErrors(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, deployment("a", "1"), configMap("c", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{
		config("apps", "deployments", "a", []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{{Name: "image", Path: ".spec.template.image"}, {Name: "template", Path: ".spec.template"}}}}),
		config("", "configmaps", "*", wellKnownStatus),
	}
	r.apply(w)
	r.expectValues("w-1", 0, "image=1")
	r.expectManifest("w-1", 0, manifestApplied, resourceThere,
		"StatusFeedbackSynced=False/StatusFeedbackSyncFailed: Sync status feedback failed with error the type map[string]interface {} of the value for template is not found")
	r.expectManifest("w-1", 1, manifestApplied, resourceThere,
		"StatusFeedbackSynced=False/StatusFeedbackSyncFailed: Sync status feedback failed with error cannot find the wellknown statuses for resource with gvk /v1, Kind=ConfigMap")

	r = newRig(t)
	r.core.config.Feedback = feedback.Reader{Raw: true}
	r.apply(w)
	r.expectValues("w-1", 0, "image=1", `template={"image":"1"}`)
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, synced)
}

// An object that changes all the time is read a few times per second, then once. Nothing is written.
func TestCore_FlappingStatus(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, deployment("a", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("apps", "deployments", "a", wellKnownStatus, celRule("Sunny", "true"))}
	r.apply(w)
	r.requests()
	flap := func(seconds int) (reads int) {
		for i := range seconds * 50 {
			r.f.TakeCalls()
			patch := fmt.Sprintf(`{"status":{"replicas":%d}}`, i)
			if _, err := r.f.Patch(t.Context(), r.ref("Deployment", "a"), []byte(patch), "status"); err != nil {
				t.Fatal(err)
			}
			r.f.TakeCalls()
			r.settle(20 * time.Millisecond)
			for _, c := range r.requests() {
				if c != "get deployments.apps default/a" {
					t.Fatalf("a flapping status leads to: %s", c)
				}
				reads++
			}
		}
		return reads
	}
	if reads := flap(5); reads < 10 || reads > 20 {
		t.Errorf("%d reads in five seconds", reads)
	}
	flap(30)
	if reads := flap(20); reads < 15 || reads > 25 {
		t.Errorf("%d reads in twenty seconds", reads)
	}
	// The last change is noticed within a second.
	r.status("Deployment", "a", `{"replicas":7,"readyReplicas":7}`)
	r.settle(1100 * time.Millisecond)
	r.expectValues("w-1", 0, "ReadyReplicas=7", "Replicas=7")
}

// Another client keeps changing an object, so that it is repaired once a minute; its values arrive
// nevertheless.
func TestCore_FeedbackDuringConflict(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, deployment("a", "1"), configMap("c", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("apps", "deployments", "a", wellKnownStatus)}
	r.apply(w)
	fight := r.f.Changed
	r.f.Changed = func(ref ref, o *unstructured.Unstructured) {
		fight(ref, o)
		if ref.Resource == "deployments" && o != nil && !strings.Contains(fmt.Sprint(o.Object["spec"]), "theirs") {
			r.other = append(r.other, func() {
				r.f.Edit(ref, func(o *unstructured.Unstructured) {
					o.Object["spec"] = map[string]any{"template": map[string]any{"image": "theirs"}}
				})
			})
		}
	}
	r.f.Edit(r.ref("Deployment", "a"), func(o *unstructured.Unstructured) {
		o.Object["spec"] = map[string]any{"template": map[string]any{"image": "theirs"}}
	})
	r.settle(2 * time.Minute)
	r.requests()
	r.f.Edit(r.ref("ConfigMap", "c"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "broken"} })
	for i := range 5 {
		r.status("Deployment", "a", fmt.Sprintf(`{"replicas":%d}`, i))
		r.settle(1100 * time.Millisecond)
		r.expectValues("w-1", 0, fmt.Sprintf("Replicas=%d", i))
	}
	work, _ := r.contested("w-1")
	if work == nil {
		t.Fatal("the work does not report that its object is changed after each repair")
	}
	r.expectStatus("w-1", workApplied, workAvailable, "Contested=True/ChangedAfterEachRepair: "+work.Message)
	repairs, reads := 0, 0
	for range 10 {
		r.settle(time.Minute)
		for _, c := range r.requests() {
			switch c {
			case "update deployments.apps default/a":
				repairs++
			case "get deployments.apps default/a":
				reads++
			}
		}
	}
	if repairs < 8 || repairs > 12 || reads > 10*repairs {
		t.Errorf("%d repairs and %d reads in ten minutes", repairs, reads)
	}
	if r.configMap("c").Object["data"].(map[string]any)["k"] != "1" {
		t.Error("what else the work has is never repaired")
	}
}

func TestCore_ReportsFeedbackOfUnwatchableKinds(t *testing.T) {
	r := newRig(t)
	r.denied = "deployments"
	w := hubWork("w-1", "web", 1, deployment("a", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("apps", "deployments", "a", wellKnownStatus)}
	r.apply(w)
	r.status("Deployment", "a", `{"replicas":3}`)
	r.settle(20 * time.Second)
	r.expectValues("w-1", 0, "Replicas=3")
}

func TestCore_KeepsFeedbackOfDeletedObject(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, deployment("a", "1"))
	c := config("apps", "deployments", "a", wellKnownStatus, celRule("Sunny", "object.status.replicas == 3"))
	c.UpdateStrategy = &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly}
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{c}
	r.f.Put(clustertest.Object("apps/v1", "Deployment", "default", "a", "spec", map[string]any{"replicas": int64(1)}))
	r.status("Deployment", "a", `{"replicas":3}`)
	r.apply(w)
	const sunny = "Sunny=True/ConditionRuleEvaluated: Manifest is Sunny"
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, synced, sunny)
	r.expectStatus("w-1", workApplied, workAvailable, "Sunny=True/ConditionRulesAggregated: Manifest is Sunny")
	r.f.Remove(r.ref("Deployment", "a"))
	r.settle(time.Second)
	r.expectValues("w-1", 0, "Replicas=3") // the last known values; the condition shows that they are old
	r.expectManifest("w-1", 0, manifestApplied, resourceNotThere, synced, sunny)
}

func TestCore_RulesFollowObjectAndGeneration(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, deployment("a", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("apps", "deployments", "a", nil,
		celRule("Progressing", "object.?status.replicas.orValue(0) < 3"), celRule("Applied", "false"))}
	r.apply(w)
	const invalid = `ConditionRulesValid=False/ConditionRuleInvalid: condition rule "Applied": the agent itself sets this condition, choose another name`
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, noFeedback, "Progressing=True/ConditionRuleEvaluated: Manifest is Progressing", invalid)
	r.status("Deployment", "a", `{"replicas":3}`)
	r.settle(time.Second)
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, noFeedback, "Progressing=False/ConditionRuleEvaluated: Manifest is not Progressing", invalid)
	r.requests()

	w = w.DeepCopy()
	w.Generation = 2
	w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, hubWork("", "", 0, configMap("c", "1")).Spec.Workload.Manifests...)
	r.apply(w)
	c := condition(r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions, "Progressing")
	if c == nil || c.ObservedGeneration != 2 || c.Status != "False" {
		t.Errorf("got %+v", c)
	}
	if slices.Contains(r.requests(), "get deployments.apps default/a") {
		t.Error("an object was read that did not change")
	}
}

// An object that cannot be applied is reported nevertheless. Changes of its status cause no further write.
func TestCore_FeedbackWhileApplyingFails(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, job("j", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("batch", "jobs", "j", wellKnownStatus)}
	r.f.Put(clustertest.Object("batch/v1", "Job", "default", "j", "spec", map[string]any{"template": map[string]any{"command": "other"}}))
	r.apply(w)
	failed := r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions[0]
	if failed.Type != "Applied" || failed.Status != "False" {
		t.Fatalf("got %+v", failed)
	}
	r.settle(time.Hour)
	r.requests()
	r.status("Job", "j", `{"succeeded":1}`)
	r.settle(time.Second)
	r.expectValues("w-1", 0, "JobSucceeded=1")
	r.expectRequests("get jobs.batch default/j")
}

func TestCore_UnreadableObjectKeepsStatus(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, deployment("a", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("apps", "deployments", "a", wellKnownStatus)}
	r.apply(w)
	r.status("Deployment", "a", `{"replicas":3}`)
	r.settle(time.Second)
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Ref.Resource == "deployments" {
			return apierrors.NewInternalError(errors.New("away"))
		}
		return nil
	}
	r.f.Edit(r.ref("Deployment", "a"), func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"x": "y"}) })
	r.settle(time.Second)
	r.expectValues("w-1", 0, "Replicas=3")
	if c := condition(r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions, "Available"); c.Status != "Unknown" || c.Reason != "FetchingResourceFailed" {
		t.Errorf("got %+v", c)
	}
}

// Many manifests with slow rules do not block a worker for long.
func TestCore_RulesOfAWorkAreBoundedInTime(t *testing.T) {
	r := newRig(t)
	evaluated := 0
	r.core.config.Now = func() time.Time {
		r.now = r.now.Add(time.Second) // each call takes a second
		return r.now
	}
	var manifests []string
	for i := range 30 {
		manifests = append(manifests, configMap(fmt.Sprintf("c%02d", i), "1"))
	}
	w := hubWork("w-1", "web", 1, manifests...)
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("", "configmaps", "*", nil, celRule("Sunny", "[1].all(x, x == 1)"))}
	r.apply(w)
	for _, m := range r.statuses["w-1"].Status.ResourceStatus.Manifests {
		switch c := condition(m.Conditions, "Sunny"); {
		case c.Status == "True":
			evaluated++
		case c.Message != errRuleTime.Error():
			t.Fatalf("got %+v", c)
		}
	}
	if evaluated < 5 || evaluated > 15 {
		t.Errorf("%d of 30 were evaluated", evaluated)
	}
}
