package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
	"github.com/hawser-io/hawser/internal/testkit/fakekube"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){program: func() { os.Exit(cmdline.Main(program, command)) }})
}

// TestDoctor: each script in testdata/doctor is a terminal session with a broker and a hub. The broker knows a
// source with the name of the hub, and another one.
func TestDoctor(t *testing.T) {
	hub1, ci := identity.Identity{Role: identity.Source, Name: "hub1"}, identity.Identity{Role: identity.Source, Name: "ci"}
	b := testkit.StartBroker(t, testkit.Options{Port: true, Known: []identity.Identity{hub1, ci}})
	dir := t.TempDir()
	b.CA.Write(dir, hub1)
	b.CA.Write(dir, ci)
	hub := fakekube.Start(t, []string{"manifestworks"}, "watch manifestworks", "update leases", "list managedclusters", "create subjectaccessreviews", "delete manifestworks")
	hub.Kubeconfig(dir, "full.kubeconfig", "full")
	hub.Kubeconfig(dir, "few.kubeconfig", "few")
	fakekube.Start(t, []string{"appliedmanifestworks"}).Kubeconfig(dir, "cluster.kubeconfig", "full")
	testscript.Run(t, testscript.Params{
		Dir: "testdata/doctor", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("ADDR", b.Addr)
			e.Setenv("PORT", b.Addr[strings.LastIndex(b.Addr, ":")+1:])
			e.Setenv("HOME", e.WorkDir)
			return os.CopyFS(filepath.Join(e.WorkDir, "files"), os.DirFS(dir))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"expand": expand},
	})
}

// expand replaces environment variables in files.
func expand(ts *testscript.TestScript, _ bool, files []string) {
	for _, name := range files {
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
}

// TestCheck_RequestsMatchGrantedRights: the doctor checks exactly the rights that deploy/ grants.
func TestCheck_RequestsMatchGrantedRights(t *testing.T) {
	cfg, err := load(append(deployfiles.Args(t, "../..", "hub-source"), "--cluster-selector=a=b", "--feature-gates="+gateCleanUp+"=true")...)
	if err != nil {
		t.Fatal(err)
	}
	rights := cfg.check().Rights
	cfg.ClusterSelector, cfg.NamespaceSelector = "", "a=b"
	deployfiles.CompareRights(t, "../../deploy/hub-source/rbac.yaml", append(rights, cfg.check().Rights...), deployfiles.Without{
		Roles:   []string{"hawser-work-executor-admin"},    // the role is for people
		Objects: []string{"create events", "patch events"}, // the program works without Events
	})
}
