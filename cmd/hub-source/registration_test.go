package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/hubsource/registration"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
)

// deploy/hub-source-registration is deploy/hub-source with registration.
func TestRegistration_MatchesFilesOfDeploy(t *testing.T) {
	args := deployfiles.Args(t, "../..", "hub-source")
	for i := range args {
		args[i] = strings.Replace(args[i], filepath.Join("deploy", "hub-source"), filepath.Join("deploy", "hub-source-registration"), 1)
	}
	cfg, err := load(args...)
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.Registration.Enabled || cfg.Registration.AccessReviews != "auto" || cfg.Registration.MaxPending <= 0 {
		t.Errorf("registration %+v", cfg.Registration)
	}
	read := func(base string) (keys map[string]any) {
		data, err := os.ReadFile("../../deploy/" + base + "/config.yaml")
		if err == nil {
			err = yaml.UnmarshalStrict(data, &keys)
		}
		if err != nil {
			t.Fatal(err)
		}
		delete(keys, "registration")
		delete(keys, "registrationControllers")
		return keys
	}
	if d := cmp.Diff(read("hub-source"), read("hub-source-registration")); d != "" {
		t.Errorf("the configurations differ in more than registration and registrationControllers:\n%s", d)
	}
	deployfiles.CompareRights(t, "../../deploy/hub-source-registration/rbac.yaml", registrationRights(),
		deployfiles.Without{Roles: []string{"hawser-hub-source-tokens", "hawser-registrar"}})
}

func TestRegistration_RejectsInvalidSettings(t *testing.T) {
	grpc := []string{"--source-id=hub", "--insecure", "--broker=127.0.0.1:1"}
	for name, c := range map[string]struct{ file, want string }{
		"over MQTT":           {"transport: mqtt\ntransportConfig: x\nregistration: {enabled: true}\n", "with transport mqtt they cannot"},
		"no pending clusters": {"registration: {enabled: true, maxPending: 0}\n", "use a positive number"},
		"a signer of another": {"registration: {customSigners: [open-cluster-management.io/grpc]}\n", "is not the name of an add-on's signer"},
		"no signer":           {"registration: {customSigners: ['a b']}\n", "is not the name of an add-on's signer"},
		"reviewed perhaps":    {"registration: {accessReviews: perhaps}\n", "use auto, true or false"},
		"an unknown key":      {"registration: {on: true}\n", "on"},
	} {
		if _, err := loaded(t, c.file, grpc...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for value, want := range map[string]registration.AccessReviews{"true": registration.Always, "false": registration.Never, "auto": registration.Auto} {
		c, err := loaded(t, "registration: {enabled: true, customSigners: [example.com/a], accessReviews: "+value+"}\n", grpc...)
		if err != nil || c.Registration.AccessReviews != want {
			t.Errorf("accessReviews %s: %v", value, err)
		}
	}
}

// A change of files reaches both sessions, even if it is signalled twice before they receive it.
func TestBoth_ReportsEachSession(t *testing.T) {
	changed := make(chan struct{})
	b := newBoth(changed)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	changed <- struct{}{}
	changed <- struct{}{}
	<-b.first
	<-b.second
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
