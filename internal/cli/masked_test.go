package cli_test

import (
	"regexp"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
)

// masks match the parts of the output that differ from run to run. The replacements are in the golden files.
var masks = []struct {
	what *regexp.Regexp
	mask string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`/\S+/(\w+\.(?:crt|key)|env)\b`), "DIR/$1"},
	{regexp.MustCompile(`\b(?:\d+(?:\.\d+)?(?:ns|µs|ms|[smhdy]))+\b`), "SPAN"},
	{regexp.MustCompile(`\d+ values in \d+ bytes, up to revision \d+`), "N values in N bytes, up to revision N"},
	{regexp.MustCompile(`\d+/(\d{10,})`), "N/$1"}, // the maximum number of bytes
	{regexp.MustCompile(`-config-[a-z0-9]{10}\b`), "-config-HASH"},
}

// gaps matches the space between columns, whose width depends on the longest cell.
var gaps = regexp.MustCompile(` {2,}`)

// compareMasked implements cmpmasked of the scripts: cmp stdout FILE or cmp stderr FILE. It ignores values that
// differ from run to run, and the width of columns.
func compareMasked(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: cmpmasked stdout|stderr FILE")
	}
	got := ts.ReadFile(args[0])
	for _, m := range masks {
		got = m.what.ReplaceAllString(got, m.mask)
	}
	want := gaps.ReplaceAllString(ts.ReadFile(args[1]), "  ")
	if d := cmp.Diff(want, gaps.ReplaceAllString(got, "  ")); d != "" {
		ts.Fatalf("%s is not %s (-want +got):\n%s\nall of it, masked:\n%s", args[0], args[1], d, got)
	}
}
