package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/testkit/shipped"
)

// TestJoin_LoadsWhatDeployShips: the overlay's arguments are read by the loader of the program,
// the variables in them are there, and its roles are what the program needs.
func TestJoin_LoadsWhatDeployShips(t *testing.T) {
	overlay, base := shipped.Deployment(t, "../..", "agent-join"), shipped.Deployment(t, "../..", "agent")
	values, replace := map[string]string{"CLUSTER_NAME": "cluster1", "POD_IP": "127.0.0.1"}, []string{}
	for _, e := range append(base.Spec.Template.Spec.Containers[0].Env, overlay.Spec.Template.Spec.Containers[0].Env...) {
		replace = append(replace, "$("+e.Name+")", values[e.Name])
	}
	var args []string
	for _, a := range overlay.Spec.Template.Spec.Containers[0].Args {
		if a = strings.NewReplacer(replace...).Replace(a); strings.Contains(a, "$(") {
			t.Errorf("argument %s names a variable that the container does not have", a)
		}
		args = append(args, a)
	}
	cfg, err := parse(t, append(args, "--namespace=hawser")...)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.bootstrapConfig != "/etc/hawser/broker/config.yaml" || cfg.hubSecret != "hawser-agent-hub" || cfg.stateDir == "" {
		t.Errorf("%q give %+v", args, cfg)
	}
	text, err := os.ReadFile("../../deploy/agent-join/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if d, err := parseDriver(text); err != nil || len(d.unknown) > 0 || d.Token == "" {
		t.Errorf("config.yaml: %+v, %v", d, err)
	}
	shipped.CompareRights(t, "../../deploy/agent-join/rbac.yaml", cfg.joinRights("hawser"), shipped.Without{Objects: []string{"list clusterclaims cluster.open-cluster-management.io"}})
}

// TestJoin_Refused: what cannot work is said before anything starts.
func TestJoin_Refused(t *testing.T) {
	for args, want := range map[string]string{
		"--workload-source-driver=mqtt": "a cluster joins over gRPC only",
		"--insecure":                    "exclude each other",
		"--hub-kubeconfig-secret=A_b":   "hub-kubeconfig-secret \"A_b\"",
		"--hub-kubeconfig-secret=":      "hub-kubeconfig-secret \"\"",
	} {
		_, err := parse(t, "--cluster-name=c1", "--namespace=hawser", "--grpc-bootstrap-config=/x", args)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestJoining_IDOfTheFile: another text is another file, the same one is not.
func TestJoining_IDOfTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	j := &joining{cfg: &config{bootstrapConfig: path}}
	if _, err := j.bootstrapID(); err == nil {
		t.Error("a file that is not there has an id")
	}
	ids := map[string]bool{}
	for _, text := range []string{"a", "b", "a"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		id, err := j.bootstrapID()
		if err != nil {
			t.Fatal(err)
		}
		ids[id] = true
	}
	if len(ids) != 2 {
		t.Errorf("ids %v", ids)
	}
}
