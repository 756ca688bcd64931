package agent

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
)

func complete() workv1.ConditionRule {
	return workv1.ConditionRule{Condition: workv1.WorkComplete, Type: workv1.WellKnownConditionsType}
}

const (
	jobDone       = `{"conditions":[{"type":"Complete","status":"True"}]}`
	jobFinished   = "Complete=True/ConditionRuleEvaluated: Job is finished"
	jobUnfinished = "Complete=False/ConditionRuleEvaluated: Job is not finished"
	workComplete  = "Complete=True/ConditionRulesAggregated: Job is finished"
)

// jobs is a work with Jobs that have a Complete rule, and with a ConfigMap.
func jobs(generation int64, names ...string) *workv1.ManifestWork {
	var manifests []string
	for _, n := range names {
		manifests = append(manifests, job(n, "x"))
	}
	w := hubWork("w-1", "web", generation, append(manifests, configMap("c", "1"))...)
	for _, n := range names {
		w.Spec.ManifestConfigs = append(w.Spec.ManifestConfigs, config("batch", "jobs", n, wellKnownStatus, complete()))
	}
	return w
}

func (r *rig) spoil(kind, name string) {
	r.f.Edit(r.objectRef(kind, name), func(o *unstructured.Unstructured) {
		o.SetOwnerReferences(nil)
		o.SetLabels(map[string]string{"broken": "yes"})
		if kind == "ConfigMap" {
			o.Object["data"] = map[string]any{"k": "broken"}
		}
	})
}

func (r *rig) owned(kind, name string) bool {
	o := r.f.Look(r.objectRef(kind, name))
	return o != nil && len(o.GetOwnerReferences()) == 1
}

func TestCore_CompleteManifestIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.apply(jobs(1, "a", "b"))
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, synced, jobUnfinished)
	r.expectStatus("w-1", workApplied, workAvailable, "Complete=False/ConditionRulesAggregated: Aggregated from 2 manifest conditions")

	r.status("Job", "a", jobDone)
	r.settle(time.Second)
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, jobFinished, synced)
	r.expectValues("w-1", 0, "JobComplete=True")
	r.requests()

	// Changes by others to the complete Job stay; the other objects are repaired.
	r.spoil("Job", "a")
	r.spoil("Job", "b")
	r.spoil("ConfigMap", "c")
	r.settle(time.Second)
	if r.owned("Job", "a") || !r.owned("Job", "b") || !r.owned("ConfigMap", "c") {
		t.Fatal("want the agent to skip the complete object only")
	}
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, jobFinished, synced)
	r.requests()
	r.settle(50 * time.Minute)
	r.expectRequests()

	// The complete Job is not created again either, even for a new spec.
	r.f.Remove(r.objectRef("Job", "a"))
	r.settle(time.Second)
	r.apply(jobs(2, "a", "b"))
	if r.f.Look(r.objectRef("Job", "a")) != nil {
		t.Fatal("a job that had run was made again")
	}
	r.expectManifest("w-1", 0, resourceNotThere, jobFinished, synced, manifestApplied)
	c := condition(r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions, "Applied")
	if c.ObservedGeneration != 2 {
		t.Errorf("got %+v", c)
	}
	r.expectListed("web", "configmaps default/c", "jobs default/b")
}

func TestCore_CompleteWorkIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.apply(jobs(1, "a"))
	r.status("Job", "a", jobDone)
	r.settle(time.Second)
	r.expectStatus("w-1", workApplied, workAvailable, workComplete)
	r.requests()

	// Nothing is repaired, and new specs are not applied. The current state is reported.
	r.spoil("ConfigMap", "c")
	r.f.Remove(r.objectRef("Job", "a"))
	r.settle(time.Second)
	news := jobs(2, "a")
	news.Labels["news"] = "yes"
	news.Spec.Workload.Manifests = append(news.Spec.Workload.Manifests, hubWork("", "", 0, configMap("d", "1")).Spec.Workload.Manifests...)
	r.apply(news)
	for _, c := range r.f.TakeCalls() {
		if c.Write() && c.Ref.Resource != appliedwork.Resource.Resource {
			t.Errorf("a complete work leads to: %s", c)
		}
	}
	r.expectStatus("w-1", workApplied, "Available=False/ResourcesNotAvailable: 1 of 2 resources are not available", workComplete)
	r.expectManifest("w-1", 0, manifestApplied, resourceNotThere, jobFinished, synced)
	if n := len(r.statuses["w-1"].Status.ResourceStatus.Manifests); n != 2 {
		t.Errorf("%d manifests in the status, want those that were applied", n)
	}
	if c := condition(r.statuses["w-1"].Status.Conditions, "Applied"); c.ObservedGeneration != 1 {
		t.Errorf("got %+v", c)
	}
	if c := condition(r.statuses["w-1"].Status.Conditions, "Complete"); c.ObservedGeneration != 2 {
		t.Errorf("got %+v", c)
	}
	r.settle(50 * time.Minute)
	r.expectRequests()

	r.delete(news)
	if r.record("web") != nil || !r.statuses["w-1"].Deleted {
		t.Error("a complete work cannot be deleted")
	}
}

func TestCore_IncompleteWorkIsAppliedAgain(t *testing.T) {
	for name, resume := range map[string]func(*rig){
		"the object changes": func(r *rig) { r.status("Job", "a", `{"conditions":[]}`) },
		"the rule is removed": func(r *rig) {
			w := jobs(2, "a")
			w.Spec.ManifestConfigs = nil
			r.deliver(w)
		},
		"the manifest is removed": func(r *rig) { r.deliver(hubWork("w-1", "web", 2, configMap("c", "1"))) },
		"another rule is false": func(r *rig) {
			w := jobs(2, "a")
			w.Spec.ManifestConfigs[0].ConditionRules[0] = celRule("Complete", "object.metadata.name != 'a'")
			r.deliver(w)
		},
		"another manifest is not complete": func(r *rig) {
			w := jobs(2, "a")
			w.Spec.ManifestConfigs = append(w.Spec.ManifestConfigs, config("", "configmaps", "c", nil, celRule("Complete", "object.data.k == '2'")))
			r.deliver(w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.apply(jobs(1, "a"))
			r.status("Job", "a", jobDone)
			r.settle(time.Second)
			r.spoil("ConfigMap", "c")
			r.settle(time.Second)
			if r.owned("ConfigMap", "c") {
				t.Fatal("a complete work was repaired")
			}
			resume(r)
			r.settle(time.Second)
			if !r.owned("ConfigMap", "c") || r.configMap("c").Object["data"].(map[string]any)["k"] != "1" {
				t.Error("it is not applied again")
			}
			if name == "another manifest is not complete" {
				r.expectStatus("w-1", workApplied, workAvailable, "Complete=False/ConditionRulesAggregated: Aggregated from 2 manifest conditions")
			}
		})
	}
}

// A work whose job was completed by another client is applied once nevertheless.
func TestCore_CompleteFromTheBeginning(t *testing.T) {
	r := newRig(t)
	r.f.Put(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": "a", "namespace": "default"}, "spec": map[string]any{"template": map[string]any{"command": "x"}},
	}})
	r.status("Job", "a", jobDone)
	r.apply(jobs(1, "a"))
	r.expectStatus("w-1", workApplied, workAvailable, workComplete)
	if !r.owned("Job", "a") || !r.owned("ConfigMap", "c") {
		t.Error("it was not applied")
	}
}

// A new agent does not run a job again that is recorded as complete.
func TestCore_CompletionSurvivesARestart(t *testing.T) {
	r := newRig(t)
	w := jobs(1, "a", "b")
	r.apply(w)
	r.status("Job", "a", jobDone)
	r.settle(time.Second)
	since := condition(r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions, "Complete").LastTransitionTime
	r.f.Remove(r.objectRef("Job", "a"))
	r.settle(time.Minute)
	r.restart()
	r.apply(w)
	if r.f.Look(r.objectRef("Job", "a")) != nil {
		t.Fatal("a job that had run was made again")
	}
	r.expectManifest("w-1", 0, manifestApplied, resourceNotThere, "Complete=True/ConditionRuleEvaluated: Manifest is Complete")
	if c := condition(r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions, "Complete"); !c.LastTransitionTime.Equal(&since) {
		t.Errorf("complete since %v, was %v", c.LastTransitionTime, since)
	}

	// Completion does not carry over to another work of the same name.
	r.delete(w)
	again := jobs(1, "a", "b")
	again.UID = "w-2"
	r.apply(again)
	if r.f.Look(r.objectRef("Job", "a")) == nil {
		t.Error("the job of a new work was not made")
	}
}

// A rule for Complete whose result keeps changing causes no writes except those that maintain the work.
func TestCore_CompleteIsRecordedOnce(t *testing.T) {
	r := newRig(t)
	r.apply(jobs(1, "a"))
	r.status("Job", "a", jobDone)
	r.settle(time.Second)
	r.expectRequests("get jobs.batch default/a", "patch appliedmanifestworks.work.open-cluster-management.io hash-web")
	r.status("Job", "a", `{"conditions":[{"type":"Complete","status":"True"}],"succeeded":1}`)
	r.settle(time.Second)
	r.expectRequests("get jobs.batch default/a")
	r.status("Job", "a", `{"conditions":[]}`)
	r.settle(time.Second)
	got := r.requests()
	if !slices.Contains(got, "patch appliedmanifestworks.work.open-cluster-management.io hash-web") {
		t.Errorf("got %q", got)
	}
	if len(r.record("web").Annotations[appliedwork.AnnotationCompleted]) != 0 {
		t.Error("it is still recorded as complete")
	}
}
