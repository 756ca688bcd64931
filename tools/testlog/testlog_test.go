package testlog_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/tools/testlog"
)

// program is a module whose tests end in all possible ways. DIR is replaced, so that the cache has no result of
// another run.
var program = map[string]string{
	"go.mod":       "module example.com/m\ngo 1.26\n",
	"none/none.go": "package none\n",
	"broken/broken_test.go": `package broken
import "testing"
func TestA(t *testing.T) { x := 1 }
`,
	"good/good_test.go": `package good
import ("fmt"; "testing")
func TestPasses(t *testing.T) { t.Log("quiet DIR"); fmt.Println("quiet too"); t.Run("a subtest", func(t *testing.T) {}) }
func TestSkipped(t *testing.T) { t.Attr("day", "not today"); t.Skip("not today") }
func FuzzPasses(f *testing.F) { f.Add(1); f.Fuzz(func(t *testing.T, n int) {}) }
`,
	"bad/bad_test.go": `package bad
import "testing"
func TestPasses(t *testing.T) { t.Log("quiet") }
func TestFails(t *testing.T) {
	t.Parallel()
	t.Attr("key", "value")
	t.Log("before")
	t.Run("fine", func(t *testing.T) { t.Log("quiet") })
	t.Run("wrong", func(t *testing.T) { t.Error("this") })
}
`,
	"panics/panics_test.go": `package panics
import "testing"
func TestPanics(t *testing.T) { t.Log("before"); panic("oh") }
func TestNeverBegins(t *testing.T) {}
`,
}

// goTest runs go test -json on packages of the program.
func goTest(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) || stderr.Len() > 0 {
		t.Fatalf("go test: %v\n%s", err, &stderr)
	}
	return out
}

func write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range program {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Texts that differ from run to run: seconds, and goroutines after a panic.
var (
	seconds    = regexp.MustCompile(`[0-9]+\.[0-9]+s`)
	goroutines = regexp.MustCompile(`(?s)goroutine [0-9]+ \[.*?\nFAIL\t`)
)

func readable(t *testing.T, events []byte) string {
	t.Helper()
	var out, kept bytes.Buffer
	if err := testlog.Print(&out, &kept, bytes.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept.Bytes(), events) {
		t.Error("the events are not kept as they came")
	}
	return goroutines.ReplaceAllString(seconds.ReplaceAllString(out.String(), "SECONDS"), "GOROUTINES\nFAIL\t")
}

// TestPrint_ReportsOutputOfGoTest uses the real go command, so that a changed form of its events is detected.
func TestPrint_ReportsOutputOfGoTest(t *testing.T) {
	t.Parallel()
	dir := write(t)
	for pattern, want := range map[string]string{
		"./good": "ok  \texample.com/m/good\tSECONDS\n\tTestSkipped: day not today\n",
		"./none": "?   \texample.com/m/none\t[no test files]\n",
		"./bad": `--- FAIL: TestFails (SECONDS)
    bad_test.go:7: before
--- FAIL: TestFails/wrong (SECONDS)
    bad_test.go:9: this
FAIL
FAIL	example.com/m/bad	SECONDS
`,
		"./broken": `# example.com/m/broken [example.com/m/broken.test]
broken/broken_test.go:3:28: declared and not used: x
FAIL	example.com/m/broken [build failed]
`,
		"./panics": `--- FAIL: TestPanics (SECONDS)
    panics_test.go:3: before
panic: oh [recovered, repanicked]

GOROUTINES
FAIL	example.com/m/panics	SECONDS
`,
	} {
		if d := cmp.Diff(want, readable(t, goTest(t, dir, "-count=1", pattern))); d != "" {
			t.Errorf("%s (-want +got):\n%s", pattern, d)
		}
	}

	// The second result is from the cache, and is valid too.
	for _, want := range []string{"SECONDS", "(cached)"} {
		events := goTest(t, dir, "./good")
		if got, want := readable(t, events), "ok  \texample.com/m/good\t"+want+"\n\tTestSkipped: day not today\n"; got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
		checkResults(t, string(events), map[testlog.Name]testlog.Outcome{
			{Package: "example.com/m/good", Test: "TestPasses"}:           testlog.Passed,
			{Package: "example.com/m/good", Test: "TestPasses/a_subtest"}: testlog.Passed,
			{Package: "example.com/m/good", Test: "TestSkipped"}:          testlog.Skipped,
			{Package: "example.com/m/good", Test: "FuzzPasses"}:           testlog.Passed,
			{Package: "example.com/m/good", Test: "FuzzPasses/seed#0"}:    testlog.Passed,
		})
	}
	checkResults(t, string(goTest(t, dir, "./bad", "./broken", "./panics", "./none")), map[testlog.Name]testlog.Outcome{
		{Package: "example.com/m/bad", Test: "TestPasses"}:      testlog.Passed,
		{Package: "example.com/m/bad", Test: "TestFails"}:       testlog.Failed,
		{Package: "example.com/m/bad", Test: "TestFails/fine"}:  testlog.Passed,
		{Package: "example.com/m/bad", Test: "TestFails/wrong"}: testlog.Failed,
		{Package: "example.com/m/panics", Test: "TestPanics"}:   testlog.Failed,
	})
}

func checkResults(t *testing.T, events string, want map[testlog.Name]testlog.Outcome) {
	t.Helper()
	got, err := testlog.Results(strings.NewReader(events))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
}

// TestPrint_ReportsKilledRun: in an interrupted run, a test that did not end has failed.
func TestPrint_ReportsKilledRun(t *testing.T) {
	t.Parallel()
	const events = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestEnded"}
{"Action":"pass","Package":"p","Test":"TestEnded"}
{"Action":"run","Package":"p","Test":"TestHangs"}
{"Action":"output","Package":"p","Test":"TestHangs","Output":"=== RUN   TestHangs\n"}
{"Action":"output","Package":"p","Test":"TestHangs","Output":"    hangs_test.go:7: before\n"}
{"Action":"outp`
	if got, want := readable(t, []byte(events)), `{"Action":"outp    hangs_test.go:7: before`+"\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	checkResults(t, events, map[testlog.Name]testlog.Outcome{
		{Package: "p", Test: "TestEnded"}: testlog.Passed,
		{Package: "p", Test: "TestHangs"}: testlog.Failed,
	})
}

func TestResults_TheWorstOfSeveralRunsCounts(t *testing.T) {
	t.Parallel()
	const events = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"run","Package":"p","Test":"TestB"}
go: some remark
{"Action":"skip","Package":"p","Test":"TestB"}
`
	checkResults(t, events, map[testlog.Name]testlog.Outcome{
		{Package: "p", Test: "TestA"}: testlog.Failed,
		{Package: "p", Test: "TestB"}: testlog.Skipped,
	})
}

// TestResults_SecondRun: after a Rerun event, the earlier outcomes of a test and its subtests are ignored.
func TestResults_SecondRun(t *testing.T) {
	t.Parallel()
	const first = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA/sub"}
{"Action":"run","Package":"p","Test":"TestA/open"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestAB"}
{"Action":"fail","Package":"p","Test":"TestAB"}
`
	rerun, err := testlog.Rerun(testlog.Name{Package: "p", Test: "TestA"})
	if err != nil {
		t.Fatal(err)
	}
	ab := map[testlog.Name]testlog.Outcome{{Package: "p", Test: "TestAB"}: testlog.Failed}
	checkResults(t, first+string(rerun), ab) // a test that did not run has no outcome
	const second = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
`
	ab[testlog.Name{Package: "p", Test: "TestA"}] = testlog.Passed
	checkResults(t, first+string(rerun)+second, ab)
}

func TestPrint_ReportsWriteError(t *testing.T) {
	t.Parallel()
	const events = `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"ok\n"}
{"Action":"pass","Package":"p"}
`
	full := writer(func([]byte) (int, error) { return 0, errors.New("disk full") })
	if err := testlog.Print(io.Discard, full, strings.NewReader(events)); err == nil {
		t.Error("events that cannot be kept: no error")
	}
	if err := testlog.Print(full, io.Discard, strings.NewReader(events)); err == nil {
		t.Error("text that cannot be written: no error")
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func TestOutcome_HasAName(t *testing.T) {
	t.Parallel()
	for o, want := range map[testlog.Outcome]string{
		testlog.Passed: "passed", testlog.Skipped: "skipped", testlog.Failed: "failed", 0: "outcome(0)",
	} {
		if got := o.String(); got != want {
			t.Errorf("%d is %q, want %q", int(o), got, want)
		}
	}
}
