package alerts

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/local/thirdparty"
)

const root = "../.."

// runbooks is the target of the annotation runbook_url.
const runbooks = "https://github.com/hawser-io/hawser/blob/main/docs/alerts.md#"

var (
	series = regexp.MustCompile(`(hawser_[a-z_]+)(\{[^}]*\})?`)
	label  = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"([^"]*)"`)
	row    = regexp.MustCompile("(?m)^\\| `(hawser_[a-z_]+)` \\| (counter|gauge|histogram) \\|(.*?)\\| .+ \\|$")
	linked = regexp.MustCompile(`\[(Hawser[A-Za-z]+)\]\(alerts\.md#([a-z]+)\)`)
	title  = regexp.MustCompile(`(?m)^### (.+)$`)
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.Join(path...)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// parse reads a manifest.
func parse[T any](t *testing.T, path ...string) (o T) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, path...)), &o); err != nil {
		t.Fatalf("%s: %v", filepath.Join(path...), err)
	}
	return o
}

func load(t *testing.T, program string) Rules {
	t.Helper()
	r, err := Load(root, program)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRules_MetricsAreDocumented: docs/metrics.md has each metric of a rule, with the labels that the rule
// uses. The row of the metric there links to exactly the alerts that use it.
func TestRules_MetricsAreDocumented(t *testing.T) {
	labels, reported := map[string]string{}, map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(read(t, "docs", "metrics.md"), -1) {
		labels[m[1]] = m[3]
		for _, l := range linked.FindAllStringSubmatch(m[0], -1) {
			reported[m[1]] = append(reported[m[1]], l[1])
			if l[2] != strings.ToLower(l[1]) {
				t.Errorf("docs/metrics.md: %s leads to #%s", l[1], l[2])
			}
		}
	}
	used := map[string][]string{}
	for _, program := range Programs {
		for _, r := range load(t, program).All() {
			for _, m := range series.FindAllStringSubmatch(r.Expr, -1) {
				name := m[1]
				if h, is := strings.CutSuffix(name, "_bucket"); is {
					name = h
				}
				has, known := labels[name]
				if !known {
					t.Errorf("%s: docs/metrics.md has no metric %s", r.Alert, name)
				}
				for _, l := range label.FindAllStringSubmatch(m[2], -1) {
					if l[1] != "job" && !strings.Contains(has, "`"+l[1]+"`") {
						t.Errorf("%s: %s has no label %s", r.Alert, name, l[1])
					}
				}
				if !slices.Contains(used[name], r.Alert) {
					used[name] = append(used[name], r.Alert)
				}
			}
		}
	}
	for name := range labels {
		slices.Sort(used[name])
		slices.Sort(reported[name])
		if !slices.Equal(used[name], reported[name]) {
			t.Errorf("docs/metrics.md: %s leads to the alerts %v, rules use it for %v", name, reported[name], used[name])
		}
	}
}

// TestRules_HaveRunbooks: each alert has a description, a severity, and a link to its section of
// docs/alerts.md. That page has no section without an alert.
func TestRules_HaveRunbooks(t *testing.T) {
	sections := map[string]bool{}
	page := read(t, "docs", "alerts.md")
	for _, m := range title.FindAllStringSubmatch(page, -1) {
		sections[m[1]] = false
	}
	for _, program := range Programs {
		for _, r := range load(t, program).All() {
			if _, there := sections[r.Alert]; !there {
				t.Errorf("%s has no section in docs/alerts.md", r.Alert)
			}
			sections[r.Alert] = true
			if want := runbooks + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
				t.Errorf("%s leads to %q, not to %s", r.Alert, r.Annotations["runbook_url"], want)
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" {
				t.Errorf("%s has the severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %s has no summary or no description", r.Alert)
			}
		}
	}
	for name, used := range sections {
		if !used {
			t.Errorf("docs/alerts.md: there is no alert %s", name)
		}
	}
	for _, part := range strings.Split(page, "\n### ")[1:] {
		for _, what := range []string{"* **It means**: ", "* **Look**: ", "* **Do**: "} {
			if strings.Count(part, what) != 1 {
				name, _, _ := strings.Cut(part, "\n")
				t.Errorf("docs/alerts.md: %s does not have one %q", name, what)
			}
		}
	}
}

// TestRules_FireAndClear plays the series in testdata. promtool checks that each alert fires when it must, and
// at no other time.
func TestRules_FireAndClear(t *testing.T) {
	dir, err := thirdparty.FetchPackage(t.Context(), root, "prometheus", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	promtool := func(t *testing.T, dir string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(args[1:], " "), err, out)
		}
	}
	tool := filepath.Join(dir, "promtool")
	for _, program := range Programs {
		t.Run(program, func(t *testing.T) {
			rules, in := load(t, program), t.TempDir()
			write := func(r Rules, name string) {
				t.Helper()
				if err := r.Write(filepath.Join(in, name)); err != nil {
					t.Fatal(err)
				}
			}
			write(rules, "annotated.yaml")
			promtool(t, in, tool, "check", "rules", "annotated.yaml")
			write(rules.Map(func(r Rule) Rule {
				r.Annotations = nil
				return r
			}), "rules.yaml")
			text := read(t, "test", "alerts", "testdata", program+".yaml")
			if err := os.WriteFile(filepath.Join(in, "tests.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			promtool(t, in, tool, "test", "rules", "tests.yaml")
			allTested(t, rules, text)
		})
	}
}

// allTested reports each alert that no test checks as firing, or that no test checks as quiet.
func allTested(t *testing.T, rules Rules, text string) {
	t.Helper()
	var file struct {
		Tests []struct {
			Checks []struct {
				Alert    string `json:"alertname"`
				Expected []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, one := range file.Tests {
		for _, c := range one.Checks {
			if len(c.Expected) > 0 {
				fires[c.Alert] = true
			} else {
				quiet[c.Alert] = true
			}
		}
	}
	for _, r := range rules.All() {
		if !fires[r.Alert] || !quiet[r.Alert] {
			t.Errorf("%s: seen to fire: %v, seen quiet: %v", r.Alert, fires[r.Alert], quiet[r.Alert])
		}
	}
}

// TestMonitors_ReachTheirPods: the manifests of deploy have the pods that the PodMonitors select, and the
// NetworkPolicies there let the scraper in.
func TestMonitors_ReachTheirPods(t *testing.T) {
	type podMonitor struct {
		Spec struct {
			JobLabel string `json:"jobLabel"`
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			Endpoints []struct {
				Port string `json:"port"`
				Path string `json:"path"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	for _, program := range Programs {
		t.Run(program, func(t *testing.T) {
			m := parse[podMonitor](t, "deploy", "monitoring", program, "podmonitor.yaml").Spec
			pod := parse[appsv1.Deployment](t, "deploy", program, "deployment.yaml").Spec.Template
			for k, v := range m.Selector.MatchLabels {
				if pod.Labels[k] != v {
					t.Errorf("it selects %s=%s, the pods have %q", k, v, pod.Labels[k])
				}
			}
			if pod.Labels[m.JobLabel] != "hawser-"+program || len(m.Selector.MatchLabels) == 0 {
				t.Errorf("the job would be %q, selected by %v", pod.Labels[m.JobLabel], m.Selector.MatchLabels)
			}
			if len(m.Endpoints) != 1 || m.Endpoints[0].Path != "/metrics" {
				t.Fatalf("it scrapes %+v", m.Endpoints)
			}
			ports := pod.Spec.Containers[0].Ports
			at := slices.IndexFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == m.Endpoints[0].Port })
			if at < 0 {
				t.Fatalf("the pods have no port %s", m.Endpoints[0].Port)
			}
			policy := parse[networkingv1.NetworkPolicy](t, "deploy", program, "networkpolicy.yaml")
			if !letsIn(policy, "monitoring", ports[at].ContainerPort) {
				t.Errorf("the NetworkPolicy does not let the namespace monitoring reach port %d", ports[at].ContainerPort)
			}
		})
	}
}

func letsIn(p networkingv1.NetworkPolicy, namespace string, port int32) bool {
	return slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
		return slices.ContainsFunc(r.Ports, func(x networkingv1.NetworkPolicyPort) bool { return x.Port.IntVal == port }) &&
			slices.ContainsFunc(r.From, func(x networkingv1.NetworkPolicyPeer) bool {
				return x.NamespaceSelector != nil && maps.Equal(x.NamespaceSelector.MatchLabels, map[string]string{"kubernetes.io/metadata.name": namespace})
			})
	})
}

func TestShortenFor(t *testing.T) {
	r := Rules{Groups: []Group{{Name: "g", Rules: []Rule{{Alert: "A", For: "2m"}, {Alert: "B", Expr: "b"}}}}}
	fast, err := r.ShortenFor(60)
	if err != nil || fast.Groups[0].Rules[0].For != "2000ms" || fast.Groups[0].Rules[1].Expr != "b" || fast.Groups[0].Rules[1].For != "" {
		t.Errorf("got %+v, %v", fast, err)
	}
	r.Groups[0].Rules[0].For = "2d"
	if _, err := r.ShortenFor(60); err == nil {
		t.Error("2d was understood")
	}
}
