// Package testlog reads the events of `go test -json`. Print converts them back to the output of `go test`
// without that flag, and stores them in a file. Results reads such a file and returns the outcome of each test.
// So one test run serves both its user and the check of docs/traceability. With Failures and Output,
// tools/testlog/gotest selects the tests to run again and prints their output.
package testlog

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action  string
	Package string
	// Test is empty in events about the whole package.
	Test   string
	Output string
	// Key and Value are those of an attribute that a test set.
	Key, Value string
	// ImportPath is the package in events of a build.
	ImportPath string
}

// Outcome is the outcome of a test, the worst last.
type Outcome int

// The outcomes. A test that started and never ended counts as failed.
const (
	Passed Outcome = iota + 1
	Skipped
	Failed
)

// String returns the word for an outcome.
func (o Outcome) String() string {
	switch o {
	case Passed:
		return "passed"
	case Skipped:
		return "skipped"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("outcome(%d)", int(o))
}

// Name names a test, a fuzz target or, with slashes in Test, a subtest.
type Name struct {
	// Package is the import path.
	Package, Test string
}

// rerun is the action of an event that go test does not have. It invalidates the earlier events of a test and
// its subtests.
const rerun = "rerun"

// Rerun returns the event with which the second run of a test begins; see [Results].
func Rerun(n Name) ([]byte, error) {
	b, err := json.Marshal(struct{ Action, Package, Test string }{rerun, n.Package, n.Test})
	return append(b, '\n'), err
}

// Results reads a file that Print stored and returns the outcome of each test, the worst one if a test ran
// several times. After a Rerun event only the later events of that test count; a subtest that did not run again
// has no outcome. Lines that are no events are ignored. The error is a read error.
func Results(src io.Reader) (map[Name]Outcome, error) {
	results := map[Name]Outcome{}
	running := map[Name]int{}
	err := each(src, func(line []byte) error {
		e, ok := parse(line)
		n := Name{e.Package, e.Test}
		o := outcome(e.Action)
		switch {
		case !ok || n.Test == "":
		case e.Action == rerun:
			forget(results, n)
			forget(running, n)
		case e.Action == "run":
			running[n]++
		case o != 0:
			running[n]--
			results[n] = max(results[n], o)
		}
		return nil
	})
	for n, count := range running {
		if count > 0 {
			results[n] = Failed
		}
	}
	return results, err
}

// forget removes a test and its subtests.
func forget[V any](of map[Name]V, n Name) {
	maps.DeleteFunc(of, func(m Name, _ V) bool { return m == n || m.Package == n.Package && isBelow(m.Test, n.Test) })
}

// isBelow reports whether a test is a subtest of another, at any depth.
func isBelow(test, top string) bool { return strings.HasPrefix(test, top+"/") }

// outcome returns the outcome of an action, 0 if it has none.
func outcome(action string) Outcome {
	switch action {
	case "pass":
		return Passed
	case "skip":
		return Skipped
	case "fail":
		return Failed
	}
	return 0
}

// Print copies the events of src to keep, line by line, and writes the output of `go test` without -json to
// dst. That is one line for each package and, for a failed package, the output of its failed tests. The
// attributes of tests follow the line of a passed package (see [testing.T.Attr]). Print returns when src ends.
// The error is a read or write error; failed tests are no error.
func Print(dst, keep io.Writer, src io.Reader) error {
	packages := map[string]*run{}
	err := each(src, func(line []byte) error {
		if _, err := keep.Write(line); err != nil {
			return err
		}
		e, ok := parse(line)
		switch {
		case !ok: // neither from a build nor from a test
			_, err := dst.Write(line)
			return err
		case e.Package == "":
			_, err := io.WriteString(dst, e.Output)
			return err
		}
		p := packages[e.Package]
		if p == nil {
			p = &run{ended: map[string]Outcome{}, output: map[string][]string{}}
			packages[e.Package] = p
		}
		p.add(e)
		if e.Test != "" || outcome(e.Action) == 0 {
			return nil
		}
		delete(packages, e.Package)
		_, err := io.WriteString(dst, p.text(outcome(e.Action)))
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) { // go test was killed
		if _, err := io.WriteString(dst, packages[name].text(Failed)); err != nil {
			return err
		}
	}
	return nil
}

// run is the run of one package's tests.
type run struct {
	tests []string // in the order of their start
	ended map[string]Outcome
	// output is the output of each test; "" has the output of no test.
	output map[string][]string
	// attributes are the attributes that tests set, as lines.
	attributes []string
}

func (r *run) add(e event) {
	switch {
	case e.Action == "output":
		r.output[e.Test] = append(r.output[e.Test], e.Output)
	case e.Action == "attr":
		r.attributes = append(r.attributes, fmt.Sprintf("\t%s: %s %s\n", e.Test, e.Key, e.Value))
	case e.Action == "run":
		r.tests = append(r.tests, e.Test)
	case e.Test != "":
		r.ended[e.Test] = max(r.ended[e.Test], outcome(e.Action))
	}
}

// text returns the printed text about the package.
func (r *run) text(o Outcome) string {
	var b strings.Builder
	if o != Failed {
		// The output of programs and TestMain precedes the line of the package; go test shows it only with -v.
		if message := r.output[""]; len(message) > 0 {
			b.WriteString(message[len(message)-1])
		}
		for _, a := range r.attributes {
			b.WriteString(a)
		}
		return b.String()
	}
	shown := map[string]bool{}
	for _, t := range r.tests {
		if end := r.ended[t]; shown[t] || end == Passed || end == Skipped {
			continue
		}
		shown[t] = true
		output := slices.DeleteFunc(r.output[t], framing)
		isEnd := func(s string) bool { return strings.HasPrefix(strings.TrimLeft(s, " "), "--- FAIL: "+t+" ") }
		for _, s := range output {
			if isEnd(s) {
				b.WriteString(s)
			}
		}
		for _, s := range output {
			if !isEnd(s) {
				b.WriteString(s)
			}
		}
	}
	for _, s := range r.output[""] {
		b.WriteString(s)
	}
	return b.String()
}

// framing reports whether a line only names the test of the next lines.
func framing(line string) bool {
	for _, p := range []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME ", "=== ATTR "} {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}

func parse(line []byte) (e event, ok bool) {
	err := json.Unmarshal(line, &e)
	return e, err == nil
}

// each calls f with each line, including its end. Lines may have any length.
func each(src io.Reader, f func(line []byte) error) error {
	r := bufio.NewReader(src)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			if err := f(line); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
