package main

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/testkit/shipped"
)

// What deploy/ ships is read by the loader that the program uses.
func TestConfig_LoadsWhatDeployShips(t *testing.T) {
	cfg, err := load(shipped.Args(t, "../..", "broker")...)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Identities) == 0 || cfg.DataDir != "/var/lib/hawser-broker" || cfg.Listen != "[127.0.0.1]:8090" || cfg.Insecure {
		t.Errorf("configuration %+v is not what deploy/broker says", cfg)
	}
	pod := shipped.Deployment(t, "../..", "broker").Spec.Template.Spec
	if drain, grace := time.Duration(cfg.DrainTimeout), time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second; grace <= drain {
		t.Errorf("terminationGracePeriodSeconds %v ends a drain of %v", grace, drain)
	}
}
