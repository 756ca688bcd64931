// Package charts compares the Helm charts of deploy/ with its kustomize bases, from
// which they are rendered: with no settings, and with the same settings in both.
package charts

import (
	"encoding/json"
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

	"github.com/hawser-io/hawser/internal/controlplane"
)

const root = "../.."

var programs = []string{"broker", "hub-source", "agent"}

type object = map[string]any

// helm is the pinned tool.
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
	// What a user has set up, plugins and all, is not part of it.
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return said.String(), err
	}
	return string(out), nil
}

func chart(program string) string { return filepath.Join(root, "deploy", "charts", "hawser-"+program) }

// render returns what a chart makes, by kind and name.
func render(t *testing.T, program, namespace string, args ...string) map[string]object {
	t.Helper()
	out, err := runHelm(t, slices.Concat([]string{"template", "a-release", chart(program), "--namespace", namespace}, args)...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return parse(t, out)
}

// kustomize returns what a base or an overlay makes, the namespace aside: that is
// there before a release of Helm is.
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

func TestCharts_RenderWhatIsInDeploy(t *testing.T) {
	for _, program := range programs {
		want := kustomize(t, filepath.Join(root, "deploy", program))
		if diff := cmp.Diff(want, render(t, program, "hawser")); diff != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", program, diff)
		}
	}
}

// Where clusters join, a chart renders the overlay that is for it.
func TestCharts_RenderRegistration(t *testing.T) {
	for _, program := range []string{"broker", "hub-source"} {
		want := kustomize(t, filepath.Join(root, "deploy", program+"-registration"))
		if diff := cmp.Diff(want, render(t, program, "hawser", "--set", "registration.enabled=true")); diff != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", program, diff)
		}
	}
}

// Where Open Cluster Management looks after the members, nothing else of the overlay is missing.
func TestCharts_RenderRegistrationWithoutMembership(t *testing.T) {
	want := said(t, kustomize(t, filepath.Join(root, "deploy", "hub-source-registration")))
	for name := range want {
		if strings.HasSuffix(name, " hawser-hub-source-membership") {
			delete(want, name)
		}
	}
	want["ConfigMap hawser-hub-source-config"]["data"].(object)["membership"].(object)["mode"] = "off"
	got := said(t, render(t, "hub-source", "hawser", "--set", "registration.enabled=true,registration.membership=false"))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-kustomize +helm):\n%s", diff)
	}
}

// With settings a configuration is written anew: it has to say the same, and the
// hash in its name differs.
func TestCharts_RenderWhatOverlaysDo(t *testing.T) {
	for _, program := range programs {
		for _, c := range []struct{ name, namespace string }{{"settings", "hawser"}, {"elsewhere", "elsewhere"}} {
			dir := filepath.Join("testdata", program, c.name)
			want := said(t, kustomize(t, dir))
			got := said(t, render(t, program, c.namespace, "--values", filepath.Join(dir, "values.yaml")))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-kustomize +helm):\n%s", dir, diff)
			}
		}
	}
}

var hash = regexp.MustCompile(`-config-[2456789bcdfghkmt]{10}$`)

// said replaces configurations by what they say, and their names by some without
// their hash.
func said(t *testing.T, all map[string]object) map[string]object {
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

// What is left out leaves nothing of it behind.
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
	for name, o := range said(t, render(t, "hub-source", "hawser", "--set", "webhook.enabled=false")) {
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

// A chart brings the definition that its program needs.
func TestCharts_BringDefinitions(t *testing.T) {
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

// A misspelt value is refused, by its name.
func TestCharts_RefuseWhatTheyDoNotKnow(t *testing.T) {
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

// The schema has what values.yaml has, no more and no less, and is closed.
func TestCharts_SchemaIsWhatValuesAre(t *testing.T) {
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
		delete(schema.(object)["properties"].(object), "global") // Helm's own
		compareSchema(t, program, values, schema.(object))
	}
}

func compareSchema(t *testing.T, at string, values, schema object) {
	t.Helper()
	properties, closed := schema["properties"].(object)
	if !closed {
		return // free, such as the configuration of a program
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
