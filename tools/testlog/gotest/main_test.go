package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/tools/testlog"
)

// root is the path of the repository, relative to this package.
const root = "../../.."

const module = "github.com/hawser-io/hawser"

// program is a module whose tests fail in all possible ways. Each test records that it ran.
var program = map[string]string{
	"go.mod": "module example.com/m\ngo 1.26\n",
	"note/note.go": `package note
import "os"
// Ran notes that a test runs, and returns how often it ran before.
func Ran(name string) int {
	b, _ := os.ReadFile("ran")
	n := 0
	for _, c := range string(b) { if string(c) == name { n++ } }
	os.WriteFile("ran", append(b, name...), 0o600)
	return n
}
`,
	"fine/fine_test.go": `package fine
import ("testing"; "example.com/m/note")
func TestA(t *testing.T) { note.Ran("A") }
`,
	"once/once_test.go": `package once
import ("testing"; "example.com/m/note")
func TestA(t *testing.T) { note.Ran("A") }
func TestB(t *testing.T) {
	n := note.Ran("B")
	t.Run("below", func(t *testing.T) {
		t.Log("time", n)
		if n == 0 { t.Error("wrong") }
	})
	if n == 0 { t.Run("only once", func(t *testing.T) {}) }
}
func TestC(t *testing.T) { if note.Ran("C") == 0 { t.Error("wrong too") } }
`,
	"always/always_test.go": `package always
import ("testing"; "example.com/m/note")
func TestA(t *testing.T) { note.Ran("A"); t.Error("wrong") }
func TestB(t *testing.T) { if note.Ran("B") == 0 { t.Error("wrong") } }
`,
	"skips/skips_test.go": `package skips
import ("testing"; "example.com/m/note")
func TestA(t *testing.T) { if note.Ran("A") == 0 { t.Error("wrong") }; t.Skip("no more") }
`,
	"panics/panics_test.go": `package panics
import ("testing"; "example.com/m/note")
func TestA(t *testing.T) { note.Ran("A") }
func TestB(t *testing.T) { t.Parallel(); note.Ran("B") }
func TestC(t *testing.T) { if note.Ran("C") == 0 { panic("oh") } }
func TestD(t *testing.T) { note.Ran("D") }
func TestSkipped(t *testing.T) { note.Ran("S") }
`,
	"goes/goes_test.go": `package goes
import ("testing"; "example.com/m/note")
func TestA(t *testing.T) { if note.Ran("A") == 0 { go func() { panic("oh") }(); select {} } }
func TestB(t *testing.T) { if note.Ran("B") == 0 { t.Error("behind the crash") } }
`,
	"hangs/hangs_test.go": `package hangs
import ("testing"; "example.com/m/note")
func TestA(t *testing.T) { t.Parallel(); note.Ran("A") }
func TestB(t *testing.T) { if note.Ran("B") == 0 { t.Run("below", func(t *testing.T) { select {} }) } }
`,
	"broken/broken_test.go": "package broken\nimport \"testing\"\nfunc TestA(t *testing.T) { x := 1 }\n",
	"exits/exits_test.go": `package exits
import ("os"; "testing"; "example.com/m/note")
func TestMain(m *testing.M) { note.Ran("M"); m.Run(); os.Exit(1) }
func TestA(t *testing.T) {}
`,
	"outside/outside_test.go": `package outside
import ("fmt"; "os"; "testing"; "example.com/m/note")
func TestMain(m *testing.M) { code := m.Run(); fmt.Fprintln(os.Stderr, "` + testlog.Outside + `the program crashed"); os.Exit(code) }
func TestA(t *testing.T) { if note.Ran("A") == 0 { t.Error("the program does not answer") } }
`,
}

// result is the result of a run.
type result struct {
	passed  bool
	ran     string // names of the tests that ran, in all packages
	printed string
	record  string
	tests   map[testlog.Name]testlog.Outcome
}

// play runs tests of the program with these arguments. list is the content of test/flaky.txt.
func play(t *testing.T, again bool, list string, args ...string) result {
	t.Helper()
	dir := t.TempDir()
	for name, text := range program {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	s := stage{file: filepath.Join(dir, "events", "unit.json"), dir: dir, out: &out}
	var err error
	if s.command, err = parse(args); err == nil {
		s.flaky, err = parseList(list)
	}
	if err != nil {
		t.Fatal(err)
	}
	var r result
	if r.passed, err = s.run(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	r.printed = out.String()
	for _, f := range slices.Sorted(maps.Keys(program)) {
		b, _ := os.ReadFile(filepath.Join(dir, filepath.Dir(f), "ran")) // without a file no test ran
		r.ran += string(b)
	}
	b, _ := os.ReadFile(s.record()) // without a file no test was flaky
	r.record = string(b)
	events, err := os.Open(s.file)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	if r.tests, err = testlog.Results(events); err != nil {
		t.Fatal(err)
	}
	return r
}

// outcomes returns the outcomes with the names of tests in a package of the program.
func outcomes(pkg string, all map[string]testlog.Outcome) map[testlog.Name]testlog.Outcome {
	named := map[testlog.Name]testlog.Outcome{}
	for test, o := range all {
		named[testlog.Name{Package: "example.com/m/" + pkg, Test: test}] = o
	}
	return named
}

func (r result) want(t *testing.T, passed bool, ran string) {
	t.Helper()
	if r.passed != passed || r.ran != ran {
		t.Errorf("passed %t, ran %q; want %t, %q\n%s", r.passed, r.ran, passed, ran, r.printed)
	}
}

func (r result) wantPrinted(t *testing.T, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(r.printed, want) {
			t.Errorf("%q is not in\n%s", want, r.printed)
		}
	}
}

// TestAgain_PassesAlone: only failed tests run again, and both outputs are recorded.
func TestAgain_PassesAlone(t *testing.T) {
	t.Parallel()
	r := play(t, true, "", "-timeout=1m", "./fine", "./once")
	r.want(t, true, "AABCBC")
	r.wantPrinted(t, "FAIL\texample.com/m/once", "again, alone: example.com/m/once TestB TestC\n", "ok  \texample.com/m/once")
	want := `FLAKY example.com/m/once TestB
  it failed:
        once_test.go:7: time 0
        once_test.go:8: wrong
    --- FAIL: TestB/below (SECONDS)
    --- PASS: TestB/only_once (SECONDS)
    --- FAIL: TestB (SECONDS)
  it passed when it was run again:
        once_test.go:7: time 1
    --- PASS: TestB/below (SECONDS)
    --- PASS: TestB (SECONDS)
FLAKY example.com/m/once TestC
  it failed:
        once_test.go:12: wrong too
    --- FAIL: TestC (SECONDS)
  it passed when it was run again:
    --- PASS: TestC (SECONDS)
`
	record := regexp.MustCompile(`[0-9]+\.[0-9]+s`).ReplaceAllString(r.record, "SECONDS")
	if d := cmp.Diff(want, record); d != "" {
		t.Errorf("record (-want +got):\n%s", d)
	}
	// The second run of a test decides: a subtest that did not run again has no outcome.
	all := outcomes("once", map[string]testlog.Outcome{"TestA": testlog.Passed, "TestB": testlog.Passed, "TestB/below": testlog.Passed, "TestC": testlog.Passed})
	all[testlog.Name{Package: "example.com/m/fine", Test: "TestA"}] = testlog.Passed
	if d := cmp.Diff(all, r.tests); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
}

func TestAgain_OnlyIfRequested(t *testing.T) {
	t.Parallel()
	r := play(t, false, "", "./once")
	r.want(t, false, "ABC")
	if r.record != "" || r.tests[testlog.Name{Package: "example.com/m/once", Test: "TestB"}] != testlog.Failed {
		t.Errorf("recorded %q, results %v", r.record, r.tests)
	}
}

// TestAgain_FailsAgain: the stage fails with the first test that fails again, and no later package runs again.
func TestAgain_FailsAgain(t *testing.T) {
	t.Parallel()
	r := play(t, true, "", "./always", "./once")
	r.want(t, false, "ABA"+"ABC")
	if r.record != "" || r.tests[testlog.Name{Package: "example.com/m/always", Test: "TestA"}] != testlog.Failed {
		t.Errorf("recorded %q, results %v", r.record, r.tests)
	}
	r = play(t, true, "", "./skips")
	r.want(t, false, "AA")
	r.wantPrinted(t, "example.com/m/skips TestA did not pass\n")
}

// TestAgain_Crash: the test that ended the test binary runs again alone. After it, the tests run that did not
// end or start because of the crash.
func TestAgain_Crash(t *testing.T) {
	t.Parallel()
	r := play(t, true, "", "-skip=Skipped$", "./panics")
	r.want(t, true, "AC"+"C"+"DB")
	r.wantPrinted(t, "again, alone: example.com/m/panics TestC\n")
	if !strings.Contains(r.record, "FLAKY example.com/m/panics TestC\n") || !strings.Contains(r.record, "    panic: oh") || strings.Contains(r.record, "TestB") {
		t.Errorf("recorded %q", r.record)
	}
	all := outcomes("panics", map[string]testlog.Outcome{"TestA": testlog.Passed, "TestB": testlog.Passed, "TestC": testlog.Passed, "TestD": testlog.Passed})
	if d := cmp.Diff(all, r.tests); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
	// A test that the crash prevented fails in the second run. That fails the stage.
	r = play(t, true, "", "./goes")
	r.want(t, false, "A"+"A"+"B")
	r.wantPrinted(t, "again, alone: example.com/m/goes TestA\n", "behind the crash")
	r = play(t, true, "", "-timeout=1s", "./hangs")
	r.want(t, true, "B"+"B"+"A")
	r.wantPrinted(t, "test timed out after 1s", "again, alone: example.com/m/hangs TestB\n")
}

// TestAgain_Never: a failure is final if a second run cannot fix it, or if the test is known to be flaky.
func TestAgain_Never(t *testing.T) {
	t.Parallel()
	r := play(t, true, "", "./broken", "./once")
	r.want(t, false, "ABC")
	r.wantPrinted(t, "declared and not used", "example.com/m/broken failed, and none of its tests explains it: nothing is run again\n")
	r = play(t, true, "", "./exits")
	r.want(t, false, "M")
	r = play(t, true, "", "./outside")
	r.want(t, false, "A")
	r = play(t, true, "# comment\n\nexample.com/m/once TestC — the clock\n", "./once")
	r.want(t, false, "ABC")
	r.wantPrinted(t, "example.com/m/once TestC is listed in test/flaky.txt (the clock): nothing is run again\n")
}

func TestParse(t *testing.T) {
	t.Parallel()
	c, err := parse([]string{"-race", "-run=^(A|B)$", "./...", "./x"})
	if want := []string{"test", "-race", "-run=^(A|B)$", "-json", "./...", "./x"}; err != nil || !slices.Equal(c.args(), want) {
		t.Errorf("%q, %v; want %q", c.args(), err, want)
	}
	if _, err := parse([]string{"-timeout", "30m", "./..."}); err == nil || !strings.Contains(err.Error(), "-timeout=VALUE") {
		t.Errorf("a flag in two arguments: %v", err)
	}
	f := testlog.Failure{Package: "p", Tests: []string{"TestB"}, Ended: []string{"TestA"}}
	c = command{[]string{"-count=3", "-p=4", "-parallel=8", "-timeout=30m", "-run=.", "-skip=C$"}, []string{"./..."}}
	for want, got := range map[string]command{
		"test -timeout=30m -skip=C$ -count=1 -p=1 -parallel=1 -failfast=true -run=^(TestB)$ -json p":   c.alone(f),
		"test -count=3 -p=4 -parallel=8 -timeout=30m -run=. -count=1 -skip=C$|^(TestA|TestB)$ -json p": c.rest(f),
	} {
		if got := strings.Join(got.args(), " "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestFlaky_ListIsRight: each line of test/flaky.txt has its form, and names an existing test.
func TestFlaky_ListIsRight(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "test", "flaky.txt"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := parseList(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for n := range list {
		if !isThere(t, n) {
			t.Errorf("test/flaky.txt: there is no %s %s", n.Package, n.Test)
		}
	}
	if !isThere(t, testlog.Name{Package: module + "/tools/testlog/gotest", Test: "TestParse"}) || isThere(t, testlog.Name{Package: module + "/tools/testlog/gotest", Test: "TestPars"}) {
		t.Error("a test that is there is not found, or one that is not there is")
	}
	for _, wrong := range []string{"p TestA", "p TestA — ", "p TestA/sub — x", "TestA — x", "p TestA - x", "p TestA — x\np TestA — y"} {
		if _, err := parseList(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

// isThere reports whether a file of the package declares the test.
func isThere(t *testing.T, n testlog.Name) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(strings.TrimPrefix(n.Package, module)), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains("\n"+string(text), "\nfunc "+n.Test+"(") {
			return true
		}
	}
	return false
}

// TestStages_FlakyTestsAreLast: `make test` prints flaky tests after the table. `make test-all` runs no test
// again.
func TestStages_FlakyTestsAreLast(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, f := range []struct{ name, text string }{
		{".ci/stages", read(t, ".ci/stages")},
		{".cache/tests/flaky/e2e.txt", "FLAKY p TestB\n  it failed:\n    why\n"},
		{".cache/tests/flaky/unit.txt", "FLAKY p TestA\n"},
	} {
		name := filepath.Join(dir, f.name)
		if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(f.text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	const last = "\nFLAKY p TestB\n  it failed:\n    why\nFLAKY p TestA\n\nflaky tests: 2; mend each in the next change, or list it with its cause in test/flaky.txt\n"
	for again, want := range map[string]string{"1": last, "0": "", "": ""} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, ".ci", "stages"), "one", "two")
		cmd.Env = append(os.Environ(), "MAKE=true", "AGAIN="+again)
		out, err := cmd.CombinedOutput()
		_, behind, ok := strings.Cut(string(out), " s  ok\ntotal ")
		_, behind, _ = strings.Cut(behind, "\n")
		if err != nil || !ok || behind != want {
			t.Errorf("AGAIN=%s: %v\n%s", again, err, out)
		}
	}
}

// TestMake_RerunsOnlyNamedStages: a test runs again in `make test`, and not in `make test-all`.
func TestMake_RerunsOnlyNamedStages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const stages = "#!/bin/sh\necho \"$1 AGAIN=$AGAIN\"\nif [ \"$1\" = test ]; then exec \"$MAKE\" test; fi\n"
	if err := os.Mkdir(filepath.Join(dir, ".ci"), 0o750); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"Makefile": read(t, "Makefile"), ".ci/stages": stages} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS") || strings.HasPrefix(v, "AGAIN=")
	})
	for _, c := range []struct{ args, want string }{
		{"test", "fresh AGAIN=1\n"}, {"test-all", "test AGAIN=0\nfresh AGAIN=0\n"}, {"test AGAIN=0", "fresh AGAIN=0\n"},
	} {
		cmd := exec.CommandContext(t.Context(), "make", append([]string{"-s", "-C", dir, "--no-print-directory"}, strings.Fields(c.args)...)...)
		cmd.Env = environment
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != c.want {
			t.Errorf("make %s: %v: %q, want %q", c.args, err, out, c.want)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
