package cmdline_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/cmdline"
)

type settings struct {
	Listen string   `json:"listen"`
	Level  string   `json:"level"`
	From   []string `json:"from"`
}

func load(t *testing.T, file string, args ...string) (settings, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	s := settings{Listen: "default", Level: "default"}
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cmdline.AddConfigFlag(f)
	f.StringVar(&s.Listen, "listen", s.Listen, "")
	f.StringVar(&s.Level, "level", s.Level, "")
	f.StringSliceVar(&s.From, "from", s.From, "")
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	err := cmdline.Load(f, &s)
	return s, err
}

func TestLoad_FlagsWinOverTheFile(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		args []string
		want settings
	}{
		"neither":               {"", nil, settings{"default", "default", nil}},
		"file":                  {"listen: file\n", nil, settings{"file", "default", nil}},
		"flag":                  {"", []string{"--listen=flag"}, settings{"flag", "default", nil}},
		"both":                  {"listen: file\nlevel: file\n", []string{"--listen=flag"}, settings{"flag", "file", nil}},
		"flag with the default": {"listen: file\n", []string{"--listen=default"}, settings{"default", "default", nil}},
		"list in the file":      {"from: [file]\n", nil, settings{"default", "default", []string{"file"}}},
		"list by flags":         {"", []string{"--from=a,b", "--from=c"}, settings{"default", "default", []string{"a", "b", "c"}}},
		"list by both":          {"from: [file, more, yet]\n", []string{"--from=a"}, settings{"default", "default", []string{"a"}}},
	} {
		got, err := load(t, c.file, c.args...)
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("%s: error %v\n%s", name, err, d)
		}
	}
}

func TestLoad_RejectsUnreadableFile(t *testing.T) {
	if _, err := load(t, "unknown: 1\n"); err == nil || !strings.Contains(err.Error(), "config.yaml: line 1: unknown: unknown field; the known ones are from, level, listen") {
		t.Errorf("an unknown field: %v", err)
	}
	if _, err := load(t, "", "--config", filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestCommand_ServesUnlessThereIsAVerb(t *testing.T) {
	failed := errors.New("it ends")
	for name, c := range map[string]struct {
		args []string
		want error
		out  string
	}{
		"no verb": {nil, failed, ""},
		"version": {[]string{"version"}, nil, "hawser-test"},
	} {
		var out bytes.Buffer
		cmd := cmdline.Command("hawser-test", "Test", &out, io.Discard, func(*cobra.Command) error { return failed })
		cmd.SetArgs(c.args)
		if err := cmd.Execute(); !errors.Is(err, c.want) || !strings.HasPrefix(out.String(), c.out) {
			t.Errorf("%s: error %v, output %q", name, err, out.String())
		}
	}
}

func TestCommand_PrintsItsVersion(t *testing.T) {
	var out bytes.Buffer
	cmd := cmdline.Command("hawser-test", "Test", &out, io.Discard, func(*cobra.Command) error { return errors.New("it serves") })
	cmd.SetArgs([]string{"--version"})
	if err := cmd.Execute(); err != nil || !strings.HasPrefix(out.String(), "hawser-test ") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestCommand_UsageErrors: errors that the user can correct are distinguished from failures.
func TestCommand_UsageErrors(t *testing.T) {
	for arg, want := range map[string]string{
		"versio":     `unknown command "versio" for "hawser-test": did you mean version?`,
		"serv":       `unknown command "serv" for "hawser-test"`,
		"--no-flag":  "unknown flag: --no-flag",
		"--number=x": "invalid argument",
	} {
		cmd := cmdline.Command("hawser-test", "Test", io.Discard, io.Discard, func(*cobra.Command) error { return nil })
		cmd.Flags().Int("number", 0, "")
		cmd.SetArgs([]string{arg})
		var usage *cmdline.UsageError
		if err := cmd.Execute(); !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
	cmd := cmdline.Command("hawser-test", "Test", io.Discard, io.Discard, func(*cobra.Command) error { return nil })
	cmd.SetArgs([]string{"version", "now"})
	if err := cmd.Execute(); err == nil || err.Error() != `hawser-test version takes no arguments, and got "now"` {
		t.Error(err)
	}
	if err := cmdline.Usage(nil); err != nil {
		t.Error(err)
	}
}
