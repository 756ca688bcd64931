package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
)

func TestConfig_RegistrationControllers(t *testing.T) {
	args := append(tls, "--source-id=hub1")
	c, err := loaded(t, "", args...)
	if err != nil || c.RegistrationControllers.Mode != clustercontroller.Off {
		t.Fatalf("without the key registrationControllers the mode is %q: %v", c.RegistrationControllers.Mode, err)
	}
	c, err = loaded(t, `
registrationControllers:
  mode: auto
  signer: {certFile: /ca/tls.crt, keyFile: /ca/tls.key, duration: 24h}
  autoApprovedUsers: [system:serviceaccount:open-cluster-management:agent-registration-bootstrap]
`, args...)
	if err != nil {
		t.Fatal(err)
	}
	want := registrationControllersConfig{Mode: clustercontroller.Auto, AutoApprovedUsers: []string{"system:serviceaccount:open-cluster-management:agent-registration-bootstrap"}}
	want.Signer.CertFile, want.Signer.KeyFile, want.Signer.Duration = "/ca/tls.crt", "/ca/tls.key", cmdline.Duration(24*time.Hour)
	if diff := cmp.Diff(want, c.RegistrationControllers); diff != "" {
		t.Errorf("registrationControllers (-want +got): %s", diff)
	}
	for text, mode := range map[string]clustercontroller.Mode{"on": clustercontroller.On, "off": clustercontroller.Off, "'on'": clustercontroller.On, "'off'": clustercontroller.Off} {
		if c, err := loaded(t, "registrationControllers: {mode: "+text+"}", args...); err != nil || c.RegistrationControllers.Mode != mode {
			t.Errorf("mode: %s is read as %q: %v", text, c.RegistrationControllers.Mode, err)
		}
	}
	for file, what := range map[string]string{
		"registrationControllers: {mode: maybe}":                            "registrationControllers.mode",
		"registrationControllers: {mode: on, signer: {certFile: x}}":        "keyFile",
		"registrationControllers: {mode: on, signer: {duration: 0s}}":       "registrationControllers.signer.duration",
		"registrationControllers: {mode: on, autoApprovedUsers: ['']}":      "registrationControllers.autoApprovedUsers",
		"registrationControllers: {mode: on, autoApprovedUsers: [a], x: 1}": "unknown field",
	} {
		if _, err := loaded(t, file, args...); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, want an error about %s", file, err, what)
		}
	}
}

// TestConfig_RegistrationControllersOfTheDocumentation: the example in docs/join.md is valid, and auto-approves a user.
func TestConfig_RegistrationControllersOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/join.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "### Accepting without a person\n")
	_, example, _ := strings.Cut(section, "```yaml\n")
	example, _, closed := strings.Cut(example, "```\n")
	if !found || !closed {
		t.Fatal("docs/join.md has no such example")
	}
	c, err := loaded(t, example, append(tls, "--source-id=hub1")...)
	if err != nil || c.RegistrationControllers.Mode != clustercontroller.Auto || len(c.RegistrationControllers.AutoApprovedUsers) != 1 || c.RegistrationControllers.Signer.CertFile == "" {
		t.Errorf("the example: %+v, %v", c, err)
	}
}

// TestRegistrationControllers_HaveTheRightsTheyNeed: the doctor checks the rights that deploy/ grants.
func TestRegistrationControllers_HaveTheRightsTheyNeed(t *testing.T) {
	c := registrationControllersConfig{Mode: clustercontroller.Auto}
	deployfiles.CompareRights(t, "../../deploy/hub-source-registration/registration-controllers.yaml", c.rights(), deployfiles.Without{})
	if c.Mode = clustercontroller.Off; len(c.rights()) > 0 {
		t.Error("rights are requested that are not needed")
	}
}
