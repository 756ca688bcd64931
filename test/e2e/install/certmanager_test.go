package install

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/pki"
)

// definitions returns the file with the definition of Certificates, from the cert-manager release in
// testdata/cert-manager.
func definitions(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/cert-manager/cert-manager")
	cmd.Dir = filepath.Join("testdata", "cert-manager")
	out, err := cmd.Output()
	var module struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &module)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(module.Dir, "deploy", "crds", "cert-manager.io_certificates.yaml")
}

// TestInstall_CertManager: the API server accepts the Certificates by cert-manager's own definition. The
// command waits until their Secrets are filled, here by the test. Hub and agent trust each other. A second run
// without these flags keeps all of it.
func TestInstall_CertManager(t *testing.T) {
	w := newWhere(t, 1, "hub")
	w.run(w.kubectl, "--context", "hub", "apply", "--server-side", "-f", definitions(t))
	w.run(w.kubectl, "--context", "hub", "wait", "--for=condition=Established", "customresourcedefinition/certificates.cert-manager.io")
	authority, err := pki.NewAuthority("corporate", pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	hub := slices.Concat(hubArgs, []string{"--cert-manager", "corporate"})
	local := []string{"install", "cluster", "local", "--hub-context", "hub", "--context", "hub"}
	for _, c := range []struct {
		args         []string
		certificates []string
	}{
		{hub, []string{"hawser-broker", "hawser-hub-source", "hawser-hub-source-webhook", "hawser-operator"}},
		{slices.Concat(local, []string{"--cert-manager", "corporate"}), []string{"hawser-agent"}},
	} {
		done := make(chan []string, 1)
		go func() { done <- w.tries(c.args) }()
		for _, name := range c.certificates {
			w.issue(authority, name)
		}
		output := <-done
		if want := "certificate.cert-manager.io/" + c.certificates[0] + " created"; !slices.Contains(output, want) || strings.HasPrefix(output[len(output)-1], "failed") {
			t.Fatalf("%v printed\n%s\nwant %q", c.args, strings.Join(output, "\n"), want)
		}
	}
	for _, again := range [][]string{{"install", "hub", "--context", "hub", "--image-version", "dev"}, local} {
		for _, line := range w.run(w.hawser, again...) {
			if object, what, _ := strings.Cut(line, " "); strings.Contains(object, "/") && what != "unchanged" && what != "exists and is not changed" {
				t.Errorf("%v again: %s", again[:2], line)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(w.dir, "hawser-access", "tls.key")); err != nil {
		t.Error(err)
	}
	if got := w.run(w.kubectl, "--context", "hub", "-n", "hawser", "get", "secrets", "hawser-ca", "--ignore-not-found", "-o", "name"); got[0] != "" {
		t.Errorf("there is an authority of our own: %v", got)
	}
}

// tries runs hawser, and returns its output as lines. After an error the last line begins with "failed: ". It
// may run in a goroutine.
func (w where) tries(args []string) []string {
	cmd := exec.CommandContext(w.Context(), w.hawser, args...)
	cmd.Env, cmd.Dir = w.env, w.dir
	out, err := cmd.CombinedOutput()
	output := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil {
		output = append(output, "failed: "+err.Error())
	}
	return output
}

// issue fills the Secret of a Certificate and sets its condition, as cert-manager does.
func (w where) issue(authority *pki.Authority, name string) {
	w.Helper()
	at := []string{"--context", "hub", "-n", "hawser"}
	w.run(w.kubectl, slices.Concat(at, []string{"wait", "--for=create", "--timeout=120s", "certificate/" + name})...)
	var c struct {
		Metadata struct{ Generation int64 }
		Spec     struct {
			SecretName, CommonName string
			DNSNames               []string `json:"dnsNames"`
		}
	}
	if err := json.Unmarshal([]byte(strings.Join(w.run(w.kubectl, slices.Concat(at, []string{"get", "certificate", name, "-o", "json"})...), "\n")), &c); err != nil {
		w.Fatal(err)
	}
	req := pki.Request{Role: pki.Agent, Name: "local", Hosts: c.Spec.DNSNames, Valid: pki.Starting(time.Now(), time.Hour)}
	if part := strings.Split(c.Spec.CommonName, ":"); part[0] == "hawser" {
		req.Role, req.Name = pki.Role(part[1]), part[2]
	}
	pair, err := authority.Issue(req)
	if err != nil {
		w.Fatal(err)
	}
	text, err := yaml.Marshal(manifest{
		"apiVersion": "v1", "kind": "Secret", "metadata": manifest{"name": c.Spec.SecretName, "namespace": "hawser"},
		"data": manifest{"ca.crt": authority.CertificatePEM(), "tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM},
	})
	if err != nil {
		w.Fatal(err)
	}
	file := filepath.Join(w.dir, name+".yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		w.Fatal(err)
	}
	w.run(w.kubectl, "--context", "hub", "apply", "--server-side", "--force-conflicts", "--field-manager", "cert-manager-certificates-issuing", "-f", file)
	w.run(w.kubectl, slices.Concat(at, []string{"patch", "certificate", name, "--subresource=status", "--type=merge", "-p",
		fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "observedGeneration": %d, "lastTransitionTime": %q}]}}`,
			c.Metadata.Generation, time.Now().UTC().Format(time.RFC3339))})...)
}
