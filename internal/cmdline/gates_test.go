package cmdline_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/cmdline"
)

// gated is the configuration of a program with gates.
type gated struct {
	Gates cmdline.FeatureGates `json:"featureGates"`
}

func loadGates(t *testing.T, file string, args ...string) (*gated, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &gated{cmdline.NewFeatureGates(map[string]bool{"Opened": true, "Closed": false, "Other": false})}
	f := pflag.NewFlagSet("p", pflag.ContinueOnError)
	cmdline.AddConfigFlag(f)
	f.Var(&c.Gates, "feature-gates", c.Gates.Usage())
	if err := f.Parse(append([]string{"--config", path}, args...)); err != nil {
		return nil, err
	}
	return c, cmdline.Load(f, c)
}

func TestFeatureGates_FlagsWinOverTheFileGateByGate(t *testing.T) {
	for name, tc := range map[string]struct {
		file       string
		args       []string
		on, off, o bool
	}{
		"defaults":           {"", nil, true, false, false},
		"null":               {"featureGates: null\n", nil, true, false, false},
		"file":               {"featureGates: {Opened: false, Closed: true}\n", nil, false, true, false},
		"flag":               {"", []string{"--feature-gates=Closed=true, Opened=false,"}, false, true, false},
		"flag of one gate":   {"featureGates: {Opened: false, Closed: true}\n", []string{"--feature-gates=Closed=false"}, false, false, false},
		"flag given twice":   {"", []string{"--feature-gates=Closed=true", "--feature-gates=Other=true"}, true, true, true},
		"flag back to false": {"featureGates: {Other: true}\n", []string{"--feature-gates=Other=false"}, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := loadGates(t, tc.file, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if on, off, o := c.Gates.Enabled("Opened"), c.Gates.Enabled("Closed"), c.Gates.Enabled("Other"); on != tc.on || off != tc.off || o != tc.o {
				t.Errorf("On %t, Off %t, Other %t; want %t, %t, %t", on, off, o, tc.on, tc.off, tc.o)
			}
		})
	}
}

func TestFeatureGates_ReportFailure(t *testing.T) {
	for name, tc := range map[string]struct {
		file, arg string
		want      string
	}{
		"unknown name":         {"", "--feature-gates=New=true", `"New": use one of Closed, Opened, Other`},
		"unknown name in file": {"featureGates: {New: true}\n", "--feature-gates=", `"New": use one of Closed, Opened, Other`},
		"no value":             {"", "--feature-gates=Opened", "NAME=true"},
		"no boolean":           {"", "--feature-gates=Opened=perhaps", "NAME=true"},
		"a list in the file":   {"featureGates: [Opened]\n", "--feature-gates=", "{NAME: true"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := loadGates(t, tc.file, tc.arg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v does not mention %q", err, tc.want)
			}
		})
	}
}

func TestFeatureGates_KnowTheirNames(t *testing.T) {
	g := cmdline.NewFeatureGates(map[string]bool{"B": true, "A": false})
	if u := g.Usage(); !strings.HasSuffix(u, "A (default false), B (default true)") {
		t.Errorf("usage is %q", u)
	}
	defer func() {
		if recover() == nil {
			t.Error("a gate that does not exist is enabled or not")
		}
	}()
	g.Enabled("C")
}
