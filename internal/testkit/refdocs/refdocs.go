// Package refdocs generates docs/reference from the commands themselves and from the structs of the
// configuration files. A test of each program calls [Check], which compares the pages. `make generate` runs
// these tests with HAWSER_REFERENCE set to the output directory.
package refdocs

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// EnvDir is the environment variable with the output directory; if it is set, pages are written instead of
// compared.
const EnvDir = "HAWSER_REFERENCE"

// Page describes one program.
type Page struct {
	// Root is the repository.
	Root    string
	Command *cobra.Command
	// Config is the struct of the file that --config names, with its defaults; nil if there is no such file. The
	// flags of the command belong to its fields.
	Config any
	// Files are further files that the program reads.
	Files []File
}

// File is a configuration file with keys that have no flag.
type File struct {
	// Title is the title of the section, About a text of one or two sentences.
	Title, About string
	// Into points to the struct of the file, with its defaults.
	Into any
}

// Check compares a page with the one in docs/reference, or writes it.
func Check(t *testing.T, p Page) {
	t.Helper()
	text, err := p.render()
	if err != nil {
		t.Fatal(err)
	}
	name := p.Command.Name() + ".md"
	if dir := os.Getenv(EnvDir); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // a public page
			t.Fatal(err)
		}
		return
	}
	page, err := os.ReadFile(filepath.Join(p.Root, "docs", "reference", name))
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != text {
		t.Errorf("docs/reference/%s is not the output of the program: run make generate and commit the result", name)
	}
}

func (p Page) render() (string, error) {
	w := &page{source: source{root: p.Root}, flags: map[uintptr]*pflag.Flag{}, keys: map[string]string{}}
	p.Command.Flags().VisitAll(func(f *pflag.Flag) {
		for _, at := range addresses(f.Value) {
			w.flags[at] = f
		}
	})
	w.printf("# %s\n\nMade by `make generate` from the program itself. %s.\n", p.Command.Name(), p.Command.Short)
	var config []row
	if p.Config != nil {
		config = w.rows(p.Config)
	}
	if p.Command.LocalFlags().HasFlags() {
		w.printf("\n## Flags\n\n")
		if p.Config != nil {
			w.printf("A flag wins over the key of the file that `--config` names.\n\n")
		}
		w.flagTable(p.Command.LocalFlags(), p.Config != nil)
	}
	if config = slices.DeleteFunc(config, func(r row) bool { return r.flag != nil }); len(config) > 0 {
		w.printf("\n## Keys of the configuration file that have no flag\n\n")
		w.keyTable(config)
	}
	for _, f := range p.Files {
		w.printf("\n## %s\n\n%s\n\n", f.Title, f.About)
		w.keyTable(w.rows(f.Into))
	}
	w.verbs(p.Command)
	return w.text.String(), w.err
}

// page is a page that is being written.
type page struct {
	text   strings.Builder
	source source
	// flags are the flags of the command by the address of their value, keys the names of these values in the
	// configuration file.
	flags map[uintptr]*pflag.Flag
	keys  map[string]string
	err   error
}

func (w *page) printf(format string, args ...any) { fmt.Fprintf(&w.text, format, args...) }

// addresses returns the possible addresses of a flag's value: the flag is a pointer to another type, or a
// struct with such a pointer.
func addresses(v pflag.Value) []uintptr {
	at := reflect.ValueOf(v)
	if at.Kind() != reflect.Pointer {
		return nil
	}
	all := []uintptr{at.Pointer()}
	if s := at.Elem(); s.Kind() == reflect.Struct {
		for i := range s.NumField() {
			if f := s.Field(i); f.Kind() == reflect.Pointer {
				all = append(all, f.Pointer())
			}
		}
	}
	return all
}

func (w *page) flagTable(flags *pflag.FlagSet, keys bool) {
	if keys {
		w.printf("| flag | key | type | default | meaning |\n|---|---|---|---|---|\n")
	} else {
		w.printf("| flag | type | default | meaning |\n|---|---|---|---|\n")
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := code("--" + f.Name)
		if f.Shorthand != "" {
			name = code("-"+f.Shorthand) + ", " + name
		}
		w.printf("| %s ", name)
		if keys {
			w.printf("| %s ", code(w.keys[f.Name]))
		}
		if kind == "" {
			kind = f.Value.Type()
		}
		w.printf("| %s | %s | %s |\n", cell(kind), value(f.DefValue), cell(usage))
	})
}

func (w *page) keyTable(rows []row) {
	w.printf("| key | type | default | meaning |\n|---|---|---|---|\n")
	for _, r := range rows {
		w.printf("| %s | %s | %s | %s |\n", code(r.key), r.kind, value(r.value), cell(r.text))
	}
}

// verbs writes the verbs of a command, one section each. Shared flags are explained once.
func (w *page) verbs(root *cobra.Command) {
	var all []*cobra.Command
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Runnable() && !sub.Hidden && sub.Name() != "help" && sub.Name() != "version" && sub.Name() != "completion" {
				all = append(all, sub)
			}
			walk(sub)
		}
	}
	walk(root)
	users := map[string]int{}
	same := func(f *pflag.Flag) string { return f.Name + "\x00" + f.Usage + "\x00" + f.DefValue }
	for _, c := range all {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { users[same(f)]++ })
	}
	const several = 4
	shared := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, c := range all {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if users[same(f)] >= several && shared.Lookup(f.Name) == nil {
				shared.AddFlag(f)
			}
		})
	}
	if shared.HasFlags() {
		w.printf("\n## Flags that many verbs have\n\n")
		w.flagTable(shared, false)
	}
	for _, c := range all {
		w.printf("\n## %s\n\n", c.CommandPath())
		w.printf("    %s\n\n", c.UseLine())
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		w.printf("%s\n", paragraphs(strings.TrimSpace(text)))
		if c.Example != "" {
			w.printf("\n```\n%s\n```\n", strings.Trim(c.Example, "\n"))
		}
		own, others := pflag.NewFlagSet("", pflag.ContinueOnError), []string{}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			switch s := shared.Lookup(f.Name); {
			case s != nil && same(s) == same(f):
				others = append(others, code("--"+f.Name))
			default:
				own.AddFlag(f)
			}
		})
		if own.HasFlags() {
			w.printf("\n")
			w.flagTable(own, false)
		}
		if len(others) > 0 {
			w.printf("\nAlso [%s](#flags-that-many-verbs-have).\n", strings.Join(others, ", "))
		}
	}
}

// paragraphs returns a text as Markdown: a paragraph of indented lines becomes a block of code.
func paragraphs(text string) string {
	blocks := strings.Split(text, "\n\n")
	for i, b := range blocks {
		if lines := strings.Split(b, "\n"); slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "  ") }) {
			blocks[i] = html(b)
			continue
		}
		blocks[i] = "```\n" + strings.TrimPrefix(strings.ReplaceAll(b, "\n  ", "\n"), "  ") + "\n```"
	}
	return strings.Join(blocks, "\n\n")
}

// html escapes a text for HTML.
func html(s string) string { return strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(s) }

// cell escapes a text for a table.
func cell(s string) string {
	return strings.ReplaceAll(html(strings.Join(strings.Fields(s), " ")), "|", `\|`)
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(s, "|", `\|`) + "`"
}

// value returns a default, or "" if it has no information.
func value(s string) string {
	if s == "[]" {
		return ""
	}
	return code(s)
}
