package main

import (
	"os"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/testkit/shipped"
)

// What deploy/ ships is read by the loader that the program uses, and belongs
// together: the broker knows this source by the name it gives itself.
func TestConfig_LoadsWhatDeployShips(t *testing.T) {
	cfg := defaults()
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	cfg.addFlags(flags)
	if err := flags.Parse(shipped.Args(t, "../..", "hub-source")); err != nil {
		t.Fatal(err)
	}
	if err := cfg.load(flags); err != nil {
		t.Fatal(err)
	}
	if cfg.Broker != "hawser-broker.hawser.svc:8090" || cfg.AdminListen != "[127.0.0.1]:8081" || cfg.Insecure || !cfg.LeaderElection.Enabled {
		t.Errorf("configuration %+v is not what deploy/hub-source says", cfg)
	}
	if h := cfg.Webhook; h.Listen != "[127.0.0.1]:9443" || h.CertFile == "" {
		t.Errorf("webhook %+v is not what deploy/hub-source says", h)
	}
	pod := shipped.Deployment(t, "../..", "hub-source")
	if pod.Spec.Template.Spec.ServiceAccountName != program || pod.Name != program {
		t.Errorf("Deployment %s runs as %s, want %s for both: its permissions are bound to that name",
			pod.Name, pod.Spec.Template.Spec.ServiceAccountName, program)
	}

	var broker struct {
		Identities []struct{ CommonName, Role, Name string }
	}
	data, err := os.ReadFile("../../deploy/broker/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &broker); err != nil {
		t.Fatal(err)
	}
	for _, rule := range broker.Identities {
		if rule.Role == "source" && rule.Name == cfg.SourceID {
			return
		}
	}
	t.Errorf("no rule of deploy/broker makes anybody source %q", cfg.SourceID)
}
