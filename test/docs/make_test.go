package docs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMake_WithoutGo: make says what is missing, and its help works all the same.
func TestMake_WithoutGo(t *testing.T) {
	path := t.TempDir()
	for _, name := range []string{"make", "bash", "sh", "awk", "git"} {
		program, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(program, filepath.Join(path, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for target, missing := range map[string]bool{"build": true, "demo": true, "help": false, "": false} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(path, "make"), strings.Fields("-n "+target)...)
		cmd.Dir, cmd.Env = root(t), []string{"PATH=" + path}
		out, err := cmd.CombinedOutput()
		if failed := errors.As(err, new(*exec.ExitError)); failed != missing || strings.Contains(string(out), "Go is not in the PATH: install Go") != missing {
			t.Errorf("make %s: %v\n%s", target, err, out)
		}
	}
}
