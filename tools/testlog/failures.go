package testlog

import (
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Outside is the prefix of a line with which a TestMain reports a failure outside of the tests, such as a
// crashed program. A passing second run does not fix it.
const Outside = "failed outside the tests: "

// Failure is a package that go test reports as failed.
type Failure struct {
	Package string
	// Tests are the tests that explain the failure, without subtests, in the order of their start. These are failed
	// tests, and tests to which a crash of the test binary is attributed. There are none if the package was not
	// built, or if something outside of its tests failed.
	Tests []string
	// Crashed: the test binary ended during its tests, by a panic or at its time limit. Other tests did not end, or
	// never started.
	Crashed bool
	// Ended are the tests, without subtests, that ended with any outcome. Open are those that started and did not
	// end.
	Ended, Open []string
}

// Failures reads events that Print stored, and returns the failed packages, sorted by name. A package without
// an end event failed too, without an explaining test: go test was killed. The error is a read error.
func Failures(src io.Reader) ([]Failure, error) {
	packages := map[string]*run{}
	failed := map[string]bool{}
	err := each(src, func(line []byte) error {
		e, ok := parse(line)
		if !ok || e.Package == "" {
			return nil
		}
		p := packages[e.Package]
		if p == nil {
			p = &run{ended: map[string]Outcome{}, output: map[string][]string{}}
			packages[e.Package] = p
		}
		p.add(e)
		if o := outcome(e.Action); e.Test == "" && o != 0 {
			failed[e.Package] = o == Failed
		}
		return nil
	})
	var all []Failure
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		isFailed, isThere := failed[name]
		switch {
		case !isThere:
			all = append(all, Failure{Package: name})
		case isFailed:
			all = append(all, packages[name].failure(name))
		}
	}
	return all, err
}

// ends are the lines that a test binary prints when its tests ended.
var ends = []string{"FAIL\n", "PASS\n"}

// failure returns the tests that explain the failure of the package.
func (r *run) failure(name string) Failure {
	f := Failure{Package: name}
	for _, output := range r.output {
		if slices.ContainsFunc(output, func(s string) bool { return strings.HasPrefix(s, Outside) }) {
			return f
		}
	}
	failed := map[string]bool{}
	for _, t := range r.tests {
		switch {
		case strings.Contains(t, "/"):
		case r.ended[t] == 0:
			f.Open = append(f.Open, t)
		default:
			f.Ended = append(f.Ended, t)
			failed[t] = r.ended[t] == Failed
		}
	}
	f.Crashed = len(r.tests) > 0 && !slices.ContainsFunc(r.output[""], func(s string) bool { return slices.Contains(ends, s) })
	if f.Crashed {
		for _, t := range r.crashed(f.Open, failed) {
			failed[t] = true
		}
	}
	for _, t := range r.tests {
		if failed[t] && !slices.Contains(f.Tests, t) {
			f.Tests = append(f.Tests, t)
		}
	}
	return f
}

// runs matches a running test in the output of a test binary at its time limit.
var runs = regexp.MustCompile(`^\t\t((?:Test|Fuzz)[^/ ]*)\S* \(`)

// crashed returns the tests to which the end of the test binary is attributed. These are the tests that it
// names at its time limit; none if a test failed by a panic; else all open tests.
func (r *run) crashed(open []string, failed map[string]bool) (tests []string) {
	panicked := false
	for t, output := range r.output {
		for _, s := range output {
			if m := runs.FindStringSubmatch(s); m != nil {
				tests = append(tests, m[1])
			}
			top, _, _ := strings.Cut(t, "/")
			panicked = panicked || failed[top] && strings.HasPrefix(s, "panic: ")
		}
	}
	if len(tests) == 0 && !panicked {
		return open
	}
	return tests
}

// Output returns the output of a test and its subtests, in order. The error is a read error.
func Output(src io.Reader, n Name) (string, error) {
	var b strings.Builder
	err := each(src, func(line []byte) error {
		e, ok := parse(line)
		if ok && e.Action == "output" && e.Package == n.Package && (e.Test == n.Test || isBelow(e.Test, n.Test)) && !framing(e.Output) {
			b.WriteString(e.Output)
		}
		return nil
	})
	return b.String(), err
}
