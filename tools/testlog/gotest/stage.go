package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/tools/testlog"
)

func start(ctx context.Context, args []string, again bool, listFile string) (passed bool, err error) {
	if len(args) == 0 {
		return false, errors.New("usage: gotest FILE [FLAG...] [PACKAGE...]")
	}
	s := stage{file: args[0], out: os.Stdout}
	if s.command, err = parse(args[1:]); err != nil {
		return false, err
	}
	text, err := os.ReadFile(listFile)
	if err == nil {
		s.flaky, err = parseList(string(text))
	}
	if err != nil {
		return false, err
	}
	return s.run(ctx, again)
}

// command is a call of go test.
type command struct{ flags, packages []string }

// parse splits arguments of go test. A flag and its value must be one word, because flags cannot be
// distinguished from packages otherwise.
func parse(args []string) (c command, err error) {
	for i, a := range args {
		name, _, hasValue := strings.Cut(a, "=")
		switch {
		case !strings.HasPrefix(a, "-"):
			c.packages = args[i:]
			return c, nil
		case hasValue || slices.Contains([]string{"-race", "-short", "-v"}, name):
			c.flags = append(c.flags, a)
		default:
			return c, fmt.Errorf("write %s=VALUE, as one word", name)
		}
	}
	return c, nil
}

func (c command) args() []string {
	return slices.Concat([]string{"test"}, c.flags, []string{"-json"}, c.packages)
}

// stage is one call of gotest.
type stage struct {
	command command
	file    string
	dir     string // working directory of go, the current one if empty
	flaky   map[testlog.Name]string
	out     io.Writer
}

// run runs the tests, and with again also the failed ones a second time.
func (s *stage) run(ctx context.Context, again bool) (passed bool, err error) {
	if err := os.MkdirAll(filepath.Dir(s.file), 0o750); err != nil {
		return false, err
	}
	if err := os.RemoveAll(s.record()); err != nil {
		return false, err
	}
	events, err := os.Create(s.file)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	passed, err = s.test(ctx, s.command, events)
	if passed || err != nil || !again || ctx.Err() != nil {
		return passed, err
	}
	return s.again(ctx, events)
}

// test runs go test and stores its events. Standard error is that of gotest.
func (s *stage) test(ctx context.Context, c command, events io.Writer) (passed bool, err error) {
	cmd := exec.CommandContext(ctx, "go", c.args()...)
	cmd.Dir, cmd.Stderr = s.dir, os.Stderr
	// At Ctrl-C go test receives the signal too, and ends after the test binaries.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return false, err
	}
	printed := testlog.Print(s.out, events, stdout)
	_ = stdout.Close() // if Print failed, go test must not wait for a reader
	ended := cmd.Wait()
	var status *exec.ExitError
	if errors.As(ended, &status) || ctx.Err() != nil {
		ended = nil
	}
	return status == nil && ctx.Err() == nil, errors.Join(printed, ended)
}
