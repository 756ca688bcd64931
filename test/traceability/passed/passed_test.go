// Package passed checks that the tests which the pages of docs/traceability name ran and passed.
// It reads the events of `go test -json` that the stages of `make test` leave in .cache/tests.
// Therefore it is the last stage.
package passed

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/test/traceability"
	"github.com/hawser-io/hawser/tools/testlog"
)

const (
	module = "github.com/hawser-io/hawser"
	docs   = "../../../docs/traceability"
	// events is the directory with one file per stage.
	events = "../../../.cache/tests"
)

// stages are the required stages: the name of the file that each leaves, and its make target.
var stages = []struct{ name, target string }{
	{"unit", "unit"}, {"race", "race"}, {"interop", "interop"}, {"docs", "docs"}, {"hostile", "hostile"}, {"e2e", "e2e"},
	{"e2e-mqtt-mqtt", "e2e-mqtt"}, {"e2e-mqtt-mosquitto", "e2e-mqtt"}, {"e2e-replicas-grpc", "e2e-replicas"},
}

// outcomes are the results of the tests of one stage.
type outcomes map[testlog.Name]testlog.Outcome

// TestGuarantees_TestsPassed checks each page whose tests all run in make test.
func TestGuarantees_TestsPassed(t *testing.T) {
	outcomes := results(t)
	for name, page := range traceability.Pages {
		if page.Long {
			continue
		}
		markdown, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		rows, bad := traceability.Parse(string(markdown), page.Columns())
		if len(rows) == 0 || len(bad) > 0 {
			t.Fatalf("%s: %d rows, %q", name, len(rows), bad)
		}
		for _, b := range notPassed(rows, outcomes) {
			t.Errorf("%s: %s", name, b)
		}
	}
}

// results reads the events of the stages.
func results(t *testing.T) map[string]outcomes {
	t.Helper()
	all := map[string]outcomes{}
	for _, s := range stages {
		stage := s.name
		f, err := os.Open(filepath.Join(events, stage+".json"))
		if err != nil {
			t.Fatalf("%v\nrun everything: make test; or the stage alone: make %s", err, s.target)
		}
		if all[stage], err = testlog.Results(f); err != nil {
			t.Fatalf("stage %s: %v", stage, err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("stage %s of %s: %d tests", stage, info.ModTime().Format(time.DateTime), len(all[stage]))
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	return all
}

// notPassed returns the tests of the rows that did not pass in any stage, or that failed or were
// skipped in one.
func notPassed(rows []traceability.Row, results map[string]outcomes) []string {
	var bad []string
	for _, r := range rows {
		for _, n := range r.Tests {
			ran := false
			for stage, outcomes := range results {
				o, ok := outcomes[testlog.Name{Package: module + "/" + n.Dir, Test: n.Name}]
				ran = ran || ok
				if ok && o != testlog.Passed {
					bad = append(bad, fmt.Sprintf("line %d: %s: %s %s in stage %s", r.Line, r.Label, n, o, stage))
				}
			}
			if !ran {
				bad = append(bad, fmt.Sprintf("line %d: %s: %s was not run by any stage", r.Line, r.Label, n))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

func TestNotPassed(t *testing.T) {
	rows, _ := traceability.Parse("| I1 | a | b | `pkg/x TestA`, `pkg/x TestB/sub` |", 4)
	a, b := testlog.Name{Package: module + "/pkg/x", Test: "TestA"}, testlog.Name{Package: module + "/pkg/x", Test: "TestB/sub"}
	good := outcomes{a: testlog.Passed, b: testlog.Passed}
	for _, results := range []map[string]outcomes{
		{"unit": good}, {"unit": good, "race": good}, {"unit": {a: testlog.Passed}, "e2e": {b: testlog.Passed}},
	} {
		if bad := notPassed(rows, results); len(bad) > 0 {
			t.Errorf("%v: %q", results, bad)
		}
	}
	for want, results := range map[string]map[string]outcomes{
		"pkg/x TestB/sub was not run by any stage":    {"unit": {a: testlog.Passed}},
		"pkg/x TestA failed in stage race":            {"unit": good, "race": {a: testlog.Failed}},
		"pkg/x TestB/sub skipped in stage unit":       {"unit": {a: testlog.Passed, b: testlog.Skipped}, "race": good},
		"line 1: I1: pkg/x TestB/sub failed in stage": {"unit": {a: testlog.Passed, b: testlog.Failed}},
	} {
		if bad := notPassed(rows, results); len(bad) != 1 || !strings.Contains(bad[0], want) {
			t.Errorf("found %q, want %q", bad, want)
		}
	}
}
