// Package traceability reads the pages of docs/traceability, which name the tests of each promise.
// Its tests check that each label has a row and that the named tests exist.
// Package passed below it checks that they ran and passed.
package traceability

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Page describes a page of docs/traceability.
type Page struct {
	// Subject is the page of docs/ that describes each label in a row and counts its tests.
	// Empty: the page itself describes its labels.
	Subject string
	// Labels are the labels that need a row.
	Labels []string
	// Long is true if some tests run in other targets than make test. Package passed skips the page.
	Long bool
}

// Columns returns the number of columns of a row: label, promise, how, tests; or label and tests
// if another page describes the labels.
func (p Page) Columns() int {
	if p.Subject != "" {
		return 2
	}
	return 4
}

// Pages are the pages by file name in docs/traceability.
var Pages = map[string]Page{
	// Invariants (I), and failures of other systems: in behaviour (Q), in size (S), as measured (E).
	// The missing numbers are about components that Hawser does not have.
	"guarantees.md": {Subject: "guarantees.md", Labels: slices.Concat(
		labels('I', 1, 8), labels('Q', 1, 29), labels('Q', 33, 35), labels('S', 1, 11), labels('S', 13, 14), labels('E', 1, 5), labels('E', 7, 10),
	)},
	// Behaviours (B), whole workloads (W), condition tables (T), strategies (S), and defects that
	// are known in other systems (D).
	"manifestwork.md": {Labels: slices.Concat(
		labels('B', 1, 75), labels('W', 1, 14), labels('T', 1, 8), labels('S', 1, 4), labels('D', 4, 4), labels('D', 6, 35), labels('D', 39, 43),
	)},
	// Attackers that control a bootstrap token (B), an agent (A), hub-source (H), the broker (K) or an operator (O).
	"threat-model.md": {Subject: "threat-model.md", Labels: slices.Concat(
		labels('B', 1, 6), labels('A', 1, 10), labels('H', 1, 9), labels('K', 1, 14), labels('O', 1, 7),
	)},
	// Attacks (M) that the cells of the security matrix name.
	"security.md": {Subject: "security-matrix.md", Labels: labels('M', 1, 33), Long: true},
	// Security measures that docs/security.md and the threat model describe (P).
	"measures.md": {Labels: labels('P', 1, 7), Long: true},
	// Programs of OCM with Hawser (K).
	"ocm.md": {Labels: labels('K', 1, 8), Long: true},
	// Versions that meet (U).
	"upgrade.md": {Labels: labels('U', 1, 5)},
}

// labels returns the labels of one letter with the numbers from and to, and all between.
func labels(letter rune, from, to int) []string {
	var all []string
	for n := from; n <= to; n++ {
		all = append(all, fmt.Sprintf("%c%d", letter, n))
	}
	return all
}

// Row is the row of one label.
type Row struct {
	// Label is a letter and a number.
	Label string
	// Line counts from 1.
	Line int
	// Tests are the tests in the last column, in the order of the page.
	Tests []Test
}

// Test is a test or fuzz target as the page names it.
type Test struct {
	// Dir is relative to the root of the repository, with slashes.
	Dir string
	// Name contains slashes for a subtest.
	Name string
}

// String returns the test as the page names it.
func (t Test) String() string { return t.Dir + " " + t.Name }

var (
	label    = regexp.MustCompile(`^[A-Z][0-9]+$`)
	code     = regexp.MustCompile("`([^`]*)`")
	testName = regexp.MustCompile(`^([a-z0-9/-]+) ((?:Test|Fuzz)[^ ]*)$`)
)

// Parse returns the rows of all tables whose first column holds a label. Each row must have the
// given number of columns. The last column names tests, each as `directory TestName` in
// backquotes, and holds nothing else. The second result lists the errors, by line.
func Parse(markdown string, columns int) ([]Row, []string) {
	var rows []Row
	var bad []string
	for r, cells := range labelledRows(markdown) {
		send := func(format string, args ...any) {
			bad = append(bad, fmt.Sprintf("line %d: %s: %s", r.Line, r.Label, fmt.Sprintf(format, args...)))
		}
		if len(cells) != columns {
			send("%d columns, want %d", len(cells), columns)
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

// CheckSubject compares a page of docs/ with the rows of its page in docs/traceability. The page
// needs one row per label, with four columns: label, promise, how, number of tests. The result
// lists the errors.
func CheckSubject(markdown string, rows []Row) []string {
	var bad []string
	described := map[string]int{}
	for r, cells := range labelledRows(markdown) {
		described[r.Label]++
		if described[r.Label] == 2 {
			bad = append(bad, fmt.Sprintf("line %d: %s: two rows", r.Line, r.Label))
		}
		tests := 0
		for _, named := range rows {
			if named.Label == r.Label {
				tests += len(named.Tests)
			}
		}
		switch last := strings.TrimSpace(cells[len(cells)-1]); {
		case len(cells) != 4:
			bad = append(bad, fmt.Sprintf("line %d: %s: %d columns, want label, promise, how, number of tests", r.Line, r.Label, len(cells)))
		case strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[2]) == "":
			bad = append(bad, fmt.Sprintf("line %d: %s: no text", r.Line, r.Label))
		case last != strconv.Itoa(tests):
			bad = append(bad, fmt.Sprintf("line %d: %s: the last column is %q, but %d tests are named", r.Line, r.Label, last, tests))
		}
	}
	for _, named := range rows {
		if described[named.Label] == 0 {
			bad = append(bad, named.Label+": the page has no row")
		}
	}
	return bad
}

// labelledRows iterates over the table rows whose first column holds a label, with their cells.
func labelledRows(markdown string) func(yield func(Row, []string) bool) {
	return func(yield func(Row, []string) bool) {
		number := 0
		for line := range strings.Lines(markdown) {
			number++
			line = strings.TrimSpace(line)
			cells := strings.Split(strings.Trim(line, "|"), "|")
			r := Row{Label: strings.TrimSpace(cells[0]), Line: number}
			if !strings.HasPrefix(line, "|") || !label.MatchString(r.Label) {
				continue
			}
			if !yield(r, cells) {
				return
			}
		}
	}
}
