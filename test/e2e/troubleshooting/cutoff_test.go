package troubleshooting

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// everything is a webhook rule for all requests.
const everything = `{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*/*"]}`

// leases is a webhook rule for the Leases of agents.
const leases = `{apiGroups: [coordination.k8s.io], apiVersions: ["*"], operations: ["*"], resources: [leases]}`

// webhookYAML returns the configuration of a webhook without a service behind it.
func webhookYAML(kind, failurePolicy, rules string) string {
	return fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: %s
metadata: {name: cutoff}
webhooks:
- name: cutoff.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: %s
  timeoutSeconds: 1
  clientConfig: {service: {namespace: default, name: none}}
  rules: [%s]
`, kind, failurePolicy, rules)
}

// policyYAML returns a policy that denies the agent's writes, and its binding.
func policyYAML() []string {
	return []string{`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: cutoff}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [work.open-cluster-management.io], apiVersions: ["*"], operations: ["*"], resources: [appliedmanifestworks, appliedmanifestworks/status]}
    - ` + leases + `
  validations: [{expression: "false"}]
`, `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: cutoff}
spec: {policyName: cutoff, validationActions: [Deny]}
`}
}

// named waits until a work reports which of its manifests blocks the agent's writes.
func named(t *testing.T, namespace, work string, manifest int) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		w, err := shared.Get(ctx, namespace, work)
		if err != nil {
			return err
		}
		for _, m := range w.Status.ResourceStatus.Manifests {
			c := meta.FindStatusCondition(m.Conditions, workv1.ManifestApplied)
			if int(m.ResourceMeta.Ordinal) == manifest && c != nil && c.Status == metav1.ConditionFalse && c.Reason == "AgentWritesRejected" && strings.Contains(c.Message, "cutoff") {
				return nil
			}
		}
		return fmt.Errorf("manifest %d is not named: %+v", manifest, w.Status)
	})
}

// goneFromHub waits until a work has left the hub, which its agent has confirmed then.
func goneFromHub(t *testing.T, namespace, work string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		w, err := shared.Get(ctx, namespace, work)
		if err == nil {
			return fmt.Errorf("the work is still there: %+v", w.Status.Conditions)
		}
		return harness.Absent(err, work)
	})
}

// TestCutOff: a work contains a webhook that rejects all writes of the agent. The report names it. It is
// corrected and deleted through the hub, also by an agent that was restarted meanwhile.
func TestCutOff(t *testing.T) {
	o := sit(t)
	for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		o.allow("admissionregistration.k8s.io", kind)
	}
	for _, c := range []struct {
		name      string
		broken    []string
		corrected []string // none: the work is deleted without a correction
	}{
		{"a webhook on everything", []string{webhookYAML("ValidatingWebhookConfiguration", "Fail", everything)}, []string{webhookYAML("ValidatingWebhookConfiguration", "Ignore", everything)}},
		{"a webhook on everything, deleted", []string{webhookYAML("ValidatingWebhookConfiguration", "Fail", everything)}, nil},
		{"a mutating webhook on everything", []string{webhookYAML("MutatingWebhookConfiguration", "Fail", everything)}, nil},
		{"a webhook on Leases", []string{webhookYAML("ValidatingWebhookConfiguration", "Fail", leases)}, nil},
		{"a policy", policyYAML(), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.Create(t, harness.NewWork(t, cluster, "cutoff", c.broken...))
			named(t, cluster, "cutoff", 0)
			agent := o.Program(fleet.AgentOf(cluster))
			agent.Kill()
			if err := agent.Launch(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
			if c.corrected != nil {
				o.Ready(t, o.Update(t, cluster, "cutoff", func(w *workv1.ManifestWork) { w.Spec = harness.NewWork(t, cluster, "", c.corrected...).Spec }))
			}
			o.Remove(t, cluster, "cutoff")
			o.Deliver(t, web(t, c.name))
			o.Remove(t, cluster, "web")
		})
	}
}

// TestCutOff_Lease: an agent that cannot write its Lease keeps it beyond its time, and continues. A restarted
// agent cannot get the Lease, and removes the cause by a deletion through the hub.
func TestCutOff_Lease(t *testing.T) {
	o := sit(t)
	const name = "cutoff"
	o.JoinAs(t, name)
	spec := o.AgentSpec(t, cluster, name, "--hub-identity="+name,
		"--leader-election-lease-duration=6s", "--leader-election-renew-deadline=4s", "--leader-election-retry-period=1s")
	agent, err := childproc.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Kill)
	o.Deliver(t, harness.NewWork(t, name, "web", harness.ConfigMapYAML("default", "cutoff", "1")))
	o.Create(t, harness.NewWork(t, name, "cutoff", webhookYAML("ValidatingWebhookConfiguration", "Fail", everything)))
	named(t, name, "cutoff", 0)
	select {
	case <-agent.Done():
		t.Fatalf("the agent ended: %s", agent.LogTail())
	case <-time.After(10 * time.Second): // more than twice the renew deadline of its Lease
	}
	agent.Kill()
	for _, a := range spec.Args {
		if dir, is := strings.CutPrefix(a, "--state-dir="); is {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	o.Run(t, spec)
	o.DeleteWork(t, name, "cutoff")
	goneFromHub(t, name, "cutoff")
	o.Deliver(t, harness.NewWork(t, name, "more", harness.ConfigMapYAML("default", "cutoff-more", "1")))
	for _, w := range []string{"web", "more"} {
		o.DeleteWork(t, name, w)
		goneFromHub(t, name, w)
	}
}

// strippingYAML returns a policy that removes the finalizer from the agent's records, and its binding.
func strippingYAML() []string {
	return []string{`apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: stripping}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: [work.open-cluster-management.io], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [appliedmanifestworks]}
  matchConditions: [{name: has-finalizers, expression: "has(object.metadata.finalizers)"}]
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: '[JSONPatch{op: "remove", path: "/metadata/finalizers"}]'}
`, `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: stripping}
spec: {policyName: stripping}
`}
}

// TestCutOff_Finalizers: a work contains a policy that changes the agent's records. Until the work is deleted,
// no object is created without a record that outlives it, and no deletion is confirmed.
func TestCutOff_Finalizers(t *testing.T) {
	o := sit(t)
	for _, kind := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"} {
		o.allow("admissionregistration.k8s.io", kind)
	}
	w := o.Deliver(t, web(t, "old"))
	o.Deliver(t, harness.NewWork(t, cluster, "cutoff", strippingYAML()...))
	records := o.API[cluster].Work.WorkV1().AppliedManifestWorks()
	harness.Eventually(t, func(ctx context.Context) error { // a new policy needs a moment to be in force
		tried := &workv1.AppliedManifestWork{ObjectMeta: metav1.ObjectMeta{Name: "tried", Finalizers: []string{workv1.AppliedManifestWorkFinalizer}}}
		got, err := records.Create(ctx, tried, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && len(got.Finalizers) > 0 {
			err = errors.New("the policy does not count yet")
		}
		return err
	})
	o.Update(t, cluster, "web", func(w *workv1.ManifestWork) { w.Spec = web(t, "new").Spec })
	harness.Eventually(t, func(ctx context.Context) error {
		got, err := o.Get(ctx, cluster, "web")
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(got.Status.Conditions, workv1.WorkApplied)
		if c == nil || c.ObservedGeneration == w.Generation || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "modifies the agent's writes") {
			return fmt.Errorf("the work does not report it: %+v", c)
		}
		return nil
	})
	o.DeleteWork(t, cluster, "web")
	harness.Consistently(t, func(ctx context.Context) error {
		_, err := o.Get(ctx, cluster, "web")
		return err
	})
	o.Remove(t, cluster, "cutoff")
	o.WaitDeleted(t, cluster, "web")
	_, err := o.API[cluster].Kube.CoreV1().ConfigMaps("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err := harness.Absent(err, "the object of the deleted work"); err != nil {
		t.Error(err)
	}
}
