package main

import (
	"reflect"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
)

// The program's loader reads the files in deploy/.
func TestConfig_LoadsFilesOfDeploy(t *testing.T) {
	cfg, err := load(deployfiles.Args(t, "../..", "broker")...)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Identities) == 0 || cfg.DataDir != "/var/lib/hawser-broker" || cfg.Listen != "[127.0.0.1]:8090" || cfg.Insecure {
		t.Errorf("configuration %+v is not the one of deploy/broker", cfg)
	}
	pod := deployfiles.Deployment(t, "../..", "broker").Spec.Template.Spec
	// The memory of the broker under full load, and the additional memory under attack; test/attack measures
	// both.
	const measured, attacked = 440 << 20, 256 << 20
	r := pod.Containers[0].Resources
	if r.Requests.Memory().Value() < measured || r.Limits.Memory().Value() < measured+attacked {
		t.Errorf("the memory request is %v, the limit is %v", r.Requests.Memory(), r.Limits.Memory())
	}
	if drain, grace := time.Duration(cfg.DrainTimeout), time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second; grace <= drain {
		t.Errorf("terminationGracePeriodSeconds %v ends a drain of %v", grace, drain)
	}
}

// The broker with registration has the same settings, and the allowed requesters.
func TestConfig_LoadsFilesOfRegistration(t *testing.T) {
	defaults, err := load(deployfiles.Args(t, "../..", "broker")...)
	if err != nil {
		t.Fatal(err)
	}
	args := append(deployfiles.Args(t, "../..", "broker"), "--config=../../deploy/broker-registration/config.yaml")
	cfg, err := load(args...)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Registration.Source != "hub" || cfg.TLS.AgentCAFile != "/etc/hawser/tls/client-ca.crt" || len(cfg.Tokens.Mapping) == 0 {
		t.Errorf("configuration %+v", cfg)
	}
	for _, r := range cfg.Tokens.Mapping {
		if r.Role != identity.Bootstrap {
			t.Errorf("a token makes %+v", r)
		}
	}
	cfg.Registration.Source, cfg.Tokens, cfg.TLS.AgentCAFile = "", tokens.Config{}, ""
	if !reflect.DeepEqual(cfg, defaults) {
		t.Errorf("the remaining configuration is\n%+v, and that of deploy/broker\n%+v", cfg, defaults)
	}
}
