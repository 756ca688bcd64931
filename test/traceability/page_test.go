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

// root is where the repository begins, seen from this package.
const root = "../.."

func TestPages_AnswerEverything(t *testing.T) {
	for page, required := range Pages {
		t.Run(page, func(t *testing.T) {
			markdown, err := os.ReadFile(filepath.Join(root, "docs", page))
			if err != nil {
				t.Fatal(err)
			}
			rows, bad := Parse(string(markdown))
			report(t, bad)
			report(t, unanswered(rows, required))
			report(t, notThere(root, rows))
		})
	}
}

// unanswered says which labels have no row or no test.
func unanswered(rows []Row, required []string) []string {
	var bad []string
	count := map[string]int{}
	for _, r := range rows {
		count[r.Label]++
		switch {
		case !slices.Contains(required, r.Label):
			bad = append(bad, r.Label+": not asked for: add it to those that are, in test/traceability")
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

// notThere says which tests, of those that the rows name, no file of their
// directory declares. Subtests are looked up in the results, by package passed.
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
	rows, bad := Parse("| | failure | here | tests |\n|---|---|---|---|\n| I1 | a | b | `pkg/x TestA`, `pkg/x/y TestB/sub_test` |\n| see | a | b | c |\n")
	report(t, bad)
	want := []Row{{Label: "I1", Line: 3, Tests: []Test{{"pkg/x", "TestA"}, {"pkg/x/y", "TestB/sub_test"}}}}
	if d := cmp.Diff(want, rows); d != "" {
		t.Errorf("rows (-want +got):\n%s", d)
	}
	for wrong, want := range map[string]string{
		"| I1 | a | `pkg/x TestA` |":                    "line 1: I1: 3 columns",
		"| I1 | a | b | c | `pkg/x TestA` |":            "5 columns",
		"| I1 | a | b | `TestA` |":                      "does not name a test",
		"| I1 | a | b | `pkg/x BenchmarkA` |":           "does not name a test",
		"| I1 | a | b | `pkg/x TestA`, `pkg/x TestA` |": "pkg/x TestA twice",
		"| I1 | a | b | `pkg/x TestA` and more |":       "beside the tests",
	} {
		_, bad := Parse(wrong)
		wantOne(t, bad, want)
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
	wantOne(t, unanswered(all(append(required, "I9")), required), "I9: not asked for")
}

func TestNotThere(t *testing.T) {
	row := func(dir, name string) []Row { return []Row{{Label: "I1", Line: 1, Tests: []Test{{dir, name}}}} }
	report(t, notThere(root, row("test/traceability", "TestNotThere/any_subtest")))
	wantOne(t, notThere(root, row("test/traceability", "TestNot")), "no test test/traceability TestNot ")
	wantOne(t, notThere(root, row("test/nowhere", "TestNotThere")), "no such file")
}

func report(t *testing.T, bad []string) {
	t.Helper()
	for _, b := range bad {
		t.Error(b)
	}
}

// wantOne fails the test unless a rule found one thing, that contains want.
func wantOne(t *testing.T, bad []string, want string) {
	t.Helper()
	if len(bad) != 1 || !strings.Contains(bad[0], want) {
		t.Errorf("found %q, want one about %q", bad, want)
	}
}
