// Package join tests how a cluster joins a hub with the commands of docs/join.md. The real control planes hold
// the objects of `hawser install` and `hawser join`. The programs run with the rights of their service
// accounts.
package join

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/testkit/shellblocks"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// page returns the blocks of docs/join.md, in order.
func page(t *testing.T) []shellblocks.Block {
	t.Helper()
	all, err := shellblocks.Find(root)
	if err != nil {
		t.Fatal(err)
	}
	blocks := shellblocks.Of(shellblocks.Join, all)
	const want = 7 // token and join, accept, a work, deny, accept again, detach, after the hub
	if len(blocks) != want {
		t.Fatalf("docs/join.md has %d blocks marked \"sh test join\", want %d", len(blocks), want)
	}
	return blocks
}

// TestJoin_CommandsOfTheDocumentation: a token, the request of a cluster, its acceptance, its first work, a
// denial, a second acceptance, and its removal.
func TestJoin_CommandsOfTheDocumentation(t *testing.T) {
	blocks := page(t)
	w := newWorld(t, "hub", "cluster1")
	broker := w.address("hub/hawser-broker") + ":8090"
	repository, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	r := shellblocks.Runner{
		Dir: w.dir, Path: []string{w.bin, filepath.Dir(w.kubectl)},
		Env: w.env(),
		Replace: []string{
			"broker.example.com:8090", broker, "--image-registry", "--image-version dev --image-registry", "docs/examples", filepath.Join(repository, "docs", "examples"),
		},
	}
	next := func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		b := blocks[0]
		blocks = blocks[1:]
		out, err := r.Run(ctx, b)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s\n%s", b, out)
		return out
	}
	next() // the hub
	// The annotation is for cert-manager only, and has no effect without it.
	w.run(w.kubectl, "--context", "hub", "annotate", "validatingwebhookconfiguration", "hawser-hub-source", "cert-manager.io/inject-ca-from=hawser/hawser-hub-source-webhook")
	w.asKustomizeHasIt("hub", "broker-registration", "hub-source-registration")
	// No pod serves the webhook here.
	w.run(w.kubectl, "--context", "hub", "delete", "validatingwebhookconfiguration", "hawser-hub-source")
	w.start("hub", "hawser-broker")
	w.start("hub", "hawser-hub-source", "hawser-broker.hawser.svc:8090", broker)

	next() // the cluster requests to join
	w.asKustomizeHasIt("cluster1", "agent-registration")
	w.start("cluster1", "hawser-agent")
	access := []string{"--broker", broker, "--ca", w.file("ca.crt"), "--cert", w.file("tls.crt"), "--key", w.file("tls.key")}
	w.eventually("NotAccepted", append([]string{"get", "clusters", "cluster1"}, access...)...)

	if out := next(); !strings.Contains(out, "accept it with hawser accept cluster1") || !strings.Contains(out, "cluster cluster1 is accepted") {
		t.Errorf("the output does not name the waiting cluster, or does not report that it was accepted")
	}
	next() // the first work
	w.eventually("InSync", append([]string{"get", "clusters", "cluster1"}, access...)...)
	w.addOns(broker)
	next() // denied
	(&stay{world: w, whole: w}).wantWaits(approval)
	next() // accepted again
	w.eventually("InSync", append([]string{"get", "clusters", "cluster1"}, access...)...)
	if out := next(); !strings.Contains(out, "cluster cluster1 is detached") {
		t.Errorf("the output does not report that the cluster is detached")
	}
	w.detached()
}

// detached checks that the objects of the works are gone. The agent's own objects and the cluster's namespace on
// the hub stay.
func (w *world) detached() {
	w.Helper()
	hub, cluster := w.planes["hub"].kube, w.planes["cluster1"].kube
	_, err := cluster.AppsV1().Deployments("default").Get(w.Context(), "first-work", metav1.GetOptions{})
	if err := harness.Absent(err, "the Deployment of the first work"); err != nil {
		w.Error(err)
	}
	_, err = cluster.CoreV1().ServiceAccounts("default").Get(w.Context(), "first-work", metav1.GetOptions{})
	if err := harness.Absent(err, "the ServiceAccount of the first work"); err != nil {
		w.Error(err)
	}
	if _, err := cluster.AppsV1().Deployments("hawser").Get(w.Context(), "hawser-agent", metav1.GetOptions{}); err != nil {
		w.Errorf("the agent's Deployment: %v", err)
	}
	if _, err := hub.CoreV1().Namespaces().Get(w.Context(), "cluster1", metav1.GetOptions{}); err != nil {
		w.Errorf("the cluster's namespace on the hub: %v", err)
	}
	if out := w.run(w.kubectl, "--context", "hub", "get", "managedclusters", "-o", "name"); out != "" {
		w.Errorf("the hub still has %s", out)
	}
}

// asKustomizeHasIt checks that the objects equal those that kustomize builds from deploy/.
func (w *world) asKustomizeHasIt(where string, overlays ...string) {
	w.Helper()
	for _, o := range overlays {
		w.run(w.kubectl, "--context", where, "diff", "--server-side", "--force-conflicts", "--field-manager=test", "-k", filepath.Join(w.bin, "..", "deploy", o))
	}
}

// file returns the path of a file with the operator's access.
func (w *world) file(name string) string { return filepath.Join(w.dir, "hawser-access", name) }
