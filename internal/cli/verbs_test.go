package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestVerbs_HaveAScript: for each verb, a script in testdata compares the whole output with the expected text.
func TestVerbs_HaveAScript(t *testing.T) {
	compared := map[string]bool{}
	for _, pattern := range []string{"testdata/*.txtar", "testdata/*/*.txtar"} {
		scripts, err := filepath.Glob(pattern)
		if err != nil || len(scripts) == 0 {
			t.Fatalf("%s: %v, %v", pattern, scripts, err)
		}
		for _, file := range scripts {
			script, err := os.ReadFile(filepath.Clean(file))
			if err != nil {
				t.Fatal(err)
			}
			noteCompared(string(script), compared)
		}
	}
	verbs := 0
	eachVerb(newRoot(Env{}), func(c *cobra.Command) {
		verbs++
		if !compared[c.CommandPath()] {
			t.Errorf("no script in testdata runs %q and compares its output with cmp, cmpenv or cmpmasked", c.CommandPath())
		}
	})
	if verbs < 15 {
		t.Errorf("only %d verbs were found", verbs)
	}
}

// eachVerb calls f with each verb that has an action, except those that cobra adds.
func eachVerb(c *cobra.Command, f func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		eachVerb(sub, f)
	}
	if !c.HasSubCommands() && c.Runnable() {
		f(c)
	}
}

// noteCompared adds the verbs whose output a script compares.
func noteCompared(script string, compared map[string]bool) {
	commands, _, _ := strings.Cut(script, "\n-- ")
	last := ""
	for line := range strings.Lines(commands) {
		words := strings.Fields(strings.TrimPrefix(line, "!"))
		switch {
		case len(words) > 1 && words[0] == "exec":
			last = ""
			if c, _, err := newRoot(Env{}).Find(words[2:]); err == nil && words[1] == program {
				last = c.CommandPath()
			}
		case len(words) > 1 && strings.HasPrefix(words[0], "cmp") && strings.HasPrefix(words[1], "std"):
			compared[last] = true
		}
	}
}
