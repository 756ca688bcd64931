// Package charts compares the Helm charts of deploy/ with the kustomize bases from which they are rendered. It
// compares them without settings, and with the same settings in both.
package charts

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/local/controlplane"
)

const root = "../.."

var programs = []string{"broker", "hub-source", "agent"}

type object = map[string]any

// helm returns the path of the pinned Helm, which it builds once.
var helm = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "tool", "-modfile="+filepath.Join(root, "tools", "helm", "go.mod"), "-n", "helm").Output()
	return strings.TrimSpace(string(out)), err
})

func runHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := helm()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	// The user's configuration and plugins of Helm must not influence the test.
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var output strings.Builder
	cmd.Stderr = &output
	out, err := cmd.Output()
	if err != nil {
		return output.String(), err
	}
	return string(out), nil
}

func chart(program string) string { return filepath.Join(root, "deploy", "charts", "hawser-"+program) }

// render returns the objects of a chart, by kind and name.
func render(t *testing.T, program, namespace string, args ...string) map[string]object {
	t.Helper()
	out, err := runHelm(t, slices.Concat([]string{"template", "a-release", chart(program), "--namespace", namespace}, args)...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return parse(t, out)
}

// kustomize returns the objects of a base or an overlay, without the namespace: Helm requires that it exists
// before.
func kustomize(t *testing.T, dir string) map[string]object {
	t.Helper()
	kubectl, err := controlplane.Build(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(kubectl, "kubectl"), "kustomize", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", dir, err, out)
	}
	all := parse(t, string(out))
	for name, o := range all {
		if o["kind"] == "Namespace" {
			delete(all, name)
		}
	}
	return all
}

func parse(t *testing.T, text string) map[string]object {
	t.Helper()
	all := map[string]object{}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		if o == nil {
			continue
		}
		name := o["kind"].(string) + " " + o["metadata"].(object)["name"].(string)
		if all[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		all[name] = o
	}
	return all
}

func TestCharts_RenderSameAsDeploy(t *testing.T) {
	for _, program := range programs {
		want := kustomize(t, filepath.Join(root, "deploy", program))
		if diff := cmp.Diff(want, render(t, program, "hawser")); diff != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", program, diff)
		}
	}
}

// TestCharts_RenderRegistration: with registration, a chart renders the overlay for registration.
func TestCharts_RenderRegistration(t *testing.T) {
	for _, program := range []string{"broker", "hub-source"} {
		want := kustomize(t, filepath.Join(root, "deploy", program+"-registration"))
		if diff := cmp.Diff(want, render(t, program, "hawser", "--set", "registration.enabled=true")); diff != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", program, diff)
		}
	}
}

// TestCharts_RenderPostgres: with PostgreSQL, the chart of the broker renders the component postgres, with and
// without registration.
func TestCharts_RenderPostgres(t *testing.T) {
	for dir, set := range map[string]string{
		filepath.Join(root, "deploy", "broker-postgres"): "postgres.secret=hawser-broker-postgres",
		filepath.Join("testdata", "broker", "postgres"):  "registration.enabled=true,postgres.secret=mine,postgres.replicas=2,postgres.port=6432",
	} {
		if diff := cmp.Diff(kustomize(t, dir), render(t, "broker", "hawser", "--set", set)); diff != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", dir, diff)
		}
	}
}

// TestCharts_RenderRegistrationWithoutControllers: if Open Cluster Management handles the members, the rest of
// the overlay is complete.
func TestCharts_RenderRegistrationWithoutControllers(t *testing.T) {
	want := output(t, kustomize(t, filepath.Join(root, "deploy", "hub-source-registration")))
	for name := range want {
		if strings.HasSuffix(name, " hawser-hub-source-registration-controllers") {
			delete(want, name)
		}
	}
	want["ConfigMap hawser-hub-source-config"]["data"].(object)["registrationControllers"].(object)["mode"] = "off"
	got := output(t, render(t, "hub-source", "hawser", "--set", "registration.enabled=true,registration.controllers=false"))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-kustomize +helm):\n%s", diff)
	}
}

// TestCharts_RenderSameAsOverlays: settings change the configuration. Chart and overlay must render the same
// configuration. Only the hash in its name differs.
func TestCharts_RenderSameAsOverlays(t *testing.T) {
	for _, program := range programs {
		for _, c := range []struct{ name, namespace string }{{"settings", "hawser"}, {"elsewhere", "elsewhere"}} {
			dir := filepath.Join("testdata", program, c.name)
			want := output(t, kustomize(t, dir))
			got := output(t, render(t, program, c.namespace, "--values", filepath.Join(dir, "values.yaml")))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-kustomize +helm):\n%s", dir, diff)
			}
		}
	}
}

var hash = regexp.MustCompile(`-config-[2456789bcdfghkmt]{10}$`)

// output replaces the text of configurations by parsed content, and removes the hash from their names.
func output(t *testing.T, all map[string]object) map[string]object {
	t.Helper()
	out := map[string]object{}
	for name, o := range all {
		switch o["kind"] {
		case "ConfigMap":
			var config object
			if err := yaml.Unmarshal([]byte(o["data"].(object)["config.yaml"].(string)), &config); err != nil {
				t.Fatal(err)
			}
			o["data"] = config
			if short := hash.ReplaceAllString(name, "-config"); short != name {
				name = short
				delete(o["metadata"].(object), "name")
			}
		case "Deployment":
			for _, v := range o["spec"].(object)["template"].(object)["spec"].(object)["volumes"].([]any) {
				if c, ok := v.(object)["configMap"].(object); ok {
					c["name"] = hash.ReplaceAllString(c["name"].(string), "-config")
				}
			}
		}
		out[name] = o
	}
	return out
}

// TestCharts_LeaveOut: a disabled part leaves no object behind.
func TestCharts_LeaveOut(t *testing.T) {
	for _, c := range []struct{ program, set, absent, text string }{
		{"broker", "networkPolicy.enabled=false", "NetworkPolicy hawser-broker", ""},
		{"broker", "persistence.existingClaim=mine", "PersistentVolumeClaim hawser-broker", ""},
		{"hub-source", "webhook.enabled=false", "ValidatingWebhookConfiguration hawser-hub-source", "--webhook-listen"},
		{"hub-source", "networkPolicy.enabled=false", "NetworkPolicy hawser-hub-source", ""},
		{"agent", "networkPolicy.enabled=false", "NetworkPolicy hawser-agent", ""},
	} {
		before, after := render(t, c.program, "hawser"), render(t, c.program, "hawser", "--set", c.set)
		if before[c.absent] == nil || after[c.absent] != nil {
			t.Errorf("%s: %s was there %v, is there %v", c.set, c.absent, before[c.absent] != nil, after[c.absent] != nil)
		}
		if text, err := json.Marshal(after); err != nil || c.text != "" && strings.Contains(string(text), c.text) {
			t.Errorf("%s leaves %s: %v", c.set, c.text, err)
		}
	}
	for name, o := range output(t, render(t, "hub-source", "hawser", "--set", "webhook.enabled=false")) {
		if o["kind"] == "ConfigMap" && o["data"].(object)["webhook"] != nil {
			t.Errorf("%s configures a webhook: %v", name, o["data"])
		}
	}
	if text, err := json.Marshal(render(t, "broker", "hawser", "--set", "persistence.existingClaim=mine")); err != nil || !strings.Contains(string(text), `{"claimName":"mine"}`) {
		t.Errorf("the volume is not mine: %v", err)
	}
	if text, err := json.Marshal(render(t, "agent", "hawser", "--set", "state.medium=Memory")); err != nil || !strings.Contains(string(text), `"emptyDir":{"medium":"Memory"}`) {
		t.Errorf("the state is not in memory: %v", err)
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	if text, err := json.Marshal(render(t, "agent", "hawser", "--set", "image.digest="+digest)); err != nil || !strings.Contains(string(text), `/hawser-agent@`+digest+`"`) {
		t.Errorf("the image has no digest: %v", err)
	}
}

// TestCharts_InstallDefinitions: a chart installs the definition that its program needs.
func TestCharts_InstallDefinitions(t *testing.T) {
	for program, file := range map[string]string{"hub-source": "manifestworks", "agent": "appliedmanifestworks"} {
		data, err := os.ReadFile(filepath.Join(root, "deploy", "crds", file+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		all := render(t, program, "hawser", "--include-crds")
		for name, want := range parse(t, string(data)) {
			if diff := cmp.Diff(want, all[name]); diff != "" {
				t.Errorf("%s (-deploy/crds +helm):\n%s", name, diff)
			}
		}
	}
}

func TestCharts_Lint(t *testing.T) {
	for _, program := range programs {
		for _, args := range [][]string{nil, {"--values", filepath.Join("testdata", program, "settings", "values.yaml")}} {
			if out, err := runHelm(t, slices.Concat([]string{"lint", "--strict", chart(program)}, args)...); err != nil {
				t.Errorf("%s: %v\n%s", program, err, out)
			}
		}
	}
}

// TestCharts_RejectUnknownValues: a misspelt value is rejected by its name.
func TestCharts_RejectUnknownValues(t *testing.T) {
	for _, program := range programs {
		for _, set := range []string{"replica=2", "image.name=x", "resources.limit.memory=1Gi", "networkPolicy.enabled=maybe", "image.pullPolicy=always"} {
			out, err := runHelm(t, "template", "a-release", chart(program), "--set", set)
			field, _, _ := strings.Cut(set, "=")
			parts := strings.Split(field, ".")
			if err == nil || !strings.Contains(out, parts[min(1, len(parts)-1)]) {
				t.Errorf("%s with %s: %v\n%s", program, set, err, out)
			}
		}
	}
}

// TestCharts_RejectKeysUnknownToPrograms: a setting that the program does not have is rejected at every level.
// Invalid base64 is rejected too.
func TestCharts_RejectKeysUnknownToPrograms(t *testing.T) {
	for program, sets := range map[string][]string{
		"broker":     {"config.lisen=:1", "config.log.levle=debug", "config.identities[0].rolle=source", "imagePullSecrets[0].nam=x", "extraEnv[0].valu=x", "tolerations[0].efect=x"},
		"hub-source": {"config.brokr=:1", "webhook.caBundle=QUJ", "webhook.caBundle=a-b_", "webhook.caBundle=QUJD=", "webhook.caBundle=/etc/ca.crt"},
		"agent":      {"extraVolumeMounts[0].mountpath=/x", "topologySpreadConstraints[0].maxskew=1"},
	} {
		for _, set := range sets {
			if out, err := runHelm(t, "template", "a-release", chart(program), "--set", set); err == nil {
				t.Errorf("%s takes %s:\n%.200s", program, set, out)
			}
		}
	}
}

var (
	flagKey = regexp.MustCompile("(?m)^\\| `--[^`]*` \\| `([^`]+)` \\|")
	fileKey = regexp.MustCompile("(?m)^\\| `([a-zA-Z][^`]*)` \\|")
)

// TestCharts_SchemaHasTheSettings: the schema of a configuration has the settings of the page that the program
// writes.
func TestCharts_SchemaHasTheSettings(t *testing.T) {
	for _, program := range []string{"broker", "hub-source"} {
		page, err := os.ReadFile(filepath.Join(root, "docs", "reference", "hawser-"+program+".md"))
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(chart(program), "values.schema.json"))
		var schema object
		if err := errors.Join(err, json.Unmarshal(data, &schema)); err != nil {
			t.Fatal(err)
		}
		want, got := map[string]bool{}, map[string]bool{}
		for _, m := range slices.Concat(flagKey.FindAllStringSubmatch(string(page), -1), fileKey.FindAllStringSubmatch(string(page), -1)) {
			want[m[1]] = true
		}
		for key := range want { // a key with nested keys is represented by them
			for parent := range want {
				if strings.HasPrefix(key, parent+"[]") {
					delete(want, parent)
				}
			}
		}
		settings(schema["properties"].(object)["config"].(object), "", got)
		if diff := cmp.Diff(want, got); diff != "" || len(want) < 20 {
			t.Errorf("%s (-page +schema):\n%s", program, diff)
		}
	}
}

// settings collects the leaves of a schema, and reports open objects.
func settings(schema object, at string, into map[string]bool) {
	properties, _ := schema["properties"].(object)
	if schema["additionalProperties"] != false {
		into[at+" is open"] = true
	}
	for name, p := range properties {
		property, path := p.(object), strings.TrimPrefix(at+"."+name, ".")
		switch items, _ := property["items"].(object); {
		case items != nil:
			settings(items, path+"[]", into)
		case property["properties"] != nil:
			settings(property, path, into)
		default:
			into[path] = true
		}
	}
}

// TestCharts_SchemaMatchesValues: the schema has exactly the values of values.yaml, and is closed.
func TestCharts_SchemaMatchesValues(t *testing.T) {
	for _, program := range programs {
		var values object
		var schema any
		for file, into := range map[string]any{"values.yaml": &values, "values.schema.json": &schema} {
			data, err := os.ReadFile(filepath.Join(chart(program), file))
			if err == nil {
				err = yaml.Unmarshal(data, into)
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		delete(schema.(object)["properties"].(object), "global") // a value of Helm itself
		compareSchema(t, program, values, schema.(object))
	}
}

func compareSchema(t *testing.T, at string, values, schema object) {
	t.Helper()
	properties, closed := schema["properties"].(object)
	if !closed {
		return // any keys, as in the configuration of a program
	}
	if schema["additionalProperties"] != false {
		t.Errorf("%s: the schema takes whatever comes", at)
	}
	for name, value := range values {
		property, ok := properties[name].(object)
		if !ok {
			t.Errorf("%s.%s is not in the schema", at, name)
			continue
		}
		if inner, ok := value.(object); ok && len(inner) > 0 {
			compareSchema(t, at+"."+name, inner, property)
		}
	}
	for name := range properties {
		if _, ok := values[name]; !ok {
			t.Errorf("%s.%s is in the schema, and not in values.yaml", at, name)
		}
	}
}

// TestCharts_RenderMonitoringAndBackups: backups, PodMonitor and alerts equal those in deploy/.
func TestCharts_RenderMonitoringAndBackups(t *testing.T) {
	for _, program := range programs {
		want := kustomize(t, filepath.Join(root, "deploy", program))
		maps.Copy(want, kustomize(t, filepath.Join(root, "deploy", "monitoring", program)))
		set := "monitoring.podMonitor=true,monitoring.rules=true"
		if program == "broker" {
			maps.Copy(want, kustomize(t, filepath.Join(root, "deploy", "broker-backup")))
			set += ",backup.enabled=true"
		}
		if diff := cmp.Diff(want, render(t, program, "hawser", "--set", set)); diff != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", program, diff)
		}
	}
}

// TestCharts_SettingsOfMonitoringBackupsAndProxy: the settings of backups, monitoring and the proxy reach the
// objects that use them, in other namespaces too.
func TestCharts_SettingsOfMonitoringBackupsAndProxy(t *testing.T) {
	for _, c := range []struct {
		program, set string
		want         []string
	}{
		{"broker", "monitoring.podMonitor=true,monitoring.labels.release=prometheus", []string{`"release":"prometheus"`, `"kind":"PodMonitor"`}},
		{"broker", "backup.enabled=true,backup.schedule=@daily,backup.keep=5,backup.tlsSecret=ops,service.port=443,image.tag=v1,backup.storageClass=slow", []string{
			`"schedule":"@daily"`, `"--keep=5"`, `"secretName":"ops"`, `"--broker=hawser-broker.elsewhere.svc:443"`, `/hawser:v1"`, `"storageClassName":"slow"`,
		}},
		{"broker", "backup.enabled=true,backup.existingClaim=mine,persistence.existingClaim=store,backup.image=r/h@sha256:1", []string{`"claimName":"mine"`, `"claimName":"store"`, `"r/h@sha256:1"`}},
		{"agent", `proxy.https=http://proxy.example:3128,proxy.noProxy=.example\,10.0.0.0/8`, []string{
			`{"name":"HTTPS_PROXY","value":"http://proxy.example:3128"}`, `{"name":"NO_PROXY","value":"$(KUBERNETES_SERVICE_HOST),.example,10.0.0.0/8"}`,
		}},
	} {
		text, err := json.Marshal(render(t, c.program, "elsewhere", "--set", c.set))
		for _, want := range c.want {
			if err != nil || !strings.Contains(string(text), want) {
				t.Errorf("%s with %s has no %s (%v)", c.program, c.set, want, err)
			}
		}
	}
	for set, program := range map[string]string{
		"proxy.https=http://ann:secret@proxy.example:3128": "agent", "backup.schedule=daily": "broker", "backup.enabled=true,postgres.secret=db": "broker", "postgres.replicas=0": "broker",
	} {
		if out, err := runHelm(t, "template", "a-release", chart(program), "--set", set); err == nil {
			t.Errorf("%s takes %s: %s", program, set, out)
		}
	}
}

// TestCharts_CommandsOfTheNotes installs the charts on a real control plane, and runs the commands of their
// notes. The simulated nodes have no containers, so nothing runs in them.
func TestCharts_CommandsOfTheNotes(t *testing.T) {
	dir, err := controlplane.Build(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := controlplane.Start(context.WithoutCancel(t.Context()), controlplane.Config{Binary: filepath.Join(dir, "controlplane"), Dir: filepath.Join(t.TempDir(), "hub"), Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	env := append(os.Environ(), "KUBECONFIG="+c.KubeconfigPath, "PATH="+dir+":"+os.Getenv("PATH"))
	types := func(command string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	types("kubectl apply --server-side -f testdata/prometheus-operator.yaml && kubectl wait --for=condition=Established --timeout=60s -f testdata/prometheus-operator.yaml")
	types("kubectl create namespace hawser")
	typed := 0
	for _, program := range programs {
		out, err := runHelm(t, "install", "hawser-"+program, chart(program), "--namespace", "hawser", "--kubeconfig", c.KubeconfigPath,
			"--set", "monitoring.podMonitor=true,monitoring.rules=true", "--set", map[string]string{"broker": "backup.enabled=true", "agent": "proxy.https=http://proxy.example:3128", "hub-source": "webhook.caBundle=eA=="}[program])
		if err != nil {
			t.Fatalf("%s: %v\n%s", program, err, out)
		}
		_, notes, _ := strings.Cut(out, "NOTES:")
		for line := range strings.Lines(notes) {
			if command, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "  "); ok && !strings.Contains(command, " exec ") {
				types(command)
				typed++
			}
		}
		if _, err := runHelm(t, "uninstall", "hawser-"+program, "--namespace", "hawser", "--kubeconfig", c.KubeconfigPath); err != nil {
			t.Errorf("%s: %v", program, err)
		}
	}
	if typed < 12 {
		t.Errorf("the notes print %d commands only", typed)
	}
}

// TestExamples_Build: the examples of deploy/ build. A second cell has no object of the first one.
func TestExamples_Build(t *testing.T) {
	example := func(path ...string) map[string]object {
		return kustomize(t, filepath.Join(append([]string{root, "deploy", "examples"}, path...)...))
	}
	if all := example("cloudnativepg"); all["Cluster hawser-db"] == nil || all["PersistentVolumeClaim hawser-broker"] != nil {
		t.Errorf("cloudnativepg has %v", slices.Sorted(maps.Keys(all)))
	}
	for program, first := range map[string]string{"broker": "broker-postgres", "hub-source": "hub-source"} {
		theirs := kustomize(t, filepath.Join(root, "deploy", first))
		for name, o := range example("second-cell", program) {
			namespace := o["metadata"].(object)["namespace"]
			if namespace == nil && theirs[name] != nil || namespace != nil && namespace != "hawser-b" {
				t.Errorf("%s in namespace %v is the first cell's too", name, namespace)
			}
			text, err := json.Marshal(o)
			if err != nil || strings.Contains(string(text), `"namespace":"hawser"`) || strings.Contains(string(text), "webhook-listen") {
				t.Errorf("%s is not that of a second cell: %v\n%s", name, err, text)
			}
		}
	}
}
