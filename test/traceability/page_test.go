package traceability

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// root is the path of the repository, relative to this package.
const root = "../.."

// TestPages_AnswerEverything checks each page of docs/traceability: every label has one row, and
// each named test exists. The page that describes the labels has the same labels and counts.
func TestPages_AnswerEverything(t *testing.T) {
	for name, page := range Pages {
		t.Run(name, func(t *testing.T) {
			rows, bad := Parse(read(t, "docs", "traceability", name), page.Columns())
			report(t, bad)
			report(t, unanswered(rows, page.Labels))
			report(t, notThere(root, rows))
			if page.Subject != "" {
				report(t, CheckSubject(read(t, "docs", page.Subject), rows))
			}
		})
	}
}

// TestPages_AreAllRead checks that no page of docs/traceability is left out. README.md is their index.
func TestPages_AreAllRead(t *testing.T) {
	files, err := os.ReadDir(filepath.Join(root, "docs", "traceability"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, ok := Pages[f.Name()]; !ok && f.Name() != "README.md" {
			t.Errorf("docs/traceability/%s: add it to Pages, in test/traceability", f.Name())
		}
	}
}

// read returns a file of the repository.
func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unanswered returns the labels that have no row or no test, that have two rows, or that are not required.
func unanswered(rows []Row, required []string) []string {
	var bad []string
	count := map[string]int{}
	for _, r := range rows {
		count[r.Label]++
		switch {
		case !slices.Contains(required, r.Label):
			bad = append(bad, r.Label+": not required: add it to the labels, in test/traceability")
		case count[r.Label] == 2:
			bad = append(bad, r.Label+": two rows")
		case len(r.Tests) == 0:
			bad = append(bad, r.Label+": no test")
		}
	}
	for _, l := range required {
		if count[l] == 0 {
			bad = append(bad, l+": no row")
		}
	}
	return bad
}

// notThere returns the named tests that no file of their directory declares.
// Package passed looks up subtests in the results.
func notThere(root string, rows []Row) []string {
	var bad []string
	for _, r := range rows {
		for _, t := range r.Tests {
			function, _, _ := strings.Cut(t.Name, "/")
			if found, err := declares(filepath.Join(root, filepath.FromSlash(t.Dir)), function); err != nil || !found {
				bad = append(bad, fmt.Sprintf("line %d: %s: no test %s (%v): was it renamed?", r.Line, r.Label, t, err))
			}
		}
	}
	return bad
}

// declares reports whether a test file in dir declares the function.
func declares(dir, function string) (bool, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	declaration, err := regexp.Compile(`(?m)^func ` + regexp.QuoteMeta(function) + `\(`)
	if err != nil {
		return false, err
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return false, err
		}
		if declaration.Match(text) {
			return true, nil
		}
	}
	return false, nil
}

func TestParse(t *testing.T) {
	const four = "| | failure | here | tests |\n|---|---|---|---|\n| I1 | a | b | `pkg/x TestA`, `pkg/x/y TestB/sub_test` |\n| see | a | b | c |\n"
	const two = "| label | tests |\n|---|---|\n| I1 | `pkg/x TestA`, `pkg/x/y TestB/sub_test` |\n| see | a |\n"
	for columns, page := range map[int]string{4: four, 2: two} {
		rows, bad := Parse(page, columns)
		report(t, bad)
		want := []Row{{Label: "I1", Line: 3, Tests: []Test{{"pkg/x", "TestA"}, {"pkg/x/y", "TestB/sub_test"}}}}
		if d := cmp.Diff(want, rows); d != "" {
			t.Errorf("rows (-want +got):\n%s", d)
		}
	}
	for wrong, want := range map[string]string{
		"| I1 | a | `pkg/x TestA` |":                    "line 1: I1: 3 columns",
		"| I1 | a | b | c | `pkg/x TestA` |":            "5 columns",
		"| I1 | a | b | `TestA` |":                      "does not name a test",
		"| I1 | a | b | `pkg/x BenchmarkA` |":           "does not name a test",
		"| I1 | a | b | `pkg/x TestA`, `pkg/x TestA` |": "pkg/x TestA twice",
		"| I1 | a | b | `pkg/x TestA` and more |":       "beside the tests",
	} {
		_, bad := Parse(wrong, 4)
		wantOne(t, bad, want)
	}
	_, bad := Parse("| I1 | a | b | `pkg/x TestA` |", 2)
	wantOne(t, bad, "4 columns, want 2")
}

func TestCheckSubject(t *testing.T) {
	rows := []Row{
		{Label: "I1", Tests: []Test{{"pkg/x", "TestA"}, {"pkg/x", "TestB"}}},
		{Label: "I2", Tests: []Test{{"pkg/x", "TestA"}}},
	}
	const second = "| I2 | a | b | 1 |\n"
	report(t, CheckSubject("| | promise | how | tests |\n|---|---|---|---|\n| I1 | a | b | 2 |\n"+second, rows))
	for wrong, want := range map[string]string{
		second: "I1: the page has no row",
		"| I1 | a | b | 2 |\n| I1 | a | b | 2 |\n": "line 2: I1: two rows",
		"| I1 | a | b | 3 |\n":                     `line 1: I1: the last column is "3", but 2 tests are named`,
		"| I1 | a | b | `pkg/x TestA` |\n":         "but 2 tests are named",
		"| I1 | a | b |\n":                         "line 1: I1: 3 columns",
		"| I1 | a | | 2 |\n":                       "line 1: I1: no text",
		"| I1 | a | b | 2 |\n| I3 | a | b | 1 |\n": "line 2: I3: the last column",
	} {
		if want != "I1: the page has no row" {
			wrong += second
		}
		wantOne(t, CheckSubject(wrong, rows), want)
	}
}

func TestUnanswered(t *testing.T) {
	required := labels('I', 1, 8)
	all := func(labels []string) (rows []Row) {
		for _, l := range labels {
			rows = append(rows, Row{Label: l, Tests: []Test{{"pkg/x", "TestA"}}})
		}
		return rows
	}
	report(t, unanswered(all(required), required))
	wantOne(t, unanswered(all(required[1:]), required), "I1: no row")
	wantOne(t, unanswered(all(append(required, "I1")), required), "I1: two rows")
	wantOne(t, unanswered(append(all(required[1:]), Row{Label: "I1"}), required), "I1: no test")
	wantOne(t, unanswered(all(append(required, "I9")), required), "I9: not required")
}

func TestRows_NameExistingTests(t *testing.T) {
	row := func(dir, name string) []Row { return []Row{{Label: "I1", Line: 1, Tests: []Test{{dir, name}}}} }
	report(t, notThere(root, row("test/traceability", "TestRows_NameExistingTests/any_subtest")))
	wantOne(t, notThere(root, row("test/traceability", "TestRows")), "no test test/traceability TestRows ")
	wantOne(t, notThere(root, row("test/nowhere", "TestRows_NameExistingTests")), "no such file")
}

// report reports each error.
func report(t *testing.T, bad []string) {
	t.Helper()
	for _, b := range bad {
		t.Error(b)
	}
}

// wantOne fails the test unless there is exactly one error, and it contains want.
func wantOne(t *testing.T, bad []string, want string) {
	t.Helper()
	if len(bad) != 1 || !strings.Contains(bad[0], want) {
		t.Errorf("found %q, want one about %q", bad, want)
	}
}
