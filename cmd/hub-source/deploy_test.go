package main

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/admission"
	"github.com/hawser-io/hawser/internal/admission/webhook"
	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
)

// The program's loader reads the files of deploy/, and they match: the broker's rules know this source by the
// name in its own configuration.
func TestConfig_LoadsFilesOfDeploy(t *testing.T) {
	cfg, err := load(deployfiles.Args(t, "../..", "hub-source")...)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Broker != "hawser-broker.hawser.svc:8090" || cfg.AdminListen != "[127.0.0.1]:8081" || cfg.Insecure || !cfg.LeaderElection.Enabled {
		t.Errorf("configuration %+v is not the one of deploy/hub-source", cfg)
	}
	if h := cfg.Webhook; h.Listen != "[127.0.0.1]:9443" || h.CertFile == "" {
		t.Errorf("webhook %+v is not the one of deploy/hub-source", h)
	}
	pod := deployfiles.Deployment(t, "../..", "hub-source")
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
	t.Errorf("no rule of deploy/broker gives the identity of source %q", cfg.SourceID)
}

// The hub-source that serves registration has the same settings, and registration is enabled.
func TestConfig_LoadsFilesOfRegistration(t *testing.T) {
	defaults, err := load(deployfiles.Args(t, "../..", "hub-source")...)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := load(append(deployfiles.Args(t, "../..", "hub-source"), "--config=../../deploy/hub-source-registration/config.yaml")...)
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.Registration.Enabled || cfg.RegistrationControllers.Mode != clustercontroller.Auto || cfg.RegistrationControllers.Signer.KeyFile != "/etc/hawser/signer/tls.key" {
		t.Errorf("configuration %+v", cfg)
	}
	cfg.Registration, cfg.RegistrationControllers, cfg.file, cfg.reread = defaults.Registration, defaults.RegistrationControllers, defaults.file, nil
	defaults.reread = nil
	if !reflect.DeepEqual(cfg, defaults) {
		t.Errorf("the remaining configuration is\n%+v, and that of deploy/hub-source\n%+v", cfg, defaults)
	}
}

// The webhook configuration in deploy/ matches what the program serves.
func TestWebhook_MatchesFilesOfDeploy(t *testing.T) {
	data, err := os.ReadFile("../../deploy/hub-source/webhook.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, second, found := strings.Cut(string(data), "\n---\n")
	var service corev1.Service
	var config admissionregistrationv1.ValidatingWebhookConfiguration
	if err := errors.Join(yaml.UnmarshalStrict([]byte(first), &service), yaml.UnmarshalStrict([]byte(second), &config)); err != nil || !found {
		t.Fatalf("not a Service and a ValidatingWebhookConfiguration: %v", err)
	}
	pod := deployfiles.Deployment(t, "../..", "hub-source").Spec.Template
	for label, value := range service.Spec.Selector {
		if pod.Labels[label] != value {
			t.Errorf("the Service selects %s=%s, the pods have %v", label, value, pod.Labels)
		}
	}
	target := service.Spec.Ports[0].TargetPort.StrVal
	if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == target && p.ContainerPort == 9443 }) {
		t.Errorf("the Service leads to port %q, the container has %+v", target, pod.Spec.Containers[0].Ports)
	}
	path, port, fail, none, equivalent, seconds := webhook.Path, int32(443), admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Equivalent, int32(10)
	want := []admissionregistrationv1.ValidatingWebhook{{
		Name: "manifestworkvalidators.admission.work.open-cluster-management.io",
		ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
			Namespace: "hawser", Name: service.Name, Path: &path, Port: &port,
		}},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{workv1.GroupName}, APIVersions: []string{"*"}, Resources: []string{admission.Resource}},
		}},
		MatchConditions: []admissionregistrationv1.MatchCondition{{
			Name: "spec-changes", Expression: "request.operation != 'UPDATE' || object.metadata.generation != oldObject.metadata.generation",
		}},
		FailurePolicy: &fail, MatchPolicy: &equivalent, SideEffects: &none, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
	}}
	if diff := cmp.Diff(want, config.Webhooks); diff != "" {
		t.Errorf("the webhook of deploy/ (-want +got):\n%s", diff)
	}
}

// The hub-source of a second cell differs from the first one in its clusters, its broker and its namespace.
func TestConfig_LoadsFilesOfASecondCell(t *testing.T) {
	args := deployfiles.Args(t, "../..", "hub-source")
	first, err := load(args...)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := load("--config=../../deploy/examples/second-cell/hub-source/config.yaml", args[1])
	if err != nil {
		t.Fatal(err)
	}
	if cfg.ClusterSelector != "cell=b" || cfg.Broker != "hawser-broker.hawser-b.svc:8090" || cfg.LeaderElection.ResourceNamespace != "hawser-b" || cfg.Webhook.Listen != "" {
		t.Errorf("configuration %+v", cfg)
	}
	if cfg.SourceID != first.SourceID || cfg.TLS != first.TLS {
		t.Errorf("source %s, %+v, want those of the first cell, %s, %+v", cfg.SourceID, cfg.TLS, first.SourceID, first.TLS)
	}
}
