package kubeconfig_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/kubeconfig"
)

func file(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	content := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: " + server + "}}]\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad_FlagWinsOverEnvironment(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", file(t, "https://env.example"))
	for path, want := range map[string]string{"": "https://env.example", file(t, "https://flag.example"): "https://flag.example"} {
		cfg, err := kubeconfig.Load(path)
		if err != nil || cfg.Host != want {
			t.Errorf("%q: got %v, %v; want %s", path, cfg, err, want)
		}
	}
}

func TestLoad_SaysWhatItLookedFor(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := kubeconfig.Load(""); err == nil || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("got %v", err)
	}
	if _, err := kubeconfig.Load(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a file that is named and missing must be an error")
	}
}
