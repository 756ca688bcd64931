package cli_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/cli"
)

// Without arguments, the output has rules for each ManagedCluster of the hub.
func TestMQTTACL_ManagedClusters(t *testing.T) {
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/cluster.open-cluster-management.io/v1/managedclusters" {
			t.Errorf("a request for %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		err := json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
			"items": []any{
				map[string]any{"metadata": map[string]any{"name": "second"}},
				map[string]any{"metadata": map[string]any{"name": "first"}},
			},
		})
		if err != nil {
			t.Error(err)
		}
	}))
	defer hub.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: hub\n" +
		"clusters: [{name: hub, cluster: {server: " + hub.URL + "}}]\ncontexts: [{name: hub, context: {cluster: hub}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	env := cli.Env{Stdout: &out, Stderr: &errs, Now: time.Now}
	if status := cli.Main(t.Context(), env, []string{"mqtt", "acl", "--for=mosquitto", "--source=hub", "--kubeconfig", file}); status != 0 {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	var users []string
	for line := range strings.Lines(out.String()) {
		if user, ok := strings.CutPrefix(line, "user "); ok {
			users = append(users, strings.TrimSpace(user))
		}
	}
	want := "hawser:source:hub system:open-cluster-management:first:agent system:open-cluster-management:second:agent"
	if got := strings.Join(users, " "); got != want {
		t.Errorf("rules for %s, want %s", got, want)
	}
}
