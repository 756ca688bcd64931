// Package cli holds the verbs of hawser, the one tool a person types. Each verb
// is a file; all of them write what they did to standard output and, when they
// fail, what failed and a line that starts with "hint:" to standard error.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/telemetry"
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
	// Program is the path of the program. As kubectl-hawser it is a plugin of kubectl, and
	// its help and hints say so.
	Program string
	// LookEvery is how often --watch asks the broker; 0 means every two seconds.
	LookEvery time.Duration
}

// plugin is the name of the file by which kubectl finds hawser.
const plugin = "kubectl-hawser"

// name is how the program is called by who uses it.
func (e Env) name() string {
	if base := filepath.Base(e.Program); strings.HasPrefix(base, plugin) {
		return "kubectl hawser"
	}
	return program
}

// program is the usual name.
const program = "hawser"

// called makes the commands in a text such that can be typed: hawser get works may have to
// be kubectl hawser get works.
func (e Env) called(root *cobra.Command, text string) string {
	if runByMake() {
		text = strings.ReplaceAll(text, program+" demo --help", "make demo ARGS=--help")
	}
	if e.name() == program {
		return text
	}
	for _, c := range root.Commands() {
		text = strings.ReplaceAll(text, program+" "+c.Name(), e.name()+" "+c.Name())
	}
	return strings.ReplaceAll(text, "kubectl "+e.name(), e.name()) // what had the name already
}

// Main runs the verb that args name (without the program's own name) until it
// is done or ctx ends, and returns the exit status: 0 when it worked, 1 when it
// failed, 2 when the arguments make no sense.
func Main(ctx context.Context, env Env, args []string) int {
	env.Stdout, env.Stderr = telemetry.PrintableWriter{W: env.Stdout}, telemetry.PrintableWriter{W: env.Stderr}
	root := newRoot(env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	status := exitFailed
	if errors.As(err, new(*cmdline.UsageError)) {
		status = exitUsage
	}
	// A line of an error, which a peer may have said, is no hint of ours.
	tame := strings.NewReplacer("\nhint:", "\n  hint:")
	fmt.Fprintf(env.Stderr, "%s: %s\n", program, tame.Replace(err.Error()))
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) && hinted.Hint() != "" {
		fmt.Fprintf(env.Stderr, "hint: %s\n", tame.Replace(env.called(root, hinted.Hint())))
	}
	return status
}

func newRoot(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:           program,
		Short:         "Deliver ManifestWorks from a hub to its clusters",
		Version:       telemetry.Version(program),
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: env.name()},
		Args:          cmdline.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetFlagErrorFunc(usageOf)
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newVersion(env), newPKI(env), newDemo(env), newInstall(env), newUninstall(env), newGet(env), newDoctor(env), newCheck(env), newForceDelete(env), newUnbind(env), newTransfer(env), newApprove(env), newResolve(env), newDeny(env), newAllow(env), newReject(env), newToken(env), newJoin(env), newAccept(env), newDetach(env), newRotate(env), newHubIdentity(env), newMQTT(env), newStore(env))
	checkArgs(root)
	each(root, func(c *cobra.Command) { c.Long = env.called(root, c.Long) })
	each(root, giveOnce)
	return root
}

// group is a command for those below it, which it lists.
func group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.Args = cmdline.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(below...)
	return cmd
}

// checkArgs makes wrong arguments of cmd and everything below it usage errors.
func checkArgs(root *cobra.Command) {
	each(root, func(cmd *cobra.Command) {
		check := cmd.Args
		if check == nil {
			return
		}
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageOf(c, err)
			}
			return nil
		}
	})
}

// each calls f with cmd and everything below it.
func each(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		each(c, f)
	}
}

func usageOf(cmd *cobra.Command, err error) error {
	return cmdline.Usage(hint(err, "run %s --help", cmd.CommandPath()))
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
