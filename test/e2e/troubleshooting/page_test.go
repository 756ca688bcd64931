package troubleshooting

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// page is the part of a file with the screen of one fault.
type page struct{ file, fault string }

// find returns the text before, in and after that part.
func (p page) find() (before, screen, behind string, err error) {
	b, err := os.ReadFile(p.file)
	if err != nil {
		return "", "", "", err
	}
	begin, end := "<!-- screen: "+p.fault+" -->\n```console\n", "```\n<!-- end -->\n"
	before, rest, ok := strings.Cut(string(b), begin)
	screen, behind, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", "", "", fmt.Errorf("%s has no place for the screen of %q: it begins with %q and ends with %q", p.file, p.fault, begin, end)
	}
	return before + begin, screen, end + behind, nil
}

func (p page) read() (string, error) {
	_, screen, _, err := p.find()
	return screen, err
}

func (p page) write(screen string) error {
	before, _, behind, err := p.find()
	if err != nil {
		return err
	}
	return os.WriteFile(p.file, []byte(before+screen+behind), 0o600)
}

// Texts that differ in each run.
var (
	aHeader = regexp.MustCompile(`^[A-Z][A-Z-]*( [A-Z-]+)*( {2,}[A-Z-]+( [A-Z-]+)*)+ *$`)
	aGap    = regexp.MustCompile(` {2,}`)
	anAge   = regexp.MustCompile(`^>?(\d+[dhms])+( \(x\d+ over (\d+[dhms])+\))?$`)
	changes = []struct {
		what *regexp.Regexp
		with string
	}{
		{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( UTC)?`), "2026-11-23 09:00:00$1"},
		{regexp.MustCompile(`valid until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "valid until 2026-12-24T18:00:00Z"},
		{regexp.MustCompile(`(olga" valid until )2026-12-24`), "${1}2026-11-22"},
		{regexp.MustCompile(`which says \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "which says 2026-11-23T09:00:00Z"},
		{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "0b3a2d7c-3f0e-4f4e-9a37-6d3f3f3b0042"},
		{regexp.MustCompile(`\b(answered in) [0-9a-zµ.]+`), "$1 4ms"},
		{regexp.MustCompile(`\b(\d+[dhms])+ ago\b`), "1m ago"},
		{regexp.MustCompile(`\b(no agent|not available) for (\d+[dhms])+`), "$1 for 1m"},
		{regexp.MustCompile(`\bsince \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "since 2026-11-23T09:00:00Z"},
		{regexp.MustCompile(`\d+ MiB free, \d+ MiB required`), "20 MiB free, 32 MiB required"},
		{regexp.MustCompile(`\b[0-9a-f]{64}-`), "5f1d7a84db00d2fce00b31a7fc73224f5f1d7a84db00d2fce00b31a7fc73224f-"},
		{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:40404"},
	}
)

// normalize replaces all text that differs in each run: ages, times, ids, ports and the version of the programs.
func normalize(screen, version string) string {
	for _, c := range changes {
		screen = c.what.ReplaceAllString(screen, c.with)
	}
	out, lines := "", strings.Split(strings.TrimRight(screen, "\n"), "\n")
	for len(lines) > 0 {
		n := 1
		if aHeader.MatchString(lines[0]) {
			for n < len(lines) && lines[n] != "" {
				n++
			}
			lines = append(aligned(lines[:n], version), lines[n:]...)
		}
		for _, l := range lines[:n] {
			out += strings.TrimRight(l, " ") + "\n"
		}
		lines = lines[n:]
	}
	return out
}

// aligned formats a table again after such texts were replaced.
func aligned(lines []string, version string) []string {
	starts := []int{0}
	for _, gap := range aGap.FindAllStringIndex(strings.TrimRight(lines[0], " "), -1) {
		starts = append(starts, gap[1])
	}
	rows, widths := make([][]string, len(lines)), make([]int, len(starts))
	for i, l := range lines {
		runes := []rune(l)
		for n, from := range starts {
			to := len(runes)
			if n+1 < len(starts) {
				to = min(to, starts[n+1])
			}
			cell := strings.TrimSpace(string(runes[min(from, to):to]))
			switch {
			case anAge.MatchString(cell):
				cell = "1m"
			case cell == version:
				cell = "v1.0.0"
			}
			rows[i] = append(rows[i], cell)
			widths[n] = max(widths[n], utf8.RuneCountInString(cell))
		}
	}
	if rows[0][0] == "LAST SEEN" { // Events of one second have no order
		slices.SortFunc(rows[1:], slices.Compare)
	}
	for i, row := range rows {
		lines[i] = ""
		for n, cell := range row {
			lines[i] += cell + strings.Repeat(" ", widths[n]-utf8.RuneCountInString(cell)+3)
		}
	}
	return lines
}

func TestNormalize(t *testing.T) {
	const screen = "at 2026-11-23 20:15:10 UTC\n" +
		"NAME   LAST SEEN             AGENT        MESSAGE\nweb    12s (x3 over 1m10s)   0a1b-dirty   it is  long\n       5s                    -            -\n"
	const want = "at 2026-11-23 09:00:00 UTC\n" +
		"NAME   LAST SEEN   AGENT    MESSAGE\nweb    1m          v1.0.0   it is  long\n       1m          -        -\n"
	if got := normalize(screen, "0a1b-dirty"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
