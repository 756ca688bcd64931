package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/tools/testlog"
)

// again runs the failed tests again, one package after the other, until one fails again. It runs nothing if a
// failure cannot be fixed by a second run.
func (s *stage) again(ctx context.Context, events io.Writer) (passed bool, err error) {
	failures, err := s.failures()
	if err != nil {
		return false, err
	}
	if why := s.final(failures); why != "" {
		_, err := fmt.Fprintln(s.out, why+": nothing is run again")
		return false, err
	}
	for _, f := range failures {
		if passed, err = s.pass(ctx, f, events); !passed || err != nil {
			return false, err
		}
	}
	return true, nil
}

// failures returns the failed packages of the first run.
func (s *stage) failures() ([]testlog.Failure, error) {
	first, err := os.Open(s.file)
	if err != nil {
		return nil, err
	}
	all, err := testlog.Failures(first)
	return all, errors.Join(err, first.Close())
}

// final returns why the failures are not run again, or "".
func (s *stage) final(all []testlog.Failure) string {
	if len(all) == 0 {
		return "go test failed outside the tests"
	}
	for _, f := range all {
		if len(f.Tests) == 0 {
			return f.Package + " failed, and none of its tests explains it"
		}
		for _, t := range f.Tests {
			if cause, ok := s.flaky[testlog.Name{Package: f.Package, Test: t}]; ok {
				return fmt.Sprintf("%s %s is listed in test/flaky.txt (%s)", f.Package, t, cause)
			}
		}
	}
	return ""
}

// pass runs the tests of one package again, and reports whether all passed. After a crash it also runs the
// tests that the crash prevented.
func (s *stage) pass(ctx context.Context, f testlog.Failure, events io.Writer) (bool, error) {
	first, err := os.ReadFile(s.file)
	if err == nil {
		_, err = fmt.Fprintf(s.out, "again, alone: %s %s\n", f.Package, strings.Join(f.Tests, " "))
	}
	if err == nil {
		err = begin(events, f)
	}
	if err != nil {
		return false, err
	}
	var second bytes.Buffer
	passed, err := s.test(ctx, s.command.alone(f), io.MultiWriter(events, &second))
	if passed && err == nil {
		passed, err = s.each(f, second.Bytes())
	}
	if passed && err == nil && f.Crashed {
		passed, err = s.test(ctx, s.command.rest(f), events)
	}
	if passed && err == nil {
		err = s.print(f, first, second.Bytes())
	}
	return passed && err == nil, err
}

// begin invalidates the outcomes of the tests that run again.
func begin(events io.Writer, f testlog.Failure) error {
	for _, t := range slices.Concat(f.Tests, f.Open) {
		e, err := testlog.Rerun(testlog.Name{Package: f.Package, Test: t})
		if err == nil {
			_, err = events.Write(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each reports whether all tests of a failure passed. A skipped or missing test did not pass.
func (s *stage) each(f testlog.Failure, events []byte) (bool, error) {
	results, err := testlog.Results(bytes.NewReader(events))
	if err != nil {
		return false, err
	}
	for _, t := range f.Tests {
		if results[testlog.Name{Package: f.Package, Test: t}] != testlog.Passed {
			_, err := fmt.Fprintf(s.out, "%s %s did not pass\n", f.Package, t)
			return false, err
		}
	}
	return true, nil
}

// alone returns the command that runs only the tests of a failure.
func (c command) alone(f testlog.Failure) command {
	flags := slices.DeleteFunc(slices.Clone(c.flags), func(f string) bool {
		return slices.Contains([]string{"-run", "-count", "-p", "-parallel"}, nameOf(f))
	})
	return command{append(flags, "-count=1", "-p=1", "-parallel=1", "-failfast=true", "-run="+pattern(f.Tests)), []string{f.Package}}
}

// rest returns the command that runs the tests that a crash prevented, without those that ran alone.
func (c command) rest(f testlog.Failure) command {
	flags, skip := slices.Clone(c.flags), pattern(slices.Concat(f.Ended, f.Tests))
	if i := slices.IndexFunc(flags, func(f string) bool { return nameOf(f) == "-skip" }); i >= 0 {
		_, skipped, _ := strings.Cut(flags[i], "=")
		flags, skip = slices.Delete(flags, i, i+1), skipped+"|"+skip
	}
	return command{append(flags, "-count=1", "-skip="+skip), []string{f.Package}}
}

func nameOf(flag string) string {
	name, _, _ := strings.Cut(flag, "=")
	return name
}

// pattern returns a regular expression that matches these tests.
func pattern(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// record is the file with the flaky tests of the stage, which .ci/stages prints.
func (s *stage) record() string {
	name := strings.TrimSuffix(filepath.Base(s.file), ".json")
	return filepath.Join(filepath.Dir(s.file), "flaky", name+".txt")
}

// print records the tests of a failure as flaky, with the output of both runs.
func (s *stage) print(f testlog.Failure, first, second []byte) error {
	var b strings.Builder
	for _, t := range f.Tests {
		n := testlog.Name{Package: f.Package, Test: t}
		failed, err := testlog.Output(bytes.NewReader(first), n)
		passed, err2 := testlog.Output(bytes.NewReader(second), n)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		fmt.Fprintf(&b, "FLAKY %s %s\n  it failed:\n%s  it passed when it was run again:\n%s", n.Package, n.Test, indent(failed), indent(passed))
		if _, err := fmt.Fprintf(s.out, "FLAKY %s %s: see %s\n", n.Package, n.Test, s.record()); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(s.record()), 0o750); err != nil {
		return err
	}
	file, err := os.OpenFile(s.record(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(b.String())
	return errors.Join(err, file.Close())
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("    " + strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String()
}

// listed matches a line of test/flaky.txt.
var listed = regexp.MustCompile(`^(\S+) ((?:Test|Fuzz)\w*) — (\S.*)$`)

// parseList returns the causes of test/flaky.txt by test.
func parseList(text string) (map[testlog.Name]string, error) {
	list := map[testlog.Name]string{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := listed.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("test/flaky.txt: line %d: %q is not `package TestName — cause`", number, line)
		}
		n := testlog.Name{Package: m[1], Test: m[2]}
		if _, ok := list[n]; ok {
			return nil, fmt.Errorf("test/flaky.txt: line %d: %s %s is there twice", number, n.Package, n.Test)
		}
		list[n] = m[3]
	}
	return list, nil
}
