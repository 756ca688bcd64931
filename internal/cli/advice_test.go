package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// step matches a verb of hawser with the flags that a text names.
var step = regexp.MustCompile("hawser((?: +(?:[a-z]+|--?[a-z-]+(?:[= ][A-Z%{$/][^ `'\"]*)?|[A-Z%{$][^ `'\"]*))+)")

// executedBy are tests outside of testdata that execute a step with a flag which no script executes.
var executedBy = map[string]string{"hawser get discrepancies --watch": "internal/cli TestWatch"} // this command does not end by itself

// TestAdvice_IsExecuted: each hawser command that a message of a program or an alert advises exists with the
// named flags. A test script executes the verb with them.
func TestAdvice_IsExecuted(t *testing.T) {
	executed := executedSteps(t)
	for step, test := range executedBy {
		if executed[step] = executes(t, test, step); !executed[step] {
			t.Errorf("%s does not execute %q, or is not there", test, step)
		}
	}
	found := 0
	requested, run := onPages(t)
	for text := range run {
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
			note(executed, strings.Fields(line))
		}
	}
	maps.Copy(requested, advices(t))
	for text, file := range requested {
		for _, m := range step.FindAllStringSubmatch(text, -1) {
			words := strings.Fields(m[1])
			c, rest, err := newRoot(Env{}).Find(words)
			if err != nil || c.Parent() == nil || strings.HasPrefix(words[0], "-") {
				continue // other uses of the word hawser
			}
			found++
			if !c.Runnable() {
				t.Errorf("%s: %q is no command", file, m[0])
			}
			for _, flag := range named(rest) {
				if c.Flags().Lookup(flag) == nil {
					t.Errorf("%s: %q has a flag that %q does not have", file, m[0], c.CommandPath())
				} else if key := c.CommandPath() + " --" + flag; !executed[key] {
					t.Errorf("%s: %q is advised, and no script in testdata executes %q", file, m[0], key)
				}
			}
			if !executed[c.CommandPath()] && !c.HasSubCommands() {
				t.Errorf("%s: %q is advised, and no script in testdata executes %q", file, m[0], c.CommandPath())
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d steps were found", found)
	}
}

// named returns the flags among words, by their long names. Flags in brackets are left out.
func named(words []string) (flags []string) {
	for _, w := range words {
		if name, ok := strings.CutPrefix(w, "--"); ok && name != "help" {
			name, _, _ = strings.Cut(name, "=")
			flags = append(flags, strings.TrimRight(name, ".,:;)"))
		}
	}
	return flags
}

// executedSteps returns the verbs that scripts execute, alone and with each of their flags.
func executedSteps(t *testing.T) map[string]bool {
	t.Helper()
	executed := map[string]bool{}
	scripts, err := filepath.Glob("testdata/*/*.txtar")
	more, err2 := filepath.Glob("testdata/*.txtar")
	if err != nil || err2 != nil || len(scripts) == 0 {
		t.Fatal(err, err2)
	}
	for _, file := range slices.Concat(scripts, more) {
		text, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			t.Fatal(err)
		}
		commands, _, _ := strings.Cut(string(text), "\n-- ")
		for line := range strings.Lines(commands) {
			words := strings.Fields(strings.TrimPrefix(line, "!"))
			if len(words) > 0 && words[0] == "exec" {
				note(executed, words[1:])
			}
		}
	}
	return executed
}

// note adds a command of hawser with its flags to executed. Other commands are ignored.
func note(executed map[string]bool, words []string) {
	if len(words) < 2 || words[0] != program {
		return
	}
	c, rest, err := newRoot(Env{}).Find(words[1:])
	if err != nil {
		return
	}
	executed[c.CommandPath()] = true
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if slices.Contains(named(rest), f.Name) || f.Shorthand != "" && slices.Contains(rest, "-"+f.Shorthand) {
			executed[c.CommandPath()+" --"+f.Name] = true
		}
	})
}

// advices returns the texts that may advise a next step, with the file of each: string literals of the product,
// and rules of alerts.
func advices(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, dir := range []string{"../../cmd", "../../internal", "../../pkg", "../../deploy/monitoring", "../../deploy/charts"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(filepath.Clean(path))
			switch filepath.Ext(path) {
			case ".yaml":
				texts[strings.Join(strings.Fields(string(content)), " ")] = path
			case ".txt":
				texts[string(content)] = path
			case ".go":
				for _, text := range literals(t, path) {
					texts[text] = path
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return texts
}

// literals returns the strings of a Go file that may contain a command.
func literals(t *testing.T, path string) (texts []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		e, is := n.(ast.Expr)
		text := ""
		if is {
			text = textOf(e)
		}
		if strings.Contains(text, program+" ") || strings.Contains(text, "kubectl ") {
			texts = append(texts, text)
			return false // the parts of a concatenation are no commands
		}
		return true
	})
	return texts
}
