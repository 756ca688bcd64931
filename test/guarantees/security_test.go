package guarantees

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// parties are the columns of the matrix in docs/security.md.
var parties = []string{"agent", "source", "viewer", "operator", "hub", "broker"}

// cell is what the matrix says of one party: what is prevented ends in the label
// of a row that names tests.
var cell = regexp.MustCompile(`^(?:yes|–|[a-z, ]+ (M[0-9]+))$`)

// TestSecurity_EachCellHasItsTests: what docs/security.md says that a hostile
// party cannot do is held by tests that are there.
func TestSecurity_EachCellHasItsTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, bad := Parse(string(page))
	report(t, bad)
	report(t, notThere(root, rows))
	used, bad := matrix(string(page))
	report(t, bad)
	report(t, unanswered(rows, used))
}

// matrix returns the labels that the matrix of a page names, each once, and what
// is wrong with it.
func matrix(markdown string) (used, bad []string) {
	header := "| can it | " + strings.Join(parties, " | ") + " |"
	_, rest, found := strings.Cut(markdown, header+"\n")
	if !found {
		return nil, []string{"no table begins with " + header}
	}
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if strings.HasPrefix(cells[0], "---") {
			continue
		}
		if len(cells) != 1+len(parties) {
			bad = append(bad, fmt.Sprintf("%s: %d columns", line, len(cells)))
			continue
		}
		for i, c := range cells[1:] {
			m := cell.FindStringSubmatch(strings.TrimSpace(c))
			switch {
			case m == nil:
				bad = append(bad, fmt.Sprintf("%s, %s: %q is neither yes, nor –, nor ends in a label", cells[0], parties[i], c))
			case m[1] != "" && !slices.Contains(used, m[1]):
				used = append(used, m[1])
			}
		}
	}
	return used, bad
}

func TestMatrix(t *testing.T) {
	const header = "| can it | agent | source | viewer | operator | hub | broker |\n|---|---|---|---|---|---|---|\n"
	used, bad := matrix(header + "| a | no M1 | no M2 | yes | – | of its own M1 | no M3 |\n\n| b | c |\n")
	report(t, bad)
	if !slices.Equal(used, []string{"M1", "M2", "M3"}) {
		t.Errorf("used %v", used)
	}
	for wrong, want := range map[string]string{
		"":                         "no table",
		header + "| a | no M1 |\n": "2 columns",
		header + "| a | no | – | – | – | – | yes |\n": "agent",
	} {
		_, bad := matrix(wrong)
		wantOne(t, bad, want)
	}
}
