package troubleshooting

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestDay is a day of an operator with sixteen faults. For each fault, one kubectl command and one hawser
// command show the cause and the next step. docs/troubleshooting.md prints these screens.
func TestDay(t *testing.T) {
	quiet := disconnect(t)
	for _, f := range []struct {
		fault string
		play  func(*testing.T)
	}{
		{"refused by policy", refusedByPolicy},
		{"forbidden", forbidden},
		{"immutable field", immutableField},
		{"unknown kind", unknownKind},
		{"finalizer", finalizerHangs},
		{"two works", twoWorks},
		{"war", aWar},
		{"too large", tooLarge},
		{"cluster API down", clusterAPIDown},
	} {
		t.Run(f.fault, f.play)
	}
	for _, q := range quiet {
		t.Run(q.fault, func(t *testing.T) { q.look(sit(t), strings.Fields(q.looks[0].command)[3]) })
	}
	// After its restart the broker counts the time without an agent from 0.
	t.Run("disk nearly full", diskNearlyFull)
	t.Run("broker down", brokerDown)
	t.Run("hub-source down", hubSourceDown)
	t.Run("many failing", manyFailing) // after this, hub-source writes no Events for a while
}

func refusedByPolicy(t *testing.T) {
	o := sit(t)
	ns := o.NamespaceOn(t, cluster)
	o.renamed = append(o.renamed, ns, "shop")
	for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		o.allow("admissionregistration.k8s.io", kind)
	}
	o.Deliver(t, harness.NewWork(t, cluster, "policy", `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-debug}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: `+ns+`}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  validations: [{expression: "!('debug' in object.data)", message: "debug must not be set"}]
`, `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-debug}
spec: {policyName: no-debug, validationActions: [Deny]}
`))
	settings := func(key string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: %s}, data: {%s: x}}", ns, key)
	}
	// A new policy needs a moment to be in force. Until then the work would be applied.
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := o.API[cluster].Kube.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Data: map[string]string{"debug": "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "debug must not be set") {
			return fmt.Errorf("the policy does not count yet: %w", err)
		}
		return nil
	})
	o.Create(t, harness.NewWork(t, cluster, "settings", settings("debug")))
	looks := failing("settings", `denied: ConfigMap shop/settings: .*no-debug.*debug must not be set`, `correct the manifest`)
	o.sees("refused by policy", looks...)
	o.Update(t, cluster, "settings", func(w *workv1.ManifestWork) { w.Spec = harness.NewWork(t, cluster, "", settings("level")).Spec })
	o.isWell(looks...)
	o.Remove(t, cluster, "settings")
	o.Remove(t, cluster, "policy") // before the agent loses its right
}

func immutableField(t *testing.T) {
	o := sit(t)
	ns := o.NamespaceOn(t, cluster)
	o.renamed = append(o.renamed, ns, "shop")
	labelled := func(label string) []string {
		return []string{strings.ReplaceAll(harness.DeploymentYAML(ns, "web", 1), "app: web", "app: "+label)}
	}
	o.Deliver(t, harness.NewWork(t, cluster, "frontend", labelled("web")...))
	o.Update(t, cluster, "frontend", func(w *workv1.ManifestWork) { w.Spec = harness.NewWork(t, cluster, "", labelled("site")...).Spec })
	looks := failing("frontend", `immutable: Deployment shop/web: spec\.selector`, `correct the manifest`)
	o.sees("immutable field", looks...)
	o.Update(t, cluster, "frontend", func(w *workv1.ManifestWork) { w.Spec = harness.NewWork(t, cluster, "", labelled("web")...).Spec })
	o.isWell(looks...)
}

func finalizerHangs(t *testing.T) {
	o := sit(t)
	ns := o.NamespaceOn(t, cluster)
	o.renamed = append(o.renamed, ns, "shop")
	o.Deliver(t, harness.NewWork(t, cluster, "data", "{apiVersion: v1, kind: ConfigMap, metadata: {name: data, namespace: "+ns+", finalizers: [example.org/backup]}}"))
	letGo := func() {
		_, err := o.API[cluster].Kube.CoreV1().ConfigMaps(ns).Patch(context.WithoutCancel(t.Context()), "data", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(letGo)
	o.DeleteWork(t, cluster, "data")
	const held, next = `waits for finalizers: ConfigMap shop/data: example\.org/backup`, `check that it runs on the cluster, or remove them from the object`
	looks := []look{
		{command: "kubectl events --for manifestwork/data -n " + cluster, output: held, next: next, past: true},
		{command: "hawser get works data --cluster " + cluster, output: held, next: next},
	}
	o.sees("finalizer", looks...)
	letGo()
	o.isWell(looks...)
}

func twoWorks(t *testing.T) {
	o := sit(t)
	ns := o.NamespaceOn(t, cluster)
	o.renamed = append(o.renamed, ns, "shop")
	o.Deliver(t, harness.NewWork(t, cluster, "first", harness.ConfigMapYAML(ns, "shared", "a")))
	o.Create(t, harness.NewWork(t, cluster, "second", harness.ConfigMapYAML(ns, "shared", "b")))
	// One of the two works reports it, or both.
	const names, next = `ConfigMap shop/shared: .* is changed by .*(first|second)`, `Take the object out of all works but one`
	looks := []look{
		{command: "kubectl events -n " + cluster + " --types=Warning", output: names, next: next, past: true},
		{command: "hawser get works --cluster " + cluster, output: names, next: next},
	}
	o.sees("two works", looks...) // both lines stay for ten minutes after the last repair
}

// aWar: another program restores its own value after each change.
func aWar(t *testing.T) {
	o := sit(t)
	ns := o.NamespaceOn(t, cluster)
	o.renamed = append(o.renamed, ns, "shop")
	o.Deliver(t, harness.NewWork(t, cluster, "settings", harness.ConfigMapYAML(ns, "settings", "ours")))
	stop := o.rival(ns, "settings")
	const by, next = `ConfigMap shop/settings: .* is changed by .*rival`, `Stop the other writer, or .*ignoreFields`
	looks := []look{
		{command: warnings("settings", cluster), output: by, next: next, past: true},
		{command: "hawser get works settings --cluster " + cluster, output: by, next: next},
	}
	o.sees("war", looks...) // both lines stay for ten minutes after the last repair
	stop()
}

// rival writes its own value into a ConfigMap whenever another client has changed it, until stop.
func (o *operator) rival(ns, name string) (stop func()) {
	o.t.Helper()
	ctx, cancel := context.WithCancel(o.t.Context())
	api := o.API[cluster].Kube.CoreV1().ConfigMaps(ns)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			w, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
			if err != nil {
				continue
			}
			for e := range w.ResultChan() {
				if c, ok := e.Object.(*corev1.ConfigMap); ok && c.Data["key"] != "theirs" {
					_, err := api.Patch(ctx, name, types.MergePatchType, []byte(`{"data":{"key":"theirs"}}`), metav1.PatchOptions{FieldManager: "rival"})
					if err != nil && ctx.Err() == nil {
						o.t.Log(err)
					}
				}
			}
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	o.t.Cleanup(stop)
	return stop
}

// manyFailing: 300 works fail for one cause.
func manyFailing(t *testing.T) {
	o := sit(t)
	const many = 300
	for i := range many {
		o.Create(t, harness.NewWork(t, cluster, fmt.Sprintf("w%03d", i), harness.ConfigMapYAML("shop", fmt.Sprintf("w%03d", i), "x")))
	}
	looks := []look{
		{command: "kubectl get manifestworks -n " + cluster + " -o wide", output: `w299 +False .*namespaces "shop" not found`, next: `deliver the namespace with a work`},
		{command: "hawser get clusters " + cluster, output: cluster + ` +Failing +300 +300 `, next: `hawser get works`},
		{command: "hawser get works --health not-applied --cluster " + cluster, output: `w299 .*namespaces "shop" not found`, next: `deliver the namespace with a work`},
	}
	harness.EventuallyWithin(t, 3*time.Minute, func(ctx context.Context) error {
		_, err := o.screen(ctx, []look{{command: looks[0].command, output: `w299 +False`}, {command: looks[1].command, output: cluster + ` +Failing +300 +300 `}})
		return err
	})
	o.sees("many failing", looks...)
	namespace(t, o.API[cluster], "shop")
	o.isWell(looks...)
	if err := o.HubAPI.Work.WorkV1().ManifestWorks(cluster).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	o.leave()
}

// clusterAPIDown: the kube-apiserver of a cluster does not answer its agent.
func clusterAPIDown(t *testing.T) {
	o := sit(t)
	o.Deliver(t, web(t, "old"))
	if err := o.StopControlPlane(cluster); err != nil {
		t.Fatal(err)
	}
	up := func() {
		if err := o.StartControlPlane(cluster); err != nil {
			t.Error(err)
		}
	}
	defer func() { up() }()
	o.Update(t, cluster, "web", func(w *workv1.ManifestWork) { w.Spec = web(t, "new").Spec })
	looks := []look{
		{command: warnings("web", cluster), output: `no answer: ConfigMap default/web: .*the kube-apiserver of the cluster cannot be reached: .*connection refused`, next: `check that it runs`, past: true},
		{command: "hawser get works web --cluster " + cluster, output: `no answer: ConfigMap default/web: .*the kube-apiserver of the cluster cannot be reached: .*connection refused`, next: `check that it runs`},
	}
	o.sees("cluster API down", looks...)
	up()
	up = func() {}
	o.isWell(looks...)
}
