package alerts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/local/thirdparty"
)

// inhibitRules is the file that an operator merges into alertmanager.yml.
const inhibitRules = "deploy/monitoring/alertmanager/inhibit-rules.yaml"

// TestInhibition_NamesAlerts: each alert that the file names is one of the rules.
func TestInhibition_NamesAlerts(t *testing.T) {
	var known []string
	for _, program := range Programs {
		for _, r := range load(t, program).All() {
			known = append(known, r.Alert)
		}
	}
	named := regexp.MustCompile(`Hawser[A-Za-z]+`).FindAllString(read(t, inhibitRules), -1)
	for _, name := range named {
		if !slices.Contains(known, name) {
			t.Errorf("%s names %s, which no rule is", inhibitRules, name)
		}
	}
	if len(named) == 0 {
		t.Error("no alert is named")
	}
}

// TestInhibition_IsTakenByAlertmanager: the real parser accepts the file together with a route.
func TestInhibition_IsTakenByAlertmanager(t *testing.T) {
	programs, err := thirdparty.FetchPackage(t.Context(), root, "prometheus-alertmanager", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "alertmanager.yml")
	text := read(t, inhibitRules) + "\nroute: {receiver: none}\nreceivers: [{name: none}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "amtool"), "check-config", config).CombinedOutput()
	if want := fmt.Sprintf(" - %d inhibit rules", len(shippedInhibitions(t))); err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, want %q:\n%s", err, want, out)
	}
}

// TestInhibition_ADeadBrokerIsOnePage: when the broker of 2,000 clusters is down, many alerts fire and one is
// sent.
func TestInhibition_ADeadBrokerIsOnePage(t *testing.T) {
	cutOff := []labels{{"alertname": "HawserHubSourceDisconnected", "job": "hawser-hub-source"}, {"alertname": "HawserClustersOffline", "job": "hawser-broker"}}
	for i := range 2000 {
		cutOff = append(cutOff, labels{"alertname": "HawserAgentDisconnected", "cluster": fmt.Sprintf("cluster%d", i)})
	}
	other := labels{"alertname": "HawserAgentDisconnected", "cluster": "cluster1", "fleet": "another"}
	dead := labels{"alertname": "HawserBrokerDown", "severity": "critical"}
	firing(t, append(cutOff, other, dead), dead, other)
	firing(t, append(cutOff, other), append(cutOff, other)...) // the broker runs again, the others are still disconnected
}

// TestInhibition_OfOneCluster: a cause on one cluster inhibits no alert of another cluster.
func TestInhibition_OfOneCluster(t *testing.T) {
	down := labels{"alertname": "HawserAgentDown", "cluster": "a"}
	elsewhere := labels{"alertname": "HawserAgentDisconnected", "cluster": "b"}
	firing(t, []labels{down, elsewhere, {"alertname": "HawserAgentDisconnected", "cluster": "a"}}, down, elsewhere)
}

// labels are the labels of a firing alert.
type labels map[string]string

func (l labels) key() string { return l["fleet"] + "/" + l["cluster"] + "/" + l["alertname"] }

// inhibition is one rule of an Alertmanager.
type inhibition struct {
	Source []string `json:"source_matchers"`
	Target []string `json:"target_matchers"`
	Equal  []string `json:"equal"`
}

func shippedInhibitions(t *testing.T) []inhibition {
	t.Helper()
	var file struct {
		Rules []inhibition `json:"inhibit_rules"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, inhibitRules)), &file); err != nil {
		t.Fatal(err)
	}
	return file.Rules
}

var matcher = regexp.MustCompile(`^([a-z]+)(=~?)"([^"]*)"$`)

// match reports whether all matchers match an alert, as in Alertmanager.
func match(t *testing.T, matchers []string, l labels) bool {
	t.Helper()
	for _, text := range matchers {
		m := matcher.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("the test does not understand the matcher %s", text)
		}
		if m[2] == "=" && l[m[1]] != m[3] || m[2] == "=~" && !regexp.MustCompile("^(?:"+m[3]+")$").MatchString(l[m[1]]) {
			return false
		}
	}
	return true
}

// uninhibited returns the alerts that no other alert inhibits. A rule inhibits if source and target have the
// same values of the labels in equal. A missing label counts as empty
// (prometheus.io/docs/alerting/latest/configuration/#inhibit_rule).
func uninhibited(t *testing.T, firing []labels) []labels {
	t.Helper()
	reported := slices.Clone(firing)
	for _, r := range shippedInhibitions(t) {
		var sources []labels
		for _, l := range firing {
			if match(t, r.Source, l) {
				sources = append(sources, l)
			}
		}
		reported = slices.DeleteFunc(reported, func(l labels) bool {
			return match(t, r.Target, l) && !match(t, r.Source, l) && slices.ContainsFunc(sources, func(source labels) bool {
				return !slices.ContainsFunc(r.Equal, func(name string) bool { return source[name] != l[name] })
			})
		})
	}
	return reported
}

// firing checks that exactly the alerts in want are not inhibited.
func firing(t *testing.T, firing []labels, want ...labels) {
	t.Helper()
	keys := func(all []labels) (keys []string) {
		for _, l := range all {
			keys = append(keys, l.key())
		}
		slices.Sort(keys)
		return keys
	}
	if got, want := keys(uninhibited(t, firing)), keys(want); !slices.Equal(got, want) {
		t.Errorf("%d alerts are sent, want %d: %.300q, want %.300q", len(got), len(want), got, want)
	}
}
