package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// The program's loader reads the files in deploy/.
func TestConfig_LoadsFilesOfDeploy(t *testing.T) {
	cfg := defaults()
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	cfg.addFlags(flags)
	args := deployfiles.Args(t, "../..", "agent")
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	// The pod gets the name of its cluster from a Secret, and its namespace from the cluster.
	if cfg.clusterName != "$CLUSTER_NAME" || cfg.namespace != "$POD_NAMESPACE" || cfg.noLeaderElection || cfg.sourceConfig != "/etc/hawser/broker/config.yaml" || cfg.insecure {
		t.Errorf("%q give %+v, unlike deploy/agent", args, cfg)
	}
	cfg.clusterName, cfg.namespace = "cluster1", "hawser"
	if err := cfg.validate(); err != nil {
		t.Error(err)
	}
	d, err := readDriver(flagSource, "../../deploy/agent/config.yaml", cfg.insecure)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.unknown) > 0 {
		t.Errorf("deploy/agent/config.yaml has keys that mean nothing: %v", d.unknown)
	}
	pod := deployfiles.Deployment(t, "../..", "agent")
	if r := pod.Spec.Template.Spec.Containers[0].Resources; r.Limits.Memory().Value() < 2*r.Requests.Memory().Value() {
		t.Errorf("the memory limit is %v, and the request is %v", r.Limits.Memory(), r.Requests.Memory())
	}
	if pod.Spec.Template.Spec.ServiceAccountName != program || pod.Name != program {
		t.Errorf("Deployment %s runs as %s, want %s for both: its permissions are bound to that name",
			pod.Name, pod.Spec.Template.Spec.ServiceAccountName, program)
	}
}

// The state directory is a volume that survives the container. During a rollout at most one pod runs.
func TestDeploy_StateDirectoryIsAVolume(t *testing.T) {
	cfg := defaults()
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	cfg.addFlags(flags)
	if err := flags.Parse(deployfiles.Args(t, "../..", "agent")); err != nil {
		t.Fatal(err)
	}
	d := deployfiles.Deployment(t, "../..", "agent")
	volume := ""
	for _, m := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
		if m.MountPath == cfg.stateDir && !m.ReadOnly {
			volume = m.Name
		}
	}
	writable := slices.ContainsFunc(d.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume && v.EmptyDir != nil })
	if cfg.stateDir == "" || volume == "" || !writable {
		t.Errorf("--state-dir=%s is not on a volume of the pod", cfg.stateDir)
	}
	if d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Errorf("strategy %q, want Recreate", d.Spec.Strategy.Type)
	}
}

// The program's loader reads the file for the broker; only the address is replaced.
func TestDriver_LoadsFilesOfDeploy(t *testing.T) {
	d, err := readDriver(flagSource, "../../deploy/agent/config.yaml", false)
	if err != nil || d.unknown != nil || d.CAFile == "" {
		t.Fatalf("got %+v, %v", d, err)
	}
}

// The MQTT keys in the comments of deploy/agent/config.yaml are valid too.
func TestConfig_MQTTKeysOfDeploy(t *testing.T) {
	b, err := os.ReadFile("../../deploy/agent/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(b), "\n# The same over MQTT")
	_, commented, ok := strings.Cut(string(b), "\n# brokerHost:")
	if !ok {
		t.Fatal("deploy/agent/config.yaml has no brokerHost in a comment")
	}
	text += "\nbrokerHost:" + strings.ReplaceAll(commented, "\n# ", "\n")
	f, err := transportmqtt.ParseFile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Topics.Validate(); err != nil || f.BrokerHost == "" || f.CAFile == "" || !slices.Equal(f.Unknown, []string{"url"}) {
		t.Errorf("read %+v, topics %v", f, err)
	}
}
