package deployfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const root = "../../.."

// bases are the Deployments of deploy/.
var bases = []string{"broker", "hub-source", "agent"}

// read reads one manifest of deploy/. Unknown fields are errors.
func read(t *testing.T, into any, path ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{root, "deploy"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("%s: %v", strings.Join(path, "/"), err)
	}
}

func container(t *testing.T, base string) corev1.Container {
	t.Helper()
	return Deployment(t, root, base).Spec.Template.Spec.Containers[0]
}

// kustomization contains the fields of a kustomization.yaml that deploy/ uses.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Namespace       string
	Labels          []struct{ Pairs map[string]string }
	Resources       []string
	Components      []string
	Images          []struct{ Name, NewName, NewTag string }
	// ConfigMapGenerator creates ConfigMaps from files.
	ConfigMapGenerator []struct {
		Name  string
		Files []string
	}
}

// TestImages_AreNamedOnce: one file names the images of all programs, with one registry and one version.
func TestImages_AreNamedOnce(t *testing.T) {
	var images kustomization
	read(t, &images, "images", "kustomization.yaml")
	registries, tags := map[string]bool{}, map[string]bool{}
	var names []string
	for _, i := range images.Images {
		names = append(names, i.Name)
		registry, found := strings.CutSuffix(i.NewName, "/"+i.Name)
		if !found {
			t.Errorf("%s is pulled as %s: `make push` pushes it under its own name", i.Name, i.NewName)
		}
		registries[registry], tags[i.NewTag] = true, true
	}
	if len(registries) != 1 || len(tags) != 1 {
		t.Errorf("images come from %v, versions %v: want one of each", registries, tags)
	}
	for _, base := range bases {
		if c := container(t, base); c.Image != "hawser-"+base || !slices.Contains(names, c.Image) || len(c.Command) > 0 {
			t.Errorf("deploy/%s runs %v of image %s: want the entry point of hawser-%[1]s, which deploy/images names", base, c.Command, c.Image)
		}
		var k kustomization
		read(t, &k, base, "kustomization.yaml")
		if !slices.Equal(k.Components, []string{"../images"}) {
			t.Errorf("deploy/%s has components %v, want ../images", base, k.Components)
		}
	}
}

// TestBases_LeaveNothingOut: the kustomization.yaml of a base lists each of its files. Exceptions are the files
// that users mount.
func TestBases_LeaveNothingOut(t *testing.T) {
	mounted := []string{"agent/config.yaml", "agent/policy.yaml"}
	for _, base := range bases {
		var k kustomization
		read(t, &k, base, "kustomization.yaml")
		named := append(slices.Clone(k.Resources), "kustomization.yaml")
		for _, g := range k.ConfigMapGenerator {
			named = append(named, g.Files...)
		}
		entries, err := os.ReadDir(filepath.Join(root, "deploy", base))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !slices.Contains(named, e.Name()) && !slices.Contains(mounted, base+"/"+e.Name()) {
				t.Errorf("deploy/%s/%s is in no list of its kustomization.yaml", base, e.Name())
			}
		}
	}
}

// TestFlowSchemas_MatchTheAgent: the schemas are those of the agent's service account, come before those of
// Kubernetes for all service accounts, and name a level that exists.
func TestFlowSchemas_MatchTheAgent(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "deploy", "agent-flowschema", "flowschema.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	levels := map[string]bool{"leader-election": true} // of Kubernetes
	account, schemas := Deployment(t, root, "agent").Spec.Template.Spec.ServiceAccountName, 0
	for _, text := range strings.Split(string(data), "\n---\n") {
		var level flowcontrolv1.PriorityLevelConfiguration
		if err := yaml.UnmarshalStrict([]byte(text), &level); err == nil && level.Kind == "PriorityLevelConfiguration" {
			levels[level.Name] = true
			continue
		}
		var schema flowcontrolv1.FlowSchema
		if err := yaml.UnmarshalStrict([]byte(text), &schema); err != nil {
			t.Fatal(err)
		}
		schemas++
		if !levels[schema.Spec.PriorityLevelConfiguration.Name] || schema.Spec.MatchingPrecedence >= 9000 {
			t.Errorf("%s: level %q, precedence %d", schema.Name, schema.Spec.PriorityLevelConfiguration.Name, schema.Spec.MatchingPrecedence)
		}
		for _, r := range schema.Spec.Rules {
			for _, s := range r.Subjects {
				if s.ServiceAccount == nil || s.ServiceAccount.Name != account || s.ServiceAccount.Namespace != "hawser" {
					t.Errorf("%s is for %+v, want service account hawser/%s", schema.Name, s, account)
				}
			}
		}
	}
	if schemas != 2 {
		t.Errorf("%d schemas", schemas)
	}
}

// TestNetworkPolicies_OpenThePortsOfTheirPods: a NetworkPolicy selects the pods of its base, and opens exactly
// the ports of their containers.
func TestNetworkPolicies_OpenThePortsOfTheirPods(t *testing.T) {
	for _, base := range bases {
		var p networkingv1.NetworkPolicy
		read(t, &p, base, "networkpolicy.yaml")
		pod := Deployment(t, root, base).Spec.Template
		selects(t, "the NetworkPolicy of deploy/"+base, &p.Spec.PodSelector, pod.Labels)
		var have, open []string
		for _, c := range pod.Spec.Containers[0].Ports {
			have = append(have, fmt.Sprint(c.ContainerPort))
		}
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				open = append(open, port.Port.String())
				if port.Port.IntValue() == adminPort && len(rule.From) == 0 {
					t.Errorf("deploy/%s: the admin port, plain HTTP, is open to all", base)
				}
			}
		}
		slices.Sort(have)
		slices.Sort(open)
		if !slices.Equal(have, open) {
			t.Errorf("deploy/%s: the NetworkPolicy opens ports %v, the container has %v", base, open, have)
		}
		egress := slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		if len(p.Spec.Egress) > 0 || egress != (base == "broker") {
			t.Errorf("deploy/%s: policy types %v, egress %v: the broker makes no calls, the others only the required ones", base, p.Spec.PolicyTypes, p.Spec.Egress)
		}
	}
}

const adminPort = 8081

func selects(t *testing.T, what string, s *metav1.LabelSelector, pod map[string]string) {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil || selector.Empty() || !selector.Matches(labels.Set(pod)) {
		t.Errorf("%s selects %v (%v), the pods have %v", what, selector, err, pod)
	}
}

// TestDisruptionBudgets_LetNodesBeDrained: a drain evicts one of several replicas at a time, and a single
// replica without a wait.
func TestDisruptionBudgets_LetNodesBeDrained(t *testing.T) {
	pods := Deployment(t, root, "broker").Spec.Template.Labels
	for _, base := range append([]string{"postgres"}, bases...) {
		d := Deployment(t, root, base)
		if base == "postgres" { // it changes the brokers of another base
			d.Spec.Template.Labels = pods
		}
		_, err := os.Stat(filepath.Join(root, "deploy", base, "poddisruptionbudget.yaml"))
		if several := *d.Spec.Replicas > 1; several != (err == nil) {
			t.Errorf("deploy/%s: %d replicas, PodDisruptionBudget: %v", base, *d.Spec.Replicas, err)
		}
		if err != nil {
			continue
		}
		var b policyv1.PodDisruptionBudget
		read(t, &b, base, "poddisruptionbudget.yaml")
		selects(t, "the PodDisruptionBudget of deploy/"+base, b.Spec.Selector, d.Spec.Template.Labels)
		if b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.IntValue() != 1 || b.Spec.MinAvailable != nil {
			t.Errorf("deploy/%s: budget %+v, want one unavailable", base, b.Spec)
		}
	}
}

// TestProbes_KillNoReadingProgram: the liveness probe only checks that the process answers, because a restart
// does not help while a peer is down. A program that reads a disk first has ten minutes for it.
func TestProbes_KillNoReadingProgram(t *testing.T) {
	for _, base := range bases {
		c := container(t, base)
		live, started := c.LivenessProbe, c.StartupProbe
		if live == nil || live.HTTPGet == nil || live.HTTPGet.Path != "/livez" {
			t.Errorf("deploy/%s: liveness probe %+v, want /livez", base, live)
		}
		if base == "hub-source" {
			continue // it reads no disk
		}
		if started == nil || started.HTTPGet == nil || started.HTTPGet.Path != "/livez" || started.PeriodSeconds*started.FailureThreshold < 600 {
			t.Errorf("deploy/%s: startup probe %+v, want ten minutes of /livez", base, started)
		}
	}
}

// TestContainers_AreBounded: each container declares its requests, and a limit for memory, which cannot be
// reclaimed. It may write only to its volumes.
func TestContainers_AreBounded(t *testing.T) {
	for _, base := range bases {
		c := container(t, base)
		for name, q := range map[string]bool{
			"requests.cpu": c.Resources.Requests.Cpu().IsZero(), "requests.memory": c.Resources.Requests.Memory().IsZero(), "limits.memory": c.Resources.Limits.Memory().IsZero(),
		} {
			if q {
				t.Errorf("deploy/%s: %s is not set", base, name)
			}
		}
		s := c.SecurityContext
		if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
			t.Errorf("deploy/%s: security context %+v", base, s)
		}
	}
}

// TestBroker_HasNoAccountOfTheHub: a broker has no token of the hub and no role on the hub. hub-source does all
// that needs the hub.
func TestBroker_HasNoAccountOfTheHub(t *testing.T) {
	var account corev1.ServiceAccount
	read(t, &account, "broker", "serviceaccount.yaml")
	spec := Deployment(t, root, "broker").Spec.Template.Spec
	for what, mounts := range map[string]*bool{"ServiceAccount": account.AutomountServiceAccountToken, "Deployment": spec.AutomountServiceAccountToken} {
		if mounts == nil || *mounts {
			t.Errorf("deploy/broker: the %s mounts a token", what)
		}
	}
	for _, v := range spec.Volumes {
		if v.Projected != nil {
			t.Errorf("deploy/broker: volume %s may hold a token: %+v", v.Name, v.Projected)
		}
	}
	files, err := filepath.Glob(filepath.Join(root, "deploy", "broker*", "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files of the broker: %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "rbac.authorization.k8s.io") {
			t.Errorf("%s gives the broker rights on the hub", file)
		}
	}
}

// TestOpenShift_BindsRightsOfPods: on OpenShift, the accounts of all pods get the constraint nonroot-v2, and no
// pod needs more.
func TestOpenShift_BindsRightsOfPods(t *testing.T) {
	var b rbacv1.RoleBinding
	read(t, &b, "openshift", "scc.yaml")
	var bound []string
	for _, s := range b.Subjects {
		bound = append(bound, s.Name)
	}
	var want []string
	for _, base := range bases {
		pod := Deployment(t, root, base).Spec.Template.Spec
		want = append(want, pod.ServiceAccountName)
		s, own := pod.SecurityContext, pod.Containers[0].SecurityContext
		if !*s.RunAsNonRoot || *s.RunAsUser == 0 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *own.AllowPrivilegeEscalation ||
			!slices.Equal(own.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(own.Capabilities.Add) > 0 || pod.HostNetwork || pod.HostPID || pod.HostIPC {
			t.Errorf("deploy/%s needs more than nonroot-v2 allows: %v, %v", base, s, own)
		}
		for _, v := range pod.Volumes {
			if v.ConfigMap == nil && v.Secret == nil && v.EmptyDir == nil && v.PersistentVolumeClaim == nil && v.Projected == nil && v.DownwardAPI == nil {
				t.Errorf("deploy/%s has a volume that nonroot-v2 does not allow: %s", base, v.Name)
			}
		}
	}
	if b.RoleRef.Name != "system:openshift:scc:nonroot-v2" || b.Namespace != "hawser" || !slices.Equal(bound, want) {
		t.Errorf("%s is bound to %v, want %v", b.RoleRef.Name, bound, want)
	}
}
