package fleet

import (
	"strings"
	"testing"
)

const webhookManifests = manifests + `---
apiVersion: v1
kind: Service
metadata: {name: program, namespace: hawser}
spec:
  ports: [{name: other, port: 80, targetPort: 80}, {name: webhook, port: 443, targetPort: admin}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: checks}
webhooks:
  - name: checks.example.com
    clientConfig: {service: {name: program, namespace: hawser, path: /validate}}
    admissionReviewVersions: [v1]
    sideEffects: None
`

func TestRendered_PutsWebhooksOnThisMachine(t *testing.T) {
	r, err := parseRendered([]byte(webhookManifests))
	if err != nil {
		t.Fatal(err)
	}
	at := webhookAt{ip: "127.9.0.2", caBundle: []byte("the CA")}
	got, err := r.onThisMachine(at)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"url":"https://127.9.0.2:8081/validate","caBundle":"dGhlIENB"`, `"name":"settings"`, `"kind":"Service"`} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if n := strings.Count(string(got), "---\n"); n != 5 {
		t.Errorf("%d manifests, want 5", n)
	}
	at.off = true
	if got, err = r.onThisMachine(at); err != nil || strings.Contains(string(got), "WebhookConfiguration") || !strings.Contains(string(got), `"kind":"Service"`) {
		t.Errorf("without: %v, %s", err, got)
	}
}

func TestRendered_RejectsUnroutableWebhooks(t *testing.T) {
	for name, tc := range map[string]struct{ old, with, want string }{
		"no Service":      {"{service: {name: program, namespace: hawser, path: /validate}}", "{url: 'https://h/'}", "no Service in clientConfig"},
		"unknown Service": {"service: {name: program,", "service: {name: other,", "service hawser/other is not rendered"},
		"unknown port":    {"path: /validate", "port: 444, path: /validate", "no port 444"},
		"port of nothing": {"targetPort: admin", "targetPort: nothing", "leads to no port"},
		"unknown field":   {"sideEffects", "sideEffect", "sideEffect"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(webhookManifests, tc.old, tc.with, 1)
			if changed == webhookManifests {
				t.Fatalf("the manifests have no %q", tc.old)
			}
			r, err := parseRendered([]byte(changed))
			if err == nil {
				_, err = r.onThisMachine(webhookAt{})
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one about %q", err, tc.want)
			}
		})
	}
}
