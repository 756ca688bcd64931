package manifestwork

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// jobYAML is a Job that succeeds as soon as it is not suspended.
func jobYAML(ns, name string, suspended bool) string {
	return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %s, namespace: %s}
spec:
  suspend: %t
  template:
    spec:
      restartPolicy: Never
      containers: [{name: once, image: busybox, command: ["true"]}]
`, name, ns, suspended)
}

// resume lets a suspended Job run.
func resume(t *testing.T, ns, name string) {
	t.Helper()
	if _, err := shared.API[cluster].Kube.BatchV1().Jobs(ns).Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"suspend":false}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// rulesOf returns a config with condition rules. Its strategy is CreateOnly, so that the tests may change the
// objects.
func rulesOf(group, resource, ns, name string, rules ...workv1.ConditionRule) workv1.ManifestConfigOption {
	return workv1.ManifestConfigOption{
		ResourceIdentifier: workv1.ResourceIdentifier{Group: group, Resource: resource, Namespace: ns, Name: name},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly}, ConditionRules: rules,
	}
}

func wellKnownRule(condition string) workv1.ConditionRule {
	return workv1.ConditionRule{Condition: condition, Type: workv1.WellKnownConditionsType, CelExpressions: []string{}}
}

func celRule(condition string, expressions ...string) workv1.ConditionRule {
	return workv1.ConditionRule{Condition: condition, Type: workv1.CelConditionExpressionsType, CelExpressions: expressions}
}

// ruled returns the condition of a manifest from a rule, aggregated that of the work.
func ruled(typ, status, message string) reported {
	return reported{typ, status, "ConditionRuleEvaluated", message, 1}
}

func aggregated(typ, status, message string) reported {
	return reported{typ, status, "ConditionRulesAggregated", message, 1}
}

func TestConditionRules_JobCompletes(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "rules-job", jobYAML(ns, "once", true))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{rulesOf("batch", "jobs", ns, "once", wellKnownRule("Complete"))}
	w = shared.Create(t, w)
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("Complete", "False", "Job is not finished")},
		[]reported{applied, available, noFeedback, ruled("Complete", "False", "Job is not finished")})
	resume(t, ns, "once")
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("Complete", "True", "Job is finished")},
		[]reported{applied, available, noFeedback, ruled("Complete", "True", "Job is finished")})
	pods, err := shared.API[cluster].Kube.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "job-name=once"})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("the Job has no Pods: %v", err)
	}
	// A complete work can be deleted, Job and Pods with it.
	shared.Remove(t, cluster, w.Name)
	harness.Eventually(t, func(ctx context.Context) error {
		pods, err := shared.API[cluster].Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = errors.New("the Pods of the Job are still there")
		}
		return err
	})
}

func TestConditionRules_InCEL(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	up := celRule("Up", "hasConditions(object.status)", "object.status.conditions.exists(c, c.type == 'Available' && c.status == 'True')")
	up.Message, up.MessageExpression = "not used", "result ? string(object.status.availableReplicas) + ' are up' : 'still coming'"
	small := celRule("example.com/Small", "object.spec.replicas < 2")
	small.Message = "a static text"
	w := harness.NewWork(t, cluster, "rules-cel", harness.DeploymentYAML(ns, "web", 2))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{rulesOf("apps", "deployments", ns, "web",
		up, small, celRule("Broken", "object.spec.nothing == 1"), celRule("NotBool", "object.spec.replicas"), celRule("Progressing", "object.status.replicas != object.spec.replicas"),
	)}
	w = shared.Create(t, w)
	wantReports(t, w,
		[]reported{
			workApplied, workAvailable, aggregated("Up", "True", "2 are up"), aggregated("example.com/Small", "False", "a static text"),
			aggregated("Broken", "False", "no such key: nothing"), aggregated("NotBool", "False", "expected bool result, got int64"), aggregated("Progressing", "False", "Manifest is not Progressing"),
		},
		[]reported{
			applied, available, noFeedback, ruled("Up", "True", "2 are up"), ruled("example.com/Small", "False", "a static text"),
			{"Broken", "False", "ConditionRuleExpressionError", "no such key: nothing", 1}, {"NotBool", "False", "ConditionRuleExpressionError", "expected bool result, got int64", 1},
			ruled("Progressing", "False", "Manifest is not Progressing"),
		},
	)
	// Conditions of rules that are gone go, the others are about the new spec.
	shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.ManifestConfigs[0].ConditionRules = w.Spec.ManifestConfigs[0].ConditionRules[:1]
	})
	second := func(c reported) reported {
		c.observed = 2
		return c
	}
	wantReports(t, w, []reported{second(workApplied), second(workAvailable), second(aggregated("Up", "True", "2 are up"))},
		[]reported{second(applied), available, noFeedback, second(ruled("Up", "True", "2 are up"))})
}

func TestConditionRules_NothingWellKnown(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "rules-none", jobYAML(ns, "once", false), harness.ConfigMapYAML(ns, "one", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{
		rulesOf("batch", "jobs", ns, "*", wellKnownRule("Progressing")), rulesOf("", "configmaps", ns, "*", wellKnownRule("Complete")),
	}
	w = shared.Create(t, w)
	wantReports(t, w, []reported{workApplied, workAvailable}, []reported{applied, available, noFeedback}, []reported{applied, available, noFeedback})
}

func TestConditionRules_PatternForAllJobs(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "rules-all", jobYAML(ns, "job-a", true), jobYAML(ns, "job-b", true), harness.ConfigMapYAML(ns, "job-c", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{rulesOf("batch", "jobs", ns, "job-*", wellKnownRule("Complete"))}
	w = shared.Create(t, w)
	running, done := ruled("Complete", "False", "Job is not finished"), ruled("Complete", "True", "Job is finished")
	const two = "Aggregated from 2 manifest conditions"
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("Complete", "False", two)},
		[]reported{applied, available, noFeedback, running}, []reported{applied, available, noFeedback, running}, []reported{applied, available, noFeedback})
	resume(t, ns, "job-a")
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("Complete", "False", two)},
		[]reported{applied, available, noFeedback, done}, []reported{applied, available, noFeedback, running}, []reported{applied, available, noFeedback})
	resume(t, ns, "job-b")
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("Complete", "True", two)},
		[]reported{applied, available, noFeedback, done}, []reported{applied, available, noFeedback, done}, []reported{applied, available, noFeedback})
}

func TestConditionRules_FirstConfigCounts(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "rules-first", jobYAML(ns, "a", false), jobYAML(ns, "b", false))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{
		rulesOf("batch", "jobs", ns, "a"), rulesOf("batch", "jobs", ns, "a", celRule("First", "true")), rulesOf("batch", "jobs", ns, "*", celRule("Second", "true")),
	}
	w = shared.Create(t, w)
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("First", "True", "Manifest is First"), aggregated("Second", "True", "Manifest is Second")},
		[]reported{applied, available, noFeedback, ruled("First", "True", "Manifest is First")}, []reported{applied, available, noFeedback, ruled("Second", "True", "Manifest is Second")})
}

// TestConditionRules_ReportInvalidNames: rules for the agent's own conditions, or with an invalid condition
// name, are reported and have no other effect.
func TestConditionRules_ReportInvalidNames(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "rules-names", harness.ConfigMapYAML(ns, "one", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{rulesOf("", "configmaps", ns, "one",
		celRule("Applied", "false"), celRule("Available", "false"), celRule("not a name", "true"), celRule("Good", "true"))}
	w = shared.Create(t, w)
	const text = `condition rule "Applied": the agent itself sets this condition, choose another name; ` +
		`condition rule "Available": the agent itself sets this condition, choose another name; condition rule "not a name": this cannot be the type of a condition: …`
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("Good", "True", "Manifest is Good"), aggregated("ConditionRulesValid", "False", text)},
		[]reported{applied, available, noFeedback, ruled("Good", "True", "Manifest is Good"), {"ConditionRulesValid", "False", "ConditionRuleInvalid", text, 1}})
}

// TestConditionRules_CostIsBounded: endless expressions in rules and messages are stopped. Other works are
// served meanwhile.
func TestConditionRules_CostIsBounded(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	lines := "l: |\n" + strings.Repeat("    x\n", 300)
	endless := "object.data.l.split('\\n').all(a, object.data.l.split('\\n').all(b, object.data.l.split('\\n').all(c, a + b + c != 'y')))"
	message := celRule("Message", "true")
	message.MessageExpression = "string(" + endless + ")"
	w := harness.NewWork(t, cluster, "rules-cost", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: "+ns+"}\ndata:\n  "+lines)
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{rulesOf("", "configmaps", ns, "one", celRule("Endless", endless), message)}
	w = shared.Create(t, w)
	shared.Deliver(t, harness.NewWork(t, cluster, "rules-cost-other", harness.ConfigMapYAML(ns, "two", "x")))
	cut := func(c metav1.Condition) bool {
		return strings.Contains(c.Message, "cost limit exceeded") || strings.Contains(c.Message, "take longer than") || strings.Contains(c.Message, "budget exceeded")
	}
	shared.ManifestCondition(t, w, 0, "Endless", func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && c.Reason == "ConditionRuleExpressionError" && cut(c)
	})
	shared.ManifestCondition(t, w, 0, "Message", cut)
}

// TestCompletion_EndsAndResumesApplying: a complete work is left unchanged. It is applied again when it is no
// longer complete.
func TestCompletion_EndsAndResumesApplying(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "completion", jobYAML(ns, "once", false), harness.ConfigMapYAML(ns, "one", "ours"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{rulesOf("batch", "jobs", ns, "once", wellKnownRule("Complete"))}
	w = shared.Create(t, w)
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("Complete", "True", "Job is finished")},
		[]reported{applied, available, noFeedback, ruled("Complete", "True", "Job is finished")}, []reported{applied, available, noFeedback})

	// Nothing is repaired, and nothing new is applied.
	cm := configMap(t, ns, "one")
	cm.Data["key"] = "theirs"
	if _, err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	background := metav1.DeletePropagationBackground
	if err := shared.API[cluster].Kube.BatchV1().Jobs(ns).Delete(t.Context(), "once", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	w = shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, harness.Manifest(t, harness.ConfigMapYAML(ns, "two", "ours")))
	})
	shared.ConditionsAre(t, w, map[string]metav1.ConditionStatus{"Complete": metav1.ConditionTrue, "Available": metav1.ConditionFalse})
	harness.Consistently(t, func(ctx context.Context) error {
		if cm := configMap(t, ns, "one"); cm.Data["key"] != "theirs" {
			return errors.New("a complete work was repaired")
		}
		_, err := shared.ConfigMap(ctx, cluster, ns, "two")
		if err := harness.Absent(err, "what a complete work got"); err != nil {
			return err
		}
		_, err = shared.API[cluster].Kube.BatchV1().Jobs(ns).Get(ctx, "once", metav1.GetOptions{})
		return harness.Absent(err, "the Job that was deleted after it had run")
	})

	// Without its rule it is not complete any more.
	shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.ManifestConfigs = nil })
	shared.HasValue(t, cluster, ns, "one", "ours")
	shared.HasValue(t, cluster, ns, "two", "ours")
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := shared.API[cluster].Kube.BatchV1().Jobs(ns).Get(ctx, "once", metav1.GetOptions{})
		return err
	})
}

// TestCompletion_OfOneManifest: a complete manifest is left unchanged while the rest of its work continues. A
// restarted agent still knows that it is complete.
func TestCompletion_OfOneManifest(t *testing.T) {
	t.Parallel()
	const name = "completion-agent"
	ns := shared.NamespaceOn(t, cluster)
	shared.JoinAs(t, name)
	stop := shared.RunAgent(t, cluster, name, "--hub-identity="+name)
	w := harness.NewWork(t, name, "completion-one", jobYAML(ns, "done", false), jobYAML(ns, "open", true), harness.ConfigMapYAML(ns, "one", "ours"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{rulesOf("batch", "jobs", ns, "*", wellKnownRule("Complete"))}
	w = shared.Create(t, w)
	finished := ruled("Complete", "True", "Job is finished")
	wantReports(t, w, []reported{workApplied, workAvailable, aggregated("Complete", "False", "Aggregated from 2 manifest conditions")},
		[]reported{applied, available, noFeedback, finished}, []reported{applied, available, noFeedback, ruled("Complete", "False", "Job is not finished")}, []reported{applied, available, noFeedback})

	background := metav1.DeletePropagationBackground
	if err := shared.API[cluster].Kube.BatchV1().Jobs(ns).Delete(t.Context(), "done", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	gone := []reported{applied, absent, noFeedback, finished}
	wantReports(t, w, []reported{workApplied, {"Available", "False", "ResourcesNotAvailable", "not found: …", 1}, aggregated("Complete", "False", "Aggregated from 2 manifest conditions")},
		gone, []reported{applied, available, noFeedback, ruled("Complete", "False", "Job is not finished")}, []reported{applied, available, noFeedback})
	stop()
	shared.RunAgent(t, cluster, name, "--hub-identity="+name, "--state-dir=")
	if err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Delete(t.Context(), "one", deleteNow); err != nil {
		t.Fatal(err)
	}
	shared.HasValue(t, cluster, ns, "one", "ours") // the new agent is at work
	harness.Consistently(t, func(ctx context.Context) error {
		_, err := shared.API[cluster].Kube.BatchV1().Jobs(ns).Get(ctx, "done", metav1.GetOptions{})
		return harness.Absent(err, "the Job that had run")
	})
}
