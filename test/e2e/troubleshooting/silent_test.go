package troubleshooting

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// The clusters without an answering agent. Each has another cause.
const down, wrong, ended, misspelt = "paris", "rome", "oslo", "clutser1"

// disconnected are clusters whose works stay until the last test of the day.
var disconnected = map[string]bool{down: true, wrong: true, ended: true, misspelt: true}

// quiet is a cluster without an answering agent.
type quiet struct {
	fault string
	looks []look
	mend  func()
}

// reportedAfter is the time until hub-source reports on the hub that a cluster has no agent. It is the five
// minutes that an agent may be disconnected, the minute until the broker's next report, and a reserve for a
// busy machine.
const reportedAfter = 6*time.Minute + harness.ConvergeTimeout

// disconnect prepares all these faults. The hub reports a disconnected cluster only after minutes. So the faults
// come first, and are checked last.
func disconnect(t *testing.T) []quiet {
	t.Helper()
	o := sit(t)
	// looks returns the commands for the cluster's row and the work's Events, each with its cause and next step.
	looks := func(name, row, rowNext, event, eventNext string) []look {
		return []look{
			{command: "hawser get clusters " + name, output: name + row, next: rowNext},
			{command: warnings("web", name), output: event, next: eventNext, past: true},
		}
	}
	none := func(name string) string {
		return `AgentDisconnected .*no agent of cluster "` + name + `" is connected to the broker since `
	}
	renewed := o.hasAnEndedCertificate()
	return []quiet{
		{"agent down", looks(down, ` +Disconnected `, `\n`+down+` .*check `, none(down), `check that its agent runs and reaches the broker`), o.stopsAnswering()},
		{"wrong certificate", looks(wrong, ` +Rejected .*its agent used the certificate of cluster `+cluster, `put the certificate of `+wrong+` into its Secret`,
			`AgentDisconnected .*its agent used the certificate of cluster `+cluster, `put the certificate of `+wrong+` into its Secret`), o.hasTheWrongCertificate()},
		{"agent certificate expired", looks(ended, ` +Disconnected .*the certificate of its agent expired`, `put a new one into its Secret`,
			`AgentDisconnected .*the certificate of its agent expired at `, `put a new one into its Secret, or have it join again`), renewed},
		{"misspelt cluster", looks(misspelt, ` +NeverConnected +1 `, `is the name misspelt, or does its agent not reach the broker\?`,
			`AgentNeverConnected .*no agent of cluster "`+misspelt+`" has ever connected to the broker`, `check that the namespace is the name of a cluster, and that the agent of this cluster runs`), o.isMisspelt()},
	}
}

// workOf returns the work of such a cluster.
func (o *operator) workOf(name, value string) *workv1.ManifestWork {
	o.t.Helper()
	w := web(o.t, value)
	w.Namespace = name
	return w
}

func (o *operator) stopsAnswering() (mend func()) {
	o.JoinAs(o.t, down)
	o.forget(down)
	stop := o.RunAgent(o.t, cluster, down, "--hub-identity="+down)
	o.Deliver(o.t, o.workOf(down, "old"))
	stop()
	o.Update(o.t, down, "web", func(w *workv1.ManifestWork) { w.Spec = o.workOf(down, "new").Spec })
	return func() { o.RunAgent(o.t, cluster, down, "--hub-identity="+down) }
}

func (o *operator) hasTheWrongCertificate() (mend func()) {
	o.JoinAs(o.t, wrong)
	o.comesWith(wrong, cluster)
	return func() { o.carry(wrong, wrong) }
}

func (o *operator) hasAnEndedCertificate() (mend func()) {
	o.JoinAs(o.t, ended)
	if _, err := o.PKI().Issue(pki.Request{Role: pki.Agent, Name: ended, Valid: pki.Starting(time.Now(), 20*time.Second)}, true); err != nil {
		o.t.Fatal(err)
	}
	o.Ready(o.t, o.comesWith(ended, ended))
	harness.Eventually(o.t, func(ctx context.Context) error {
		_, err := o.screen(ctx, []look{{command: "hawser get clusters " + ended, output: "Disconnected"}})
		return err
	})
	o.Update(o.t, ended, "web", func(w *workv1.ManifestWork) { w.Spec = o.workOf(ended, "new").Spec })
	return func() {
		o.JoinAs(o.t, ended)
		o.carry(ended, ended)
	}
}

func (o *operator) isMisspelt() (mend func()) {
	namespace(o.t, o.HubAPI, misspelt)
	o.forget(misspelt)
	o.Create(o.t, o.workOf(misspelt, "x"))
	return func() {}
}

// look checks the screen of one of these clusters, repairs the cluster, and checks that the cause is gone.
func (q quiet) look(o *operator, name string) {
	o.t.Helper()
	harness.EventuallyWithin(o.t, reportedAfter, func(ctx context.Context) error {
		events, err := o.HubAPI.Kube.CoreV1().Events(name).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
		if err == nil && len(events.Items) == 0 {
			err = fmt.Errorf("the hub has no warning about cluster %s", name)
		}
		return err
	})
	o.sees(q.fault, q.looks...)
	q.mend()
	o.DeleteWork(o.t, name, "web")
	o.isWell(q.looks...)
}
