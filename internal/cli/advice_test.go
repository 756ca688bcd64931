package cli

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// A step is a verb of hawser, and flags that a text names with it.
var step = regexp.MustCompile("hawser((?: +(?:[a-z]+|--?[a-z-]+(?:[= ][A-Z%{$/][^ `'\"]*)?|[A-Z%{$][^ `'\"]*))+)")

// executedBy are tests outside of testdata that execute a step with a flag which no script executes.
var executedBy = map[string]string{"hawser get orphans --watch": "TestWatch"} // which does not end by itself

// TestAdvice_IsExecuted: each command of hawser that a message of any program, or an alert, advises is there with
// the flags that are named, and a script executes the verb with them.
func TestAdvice_IsExecuted(t *testing.T) {
	executed := executedSteps(t)
	found := 0
	for text, file := range advices(t) {
		for _, m := range step.FindAllStringSubmatch(text, -1) {
			words := strings.Fields(m[1])
			c, rest, err := newRoot(Env{}).Find(words)
			if err != nil || c.Parent() == nil || strings.HasPrefix(words[0], "-") {
				continue // hawser is the name of much else
			}
			found++
			if !c.Runnable() {
				t.Errorf("%s: %q is no command", file, m[0])
			}
			for _, flag := range named(rest) {
				if c.Flags().Lookup(flag) == nil {
					t.Errorf("%s: %q has a flag that %q does not have", file, m[0], c.CommandPath())
				} else if key := c.CommandPath() + " --" + flag; !executed[key] && executedBy[key] == "" {
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

// named are the flags among words, by their long names, without those that stand in brackets.
func named(words []string) (flags []string) {
	for _, w := range words {
		if name, ok := strings.CutPrefix(w, "--"); ok && name != "help" {
			name, _, _ = strings.Cut(name, "=")
			flags = append(flags, strings.TrimRight(name, ".,:;)"))
		}
	}
	return flags
}

// executedSteps are the verbs that scripts execute, alone and with each of their flags.
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
			if len(words) < 3 || words[0] != "exec" || words[1] != program {
				continue
			}
			c, rest, err := newRoot(Env{}).Find(words[2:])
			if err != nil {
				continue
			}
			executed[c.CommandPath()] = true
			c.Flags().VisitAll(func(f *pflag.Flag) {
				if slices.Contains(named(rest), f.Name) || f.Shorthand != "" && slices.Contains(rest, "-"+f.Shorthand) {
					executed[c.CommandPath()+" --"+f.Name] = true
				}
			})
		}
	}
	return executed
}

// advices are the texts in which a person may read what to do next, with the file of each: string literals of
// the product, and rules of alerts.
func advices(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, dir := range []string{"../../cmd", "../../internal", "../../pkg", "../../deploy/monitoring"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(filepath.Clean(path))
			switch filepath.Ext(path) {
			case ".yaml":
				texts[strings.Join(strings.Fields(string(content)), " ")] = path
			case ".go":
				for _, text := range literals(content) {
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

// literals are the strings of a Go file.
func literals(content []byte) (texts []string) {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(content)), content, nil, 0)
	for {
		_, tok, lit := s.Scan()
		if tok == token.EOF {
			return texts
		}
		if text, err := strconv.Unquote(lit); tok == token.STRING && err == nil && strings.Contains(text, program+" ") {
			texts = append(texts, text)
		}
	}
}
