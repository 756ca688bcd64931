package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/install"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// TestRights_AreTheSame: `hawser install`, kustomize and the charts give broker, hub-source and agent the same
// rights. The policy that confines hub-source is the same too.
func TestRights_AreTheSame(t *testing.T) {
	const registration = "registration.enabled=true,registration.policy=true"
	for _, c := range []struct {
		name     string
		settings install.Settings
		folders  []string
		charts   map[string]string // with their values
	}{
		{"hub", install.Settings{}, []string{"broker", "hub-source"}, map[string]string{"broker": "", "hub-source": ""}},
		{
			"hub that clusters join", install.Settings{Registration: install.On, Confined: install.On},
			[]string{"broker-registration", "hub-source-registration", "hub-source-policy"}, map[string]string{"broker": "registration.enabled=true", "hub-source": registration},
		},
	} {
		c.settings.Address, c.settings.HubIdentity, c.settings.Images = "broker.example.com:8090", "hub", install.Images{Registry: "r", Version: "v"}
		p, err := install.Hub(t.Context(), clustertest.New(), c.settings, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		same(t, c.name, ofPlan(t, p), c.folders, c.charts)
	}
	ca, err := pki.NewAuthority("ca", pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	join := install.Join{Name: "c1", Bootstrap: install.Bootstrap{Broker: "broker.example.com:8090", CA: ca.CertificatePEM(), Token: "x"}, Images: install.Images{Registry: "r", Version: "v"}}
	p, err := join.Agent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "cluster that joins", ofPlan(t, p), []string{"agent-registration"}, nil) // no chart lets a cluster join
	simple := kustomize(t, filepath.Join(root, "deploy", "agent"))
	if diff := cmp.Diff(rightsIn(t, simple), rightsIn(t, render(t, "agent", "hawser"))); diff != "" {
		t.Errorf("agent (-kustomize +helm):\n%s", diff)
	}
}

// ofPlan returns the objects of a plan of hawser install.
func ofPlan(t *testing.T, p install.Plan) map[string]object {
	t.Helper()
	all := map[string]object{}
	for _, o := range slices.Concat(p.Objects, p.Last) {
		all[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = o.Object
	}
	return all
}

// same compares the rights of hawser install, kustomize and the charts.
func same(t *testing.T, name string, installed map[string]object, folders []string, charts map[string]string) {
	t.Helper()
	want := rightsIn(t, installed)
	if len(want) == 0 {
		t.Errorf("%s: hawser install gives no rights", name)
	}
	var folded, charted []string
	for _, folder := range folders {
		folded = append(folded, rightsIn(t, kustomize(t, filepath.Join(root, "deploy", folder)))...)
	}
	if diff := cmp.Diff(want, sorted(folded)); diff != "" {
		t.Errorf("%s (-install +kustomize):\n%s", name, diff)
	}
	for program, values := range charts {
		args := []string{}
		if values != "" {
			args = []string{"--set", values}
		}
		charted = append(charted, rightsIn(t, render(t, program, "hawser", args...))...)
	}
	if diff := cmp.Diff(want, sorted(charted)); charts != nil && diff != "" {
		t.Errorf("%s (-install +helm):\n%s", name, diff)
	}
}

func sorted(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}

// rightsIn returns the rights that objects grant, one for each verb and resource. It also returns the subjects
// of each role, and the rules of an admission policy.
func rightsIn(t *testing.T, all map[string]object) (found []string) {
	t.Helper()
	for _, o := range all {
		u := unstructured.Unstructured{Object: o}
		name := fmt.Sprintf("%s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName())
		switch {
		case strings.HasSuffix(u.GetKind(), "Role"):
			rules, _ := o["rules"].([]any)
			for _, r := range rules {
				for _, right := range single(r.(object)) {
					found = append(found, name+": "+right)
				}
			}
			if o["aggregationRule"] != nil {
				found = append(found, name+": "+text(t, o["aggregationRule"]))
			}
		case strings.HasSuffix(u.GetKind(), "RoleBinding"):
			found = append(found, name+": "+text(t, []any{o["roleRef"], o["subjects"]}))
		case strings.HasPrefix(u.GetKind(), "ValidatingAdmissionPolicy"):
			found = append(found, name+": "+text(t, o["spec"]))
		}
	}
	return sorted(found)
}

// single returns the rights of a rule, one for each verb, resource and name.
func single(rule object) (all []string) {
	rights := []string{""}
	for _, field := range slices.Sorted(maps.Keys(rule)) {
		var more []string
		for _, right := range rights {
			for _, value := range rule[field].([]any) {
				more = append(more, fmt.Sprintf("%s %s=%v", right, field, value))
			}
		}
		rights = more
	}
	return rights
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
