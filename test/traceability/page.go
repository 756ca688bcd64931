// Package traceability checks the pages of docs/ that list which test shows what. This package reads a page.
// Its tests check that each required entry has a row, and that the tests of each row exist. The package passed
// below it checks that they ran and passed.
package traceability

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Pages are the pages, by file name in docs/, with the required labels of each.
var Pages = map[string][]string{
	// The invariants (I), the failures of others in behavior (Q) and in size (S), and where they were measured (E).
	// Missing numbers are about components that Hawser does not have.
	"guarantees.md": slices.Concat(
		labels('I', 1, 8), labels('Q', 1, 29), labels('Q', 33, 35), labels('S', 1, 11), labels('S', 13, 14), labels('E', 1, 5), labels('E', 7, 10),
	),
	// Behaviours (B) and whole workloads (W), condition tables (T), strategies
	// (S), and defects that are known elsewhere (D).
	"manifestwork-coverage.md": slices.Concat(
		labels('B', 1, 75), labels('W', 1, 14), labels('T', 1, 8), labels('S', 1, 4), labels('D', 4, 4), labels('D', 6, 35), labels('D', 39, 43),
	),
	// What is taken over: a bootstrap token (B), an agent (A), hub-source (H), the broker (K), an operator (O).
	"threat-model.md": slices.Concat(labels('B', 1, 6), labels('A', 1, 10), labels('H', 1, 9), labels('K', 1, 14), labels('O', 1, 7)),
}

func labels(letter rune, from, to int) []string {
	var all []string
	for n := from; n <= to; n++ {
		all = append(all, fmt.Sprintf("%c%d", letter, n))
	}
	return all
}

// Row is one promise, behavior or failure of a page.
type Row struct {
	// Label is a letter and a number.
	Label string
	// Line counts from 1.
	Line  int
	Tests []Test
}

// Test is a test or fuzz target as named on the page.
type Test struct {
	// Dir is relative to the root of the repository, with slashes.
	Dir string
	// Name contains slashes if it names a subtest.
	Name string
}

// String returns the form that the page uses.
func (t Test) String() string { return t.Dir + " " + t.Name }

var (
	label    = regexp.MustCompile(`^[A-Z][0-9]+$`)
	code     = regexp.MustCompile("`([^`]*)`")
	testName = regexp.MustCompile(`^([a-z0-9/-]+) ((?:Test|Fuzz)[^ ]*)$`)
)

// Parse returns the rows of all tables whose first column holds a label. The last column names tests, each as
// `directory TestName` in backquotes, and holds nothing else. The second result lists errors in the rows, by
// line.
func Parse(markdown string) ([]Row, []string) {
	var rows []Row
	var bad []string
	number := 0
	for line := range strings.Lines(markdown) {
		number++
		line = strings.TrimSpace(line)
		cells := strings.Split(strings.Trim(line, "|"), "|")
		r := Row{Label: strings.TrimSpace(cells[0]), Line: number}
		if !strings.HasPrefix(line, "|") || !label.MatchString(r.Label) {
			continue
		}
		send := func(format string, args ...any) {
			bad = append(bad, fmt.Sprintf("line %d: %s: %s", number, r.Label, fmt.Sprintf(format, args...)))
		}
		if len(cells) != 4 {
			send("%d columns, want label, failure or promise, what Hawser does, tests", len(cells))
		}
		last := cells[len(cells)-1]
		for _, m := range code.FindAllStringSubmatch(last, -1) {
			parts := testName.FindStringSubmatch(m[1])
			if parts == nil {
				send("%q does not name a test: write `directory TestName`", m[1])
				continue
			}
			t := Test{parts[1], parts[2]}
			if slices.Contains(r.Tests, t) {
				send("names %s twice", t)
			}
			r.Tests = append(r.Tests, t)
		}
		if rest := strings.Trim(code.ReplaceAllString(last, ""), " ,"); rest != "" {
			send("%q beside the tests", rest)
		}
		rows = append(rows, r)
	}
	return rows, bad
}
