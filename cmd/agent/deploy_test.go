package main

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/testkit/shipped"
)

// What deploy/ ships is read by the loaders that the program uses.
func TestConfig_LoadsWhatDeployShips(t *testing.T) {
	cfg := defaults()
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	cfg.addFlags(flags)
	args := shipped.Args(t, "../..", "agent")
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	// The pod gets the name of its cluster from a Secret.
	if cfg.clusterName != "$CLUSTER_NAME" || cfg.sourceConfig != "/etc/hawser/broker/config.yaml" || cfg.insecure {
		t.Errorf("%q give %+v, not what deploy/agent says", args, cfg)
	}
	cfg.clusterName = "cluster1"
	if err := cfg.validate(); err != nil {
		t.Error(err)
	}
	d, err := readDriver("../../deploy/agent/config.yaml", cfg.insecure)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.unknown) > 0 {
		t.Errorf("deploy/agent/config.yaml has keys that mean nothing: %v", d.unknown)
	}
	pod := shipped.Deployment(t, "../..", "agent")
	if pod.Spec.Template.Spec.ServiceAccountName != program || pod.Name != program {
		t.Errorf("Deployment %s runs as %s, want %s for both: its permissions are bound to that name",
			pod.Name, pod.Spec.Template.Spec.ServiceAccountName, program)
	}
}

// The file for the broker is read as it is, apart from the address.
func TestDriver_LoadsWhatDeployShips(t *testing.T) {
	d, err := readDriver("../../deploy/agent/config.yaml", false)
	if err != nil || d.unknown != nil || d.CAFile == "" {
		t.Fatalf("got %+v, %v", d, err)
	}
}
