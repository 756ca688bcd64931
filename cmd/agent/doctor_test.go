package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
	"github.com/hawser-io/hawser/internal/testkit/fakekube"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){program: func() { os.Exit(cmdline.Main(program, command)) }})
}

// TestDoctor: each script in testdata/doctor is a terminal session with a broker and a cluster.
func TestDoctor(t *testing.T) {
	b := testkit.StartBroker(t, testkit.Options{Port: true})
	agent := identity.Identity{Role: identity.Agent, Name: "cluster1"}
	dir := t.TempDir()
	ca, _, _ := b.CA.Write(dir, agent)
	b.CA.Write(dir, identity.Identity{Role: identity.Agent, Name: "cluster2"})
	b.CA.WriteValid(filepath.Join(mkdir(t, dir, "old")), agent, pki.Starting(time.Now().Add(-2*time.Hour), time.Hour))
	testkit.NewCA(t).Write(mkdir(t, dir, "other"), agent)
	cluster := fakekube.Start(t, []string{"appliedmanifestworks"}, "patch appliedmanifestworks/status", "get leases", "update leases")
	cluster.Kubeconfig(dir, "full.kubeconfig", "full")
	cluster.Kubeconfig(dir, "few.kubeconfig", "few")
	cluster.Kubeconfig(dir, "expired.kubeconfig", "expired")
	cluster.Kubeconfig(dir, "nocredentials.kubeconfig", "")
	cluster.KubeconfigTo(dir, "gone.kubeconfig", "https://127.0.0.1:1", nil)
	otherCA, err := os.ReadFile(filepath.Join(filepath.Dir(ca), "other", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	cluster.KubeconfigTo(dir, "untrusted.kubeconfig", cluster.URL, otherCA)
	fakekube.Start(t, nil).Kubeconfig(dir, "bare.kubeconfig", "full")
	testscript.Run(t, testscript.Params{
		Dir: "testdata/doctor", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PORT", b.Addr[strings.LastIndex(b.Addr, ":")+1:])
			e.Setenv("HOME", e.WorkDir)
			return os.CopyFS(filepath.Join(e.WorkDir, "files"), os.DirFS(dir))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"expand": expand},
	})
}

func mkdir(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// expand replaces environment variables in files.
func expand(ts *testscript.TestScript, _ bool, files []string) {
	for _, name := range files {
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
}

// TestCheck_RequestsMatchGrantedRights: the doctor checks exactly the rights that deploy/ grants the agent for
// itself.
func TestCheck_RequestsMatchGrantedRights(t *testing.T) {
	deployfiles.CompareRights(t, "../../deploy/agent/rbac.yaml", defaults().check("hawser").Rights, deployfiles.Without{
		// These roles are for the objects of works.
		Roles: []string{"hawser-agent-executor", "hawser-agent-execution", "hawser-agent-aggregate"},
	})
}
