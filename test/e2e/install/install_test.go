// Package install runs `hawser install` as an operator does, on bare control planes whose nodes start pods
// without containers. The tests show how the API servers treat the objects. They also check that the objects
// equal those that kustomize builds from deploy/.
package install

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/local/controlplane"
)

const root = "../../.."

// where is a machine with bare control planes. Each one is a context of its kubeconfig.
type where struct {
	*testing.T
	kubectl, hawser, dir string
	env                  []string
}

func newWhere(t *testing.T, nodes int, contexts ...string) where {
	t.Helper()
	programs, err := controlplane.Build(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	w := where{T: t, kubectl: filepath.Join(programs, "kubectl"), dir: t.TempDir()}
	if w.hawser, err = filepath.Abs(filepath.Join(root, "bin", "hawser")); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, name := range contexts {
		c, err := controlplane.Start(context.WithoutCancel(t.Context()), controlplane.Config{
			Binary: filepath.Join(programs, "controlplane"), Dir: filepath.Join(t.TempDir(), name), Nodes: nodes,
			ExtraArgs: []string{"--enable-aggregator-routing=true"}, // webhooks are called at endpoints, because a Service has no address here
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
		files = append(files, c.KubeconfigPath)
	}
	w.env = append(os.Environ(), "KUBECONFIG="+strings.Join(files, string(filepath.ListSeparator)))
	return w
}

// run runs a program, and returns its output as lines.
func (w where) run(program string, args ...string) []string {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), program, args...)
	cmd.Env, cmd.Dir = w.env, w.dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("%s %s: %v\n%s%s", filepath.Base(program), strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

var hubArgs = []string{"install", "hub", "--context", "hub", "--address", "broker.example.com:8090", "--image-registry", "registry.example.com/hawser", "--image-version", "dev"}

// TestInstall_TwoCommands: two commands install a hub and a cluster with the objects that kustomize builds from
// deploy/. A second run changes nothing. Uninstalling keeps the requested objects.
func TestInstall_TwoCommands(t *testing.T) {
	w := newWhere(t, 1, "hub", "cluster1")
	cluster := []string{"install", "cluster", "cluster1", "--hub-context", "hub", "--context", "cluster1"}
	dry := []string{"--dry-run", "-o", "yaml"}
	w.compare(w.objects(slices.Concat(hubArgs, dry)...), "broker", "hub-source")
	w.run(w.hawser, hubArgs...)
	w.compare(w.objects(slices.Concat(cluster, dry)...), "agent")
	w.run(w.hawser, cluster...)
	for _, again := range [][]string{{"install", "hub", "--context", "hub", "--image-version", "dev"}, cluster} {
		for _, line := range w.run(w.hawser, again...) {
			if object, what, _ := strings.Cut(line, " "); strings.Contains(object, "/") && what != "unchanged" && what != "exists and is not changed" {
				t.Errorf("%v again: %s", again[:2], line)
			}
		}
	}
	w.leavesNothingBehind()
	for context, programs := range map[string]string{"hub": "hawser-broker 1 hawser-hub-source 2", "cluster1": "hawser-agent 1"} {
		if got := w.run(w.kubectl, "--context", context, "-n", "hawser", "get", "deployments", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.readyReplicas} {end}`); strings.TrimSpace(got[0]) != programs {
			t.Errorf("%s has %v, want %s", context, got, programs)
		}
	}
	access, err := os.ReadFile(filepath.Join(w.dir, "hawser-access", "env"))
	if err != nil || !strings.HasPrefix(string(access), "export HAWSER_BROKER=broker.example.com:8090 ") {
		t.Errorf("access %s, %v", access, err)
	}

	w.run(w.hawser, "uninstall", "cluster", "cluster1", "--hub-context", "hub", "--context", "cluster1")
	if got := w.run(w.kubectl, "--context", "cluster1", "get", "namespaces,customresourcedefinitions", "-l", "app.kubernetes.io/managed-by=hawser", "-o", "name"); len(got) != 2 {
		t.Errorf("%v stay on the cluster, want namespace and definition", got)
	}
	w.run(w.hawser, "uninstall", "hub", "--context", "hub", "--delete-workloads", "--yes")
	// The namespace disappears once its volume is gone. No controller removes the volume here, so it may stay
	// Terminating.
	if got := w.run(w.kubectl, "--context", "hub", "get", "namespace", "hawser", "--ignore-not-found", "-o", "jsonpath={.status.phase}"); got[0] != "" && got[0] != "Terminating" {
		t.Errorf("the namespace on the hub is %v", got)
	}
	if got := w.run(w.kubectl, "--context", "hub", "get", "clusterroles,customresourcedefinitions,validatingwebhookconfigurations", "-l", "app.kubernetes.io/managed-by=hawser", "-o", "name"); got[0] != "" {
		t.Errorf("%v stay on the hub", got)
	}
}

// leavesNothingBehind checks the next run of hawser install. It deletes an object of an earlier version, and
// keeps the user's object with the same label.
func (w where) leavesNothingBehind() {
	w.Helper()
	for name, manager := range map[string]string{"earlier": "hawser-install-hub", "mine": "kubectl"} {
		file := filepath.Join(w.dir, name+".yaml")
		text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: hawser, labels: {app.kubernetes.io/managed-by: hawser}}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			w.Fatal(err)
		}
		w.run(w.kubectl, "--context", "hub", "apply", "--server-side", "--field-manager", manager, "-f", file)
	}
	again := []string{"install", "hub", "--context", "hub", "--image-version", "dev"}
	const why = "an earlier run made it, and it is not needed any more"
	if output := w.run(w.hawser, append(slices.Clone(again), "--dry-run")...); !slices.Contains(output, "configmap/earlier would be deleted: "+why) {
		w.Errorf("the dry run printed %q", output)
	}
	if message := w.run(w.hawser, again...); !slices.Contains(message, "configmap/earlier deleted: "+why) {
		w.Errorf("the next run printed %q", message)
	}
	if got := w.run(w.kubectl, "--context", "hub", "-n", "hawser", "get", "configmaps", "earlier", "mine", "--ignore-not-found", "-o", "name"); !slices.Equal(got, []string{"configmap/mine"}) {
		w.Errorf("there are %v, want what a person made", got)
	}
}

type manifest = map[string]any

func (w where) objects(args ...string) map[string]manifest {
	w.Helper()
	return parse(w.T, strings.Join(w.run(w.hawser, args...), "\n"))
}

// parse returns the objects of a text, without the expected differences from kustomize: the CA of the webhook,
// and the label that uninstall uses.
func parse(t *testing.T, text string) map[string]manifest {
	t.Helper()
	all := map[string]manifest{}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o manifest
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		if o == nil {
			continue
		}
		metadata := o["metadata"].(manifest)
		all[o["kind"].(string)+" "+metadata["name"].(string)] = o
		delete(metadata["labels"].(manifest), "app.kubernetes.io/managed-by")
		if o["kind"] == "ValidatingWebhookConfiguration" {
			delete(metadata, "annotations")
			for _, hook := range o["webhooks"].([]any) {
				delete(hook.(manifest)["clientConfig"].(manifest), "caBundle")
			}
		}
	}
	return all
}

func (w where) compare(installed map[string]manifest, bases ...string) {
	w.Helper()
	for _, base := range bases {
		dir, err := filepath.Abs(filepath.Join(root, "deploy", base))
		if err != nil {
			w.Fatal(err)
		}
		for name, want := range parse(w.T, strings.Join(w.run(w.kubectl, "kustomize", dir), "\n")) {
			if diff := cmp.Diff(want, installed[name]); diff != "" {
				w.Errorf("%s of deploy/%s (-kustomize +install):\n%s", name, base, diff)
			}
		}
	}
}

// TestInstall_ReportsPendingObjects: if the programs do not start, the command reports what it waits for, and
// fails.
func TestInstall_ReportsPendingObjects(t *testing.T) {
	w := newWhere(t, 0, "hub") // pods stay Pending
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.hawser, append(slices.Clone(hubArgs), "--timeout", "10s")...)
	cmd.Env, cmd.Dir = w.env, w.dir
	out, err := cmd.CombinedOutput()
	for _, want := range []string{
		"waiting for deployment.apps/hawser-broker: has 0 of 1 pods ready", "hawser: waited for deployment.apps/hawser-broker: it has 0 of 1 pods ready",
		"hint: see why with: kubectl -n hawser describe pods -l app.kubernetes.io/name=hawser-broker",
	} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("ended with %v and printed %s, want %q", err, out, want)
		}
	}
}
