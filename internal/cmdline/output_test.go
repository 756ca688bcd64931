package cmdline_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/cmdline"
)

// shown is a configuration that embeds the shared settings of programs.
type shown struct {
	Name string `json:"name"`

	cmdline.Output
}

func TestOutput_IsPartOfTheConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("name: it\nadminListen: 127.0.0.1:1\nlog: {level: debug, format: json}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &shown{Output: cmdline.NewOutput("127.0.0.1:9")}
	f := pflag.NewFlagSet("p", pflag.ContinueOnError)
	cmdline.AddConfigFlag(f)
	c.Output.AddFlags(f)
	if got := f.Lookup("admin-listen").DefValue; got != "127.0.0.1:9" {
		t.Errorf("the default of --admin-listen is %q", got)
	}
	if err := f.Parse([]string{"--config", path, "--log-format=text"}); err != nil {
		t.Fatal(err)
	}
	if err := cmdline.Load(f, c); err != nil {
		t.Fatal(err)
	}
	if c.Name != "it" || c.AdminListen != "127.0.0.1:1" || c.Log.Level != "debug" || c.Log.Format != "text" {
		t.Errorf("loaded %+v", c)
	}
}

func TestOutput_ChecksItsAddress(t *testing.T) {
	for address, want := range map[string]string{"": "", "127.0.0.1:8081": "", ":8081": "", "8081": "host:port", "127.0.0.1": "host:port"} {
		o := cmdline.NewOutput(address)
		if err := o.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", address, err, want)
		}
	}
}
