// Package deployfiles gives tests the arguments and the configuration file with which deploy/ starts a program.
// So each program's own loader is tested with the shipped files and with fuzzed ones.
package deployfiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// ConfigDir is the mount path, in the bases of deploy/, of the directory with config.yaml.
const ConfigDir = "/etc/hawser/config"

// Deployment reads deploy/<base>/deployment.yaml; unknown fields are errors. root is the root of the
// repository.
func Deployment(tb testing.TB, root, base string) appsv1.Deployment {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(root, "deploy", base, "deployment.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		tb.Fatalf("deploy/%s/deployment.yaml: %v", base, err)
	}
	if n := len(d.Spec.Template.Spec.Containers); n != 1 {
		tb.Fatalf("deploy/%s/deployment.yaml has %d containers, want one", base, n)
	}
	return d
}

// Args returns the arguments of the container of deploy/<base>. The configuration file has its path in the
// repository, and the address of the pod is 127.0.0.1. Values that only the cluster has are $NAME of their
// variable.
func Args(tb testing.TB, root, base string) []string {
	tb.Helper()
	c := Deployment(tb, root, base).Spec.Template.Spec.Containers[0]
	replace := []string{ConfigDir, filepath.Join(root, "deploy", base)}
	for _, e := range c.Env {
		value := e.Value
		switch {
		case e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "status.podIP":
			value = "127.0.0.1"
		case e.ValueFrom != nil:
			value = "$" + e.Name
		}
		replace = append(replace, "$("+e.Name+")", value)
	}
	r := strings.NewReplacer(replace...)
	args := make([]string, 0, len(c.Args))
	for _, a := range c.Args {
		a = r.Replace(a)
		if strings.Contains(a, "$(") {
			tb.Errorf("deploy/%s: argument %s names a variable that the container does not have", base, a)
		}
		args = append(args, a)
	}
	if len(args) == 0 {
		tb.Fatalf("deploy/%s/deployment.yaml has no arguments", base)
	}
	return args
}

// Fuzz tests the loader of a program with configuration files: the shipped one, more, and fuzzed variants. load
// gets the arguments that name the file. check gets each accepted configuration, and fails the test if it
// should have been rejected.
func Fuzz[Config any](f *testing.F, shipped string, more []string, load func(args ...string) (Config, error), check func(*testing.T, Config)) {
	f.Helper()
	data, err := os.ReadFile(shipped)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, text := range more {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "config.yaml")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := load("--config", file); err == nil {
			check(t, c)
		}
	})
}
