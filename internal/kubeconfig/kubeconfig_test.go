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
	t.Setenv("KUBECONFIG", file(t, "https://env.example"))
	for path, want := range map[string]string{"": "https://env.example", file(t, "https://flag.example"): "https://flag.example"} {
		cfg, err := kubeconfig.Load(path, "kubeconfig")
		if err != nil || cfg.Host != want {
			t.Errorf("%q: got %v, %v; want %s", path, cfg, err, want)
		}
	}
}

func TestLoad_IgnoresHomeDirectory(t *testing.T) {
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, ".kube"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file(t, "https://home.example"), filepath.Join(home, ".kube", "config")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if cfg, err := kubeconfig.Load("", "kubeconfig"); err == nil {
		t.Errorf("got %v", cfg.Host)
	}
}

func TestLoad_ErrorNamesSearchedPath(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct{ path, env, want string }{
		{"", "", "--spoke-kubeconfig"},
		{missing, "", missing},
		{"", missing, missing},
	} {
		t.Setenv("KUBECONFIG", c.env)
		if _, err := kubeconfig.Load(c.path, "spoke-kubeconfig"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}
