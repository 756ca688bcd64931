// Package testlog reads the events of `go test -json`. Print turns them back
// into what `go test` prints without that flag while it keeps them in a file;
// Results reads such a file and tells what became of each test. So one run of
// the tests serves the person in front of it and the check of docs/guarantees.md.
// Failures and Said tell tools/testlog/gotest which tests to run again, and what they printed.
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

// Outcome is what became of a test, the worst last.
type Outcome int

// The outcomes. A test that began and never ended counts as failed.
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

// rerun is the action of an event that go test does not know: the earlier events
// of a test and its subtests are void, and only those behind it count.
const rerun = "rerun"

// Rerun returns the event with which the second run of a test begins; see [Results].
func Rerun(n Name) ([]byte, error) {
	b, err := json.Marshal(struct{ Action, Package, Test string }{rerun, n.Package, n.Test})
	return append(b, '\n'), err
}

// Results reads a file that Print kept: the outcome of each test in it, the
// worst one where a test ran several times. Of a test with an event of Rerun
// only the events behind that count: a subtest that did not run again has no
// outcome. Lines that are no events say nothing about a test. The error is one of
// reading.
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

// isBelow tells whether a test is a subtest of another, at any depth.
func isBelow(test, top string) bool { return strings.HasPrefix(test, top+"/") }

// outcome is what an action says about a test, 0 when nothing.
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

// Print copies the events of src to keep, line by line, and writes to dst what
// `go test` without -json writes: one line for each package and, for a package
// that failed, what its failed tests said. Below the line of a package that
// passed stand the attributes of its tests (see [testing.T.Attr]). It returns
// when src ends. The error is one of reading or writing; that tests failed is
// none.
func Print(dst, keep io.Writer, src io.Reader) error {
	packages := map[string]*run{}
	err := each(src, func(line []byte) error {
		if _, err := keep.Write(line); err != nil {
			return err
		}
		e, ok := parse(line)
		switch {
		case !ok: // neither a build nor a test said it
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
	tests []string // in the order in which they began
	ended map[string]Outcome
	// output is what each test printed; under "" is what belongs to none.
	output map[string][]string
	// attributes are those that tests set, as lines.
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

// text is what a person reads about the package.
func (r *run) text(o Outcome) string {
	var b strings.Builder
	if o != Failed {
		// Above the line of the package stands what programs and TestMain print,
		// which go test shows with -v only.
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

// framing tells whether a line only says which test the next lines belong to.
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

// each calls f with each line, its end included. Lines have any length.
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
