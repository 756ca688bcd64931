package cmdline

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestArgumentsOf(t *testing.T) {
	for text, want := range map[string][]string{
		"/hawser-agent\x00--cluster-name=c\x00--insecure\x00": {"--cluster-name=c", "--insecure"},
		"/hawser-agent\x00":              {},
		"/pause\x00--cluster-name=c\x00": nil,
		"":                               nil,
	} {
		path := filepath.Join(t.TempDir(), "cmdline")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := argumentsOf(path, "hawser-agent"); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := argumentsOf(filepath.Join(t.TempDir(), "none"), "hawser-agent"); got != nil {
		t.Errorf("%q", got)
	}
}

func TestDoctor_HasTheFlagsOfItsProgram(t *testing.T) {
	var cluster string
	var step time.Duration
	cmd := Doctor("hawser-test", "", func(f *pflag.FlagSet) { f.StringVar(&cluster, "cluster-name", "", "") },
		func(_ *cobra.Command, s time.Duration) error { step = s; return errors.New("walked") })
	cmd.SetArgs([]string{"--cluster-name=c", "--timeout=3s"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.Execute(); err == nil || err.Error() != "walked" || cluster != "c" || step != 3*time.Second {
		t.Errorf("%v, cluster %q, step %s", err, cluster, step)
	}
}
