package main

import (
	"reflect"
	"slices"
	"strings"
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

// The brokers over PostgreSQL have the same settings, and the database of the Secret that they mount.
func TestConfig_LoadsFilesOfPostgres(t *testing.T) {
	base := deployfiles.Deployment(t, "../..", "broker").Spec.Template.Spec.Containers[0]
	spec := deployfiles.Deployment(t, "../..", "postgres").Spec
	c := spec.Template.Spec.Containers[0]
	if n := len(base.Args); len(c.Args) <= n || !slices.Equal(c.Args[:n], base.Args) || c.Name != base.Name {
		t.Fatalf("the container %s has the arguments %v, and that of deploy/broker %v", c.Name, c.Args, base.Args)
	}
	args := deployfiles.Args(t, "../..", "broker")
	for _, a := range c.Args[len(base.Args):] {
		args = append(args, strings.ReplaceAll(a, "$("+c.Env[0].Name+")", "postgres://hawser@db/hawser"))
	}
	cfg, err := load(args...)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Store.Engine != enginePostgres || cfg.Store.URL != "postgres://hawser@db/hawser" || cfg.Store.PasswordFile != c.VolumeMounts[0].MountPath+"/password" {
		t.Errorf("the store is %+v", cfg.Store)
	}
	if from := c.Env[0].ValueFrom.SecretKeyRef; from.Name != spec.Template.Spec.Volumes[0].Secret.SecretName || from.Key != "url" {
		t.Errorf("the URL comes from %+v", from)
	}
}
