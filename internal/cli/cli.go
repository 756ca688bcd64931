// Package cli holds the verbs of hawser, the one tool a person types. Each verb
// is a file; all of them write what they did to standard output and, when they
// fail, what failed and a line that starts with "hint:" to standard error.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// Exit statuses of [Main].
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Env is what the verbs need from the process they run in.
type Env struct {
	Stdout, Stderr io.Writer
	// Now is the clock that certificates are dated by.
	Now func() time.Time
}

// Main runs the verb that args name (without the program's own name) until it
// is done or ctx ends, and returns the exit status: 0 when it worked, 1 when it
// failed, 2 when the arguments make no sense.
func Main(ctx context.Context, env Env, args []string) int {
	root := newRoot(env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	status := exitFailed
	var usage *usageError
	if errors.As(err, &usage) {
		status = exitUsage
	}
	fmt.Fprintf(env.Stderr, "hawser: %v\n", err)
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		fmt.Fprintf(env.Stderr, "hint: %s\n", hinted.Hint())
	}
	return status
}

func newRoot(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:               "hawser",
		Short:             "Deliver ManifestWorks from a hub to its clusters",
		Args:              cobra.NoArgs,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetFlagErrorFunc(usageOf)
	root.AddCommand(newVersion(env), newPKI(env), newDemo(env), newInstall(env), newUninstall(env), newGet(env), newDoctor(env), newForget(env), newAdopt(env), newApprove(env), newDeny(env), newAllow(env), newMove(env), newMQTT(env), newStore(env))
	checkArgs(root)
	return root
}

// checkArgs makes wrong arguments of cmd and everything below it usage errors.
func checkArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageOf(c, err)
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		checkArgs(c)
	}
}

// usageError marks an error about the arguments themselves.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usageOf(cmd *cobra.Command, err error) error {
	return &usageError{hint(err, "run %s --help", cmd.CommandPath())}
}

// hintedError is an error with what the person can do about it.
type hintedError struct {
	err  error
	hint string
}

func (e *hintedError) Error() string { return e.err.Error() }
func (e *hintedError) Unwrap() error { return e.err }

// Hint is what the person can do; errors of other packages that know something
// to do have this method too.
func (e *hintedError) Hint() string { return e.hint }

// hint adds to err what to do about it. The outermost hint is the one shown.
func hint(err error, format string, args ...any) error {
	return &hintedError{err: err, hint: fmt.Sprintf(format, args...)}
}
