// Package cli holds the verbs of hawser, the command-line tool. Each verb is a file. A verb writes its results
// to standard output. On failure it writes the error, and a line that starts with "hint:", to standard error.
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

// Env is the environment of the verbs in their process.
type Env struct {
	Stdout, Stderr io.Writer
	// Now is the clock for the dates of certificates.
	Now func() time.Time
	// Program is the path of the program. Named kubectl-hawser it is a kubectl plugin, and its help and hints show
	// that.
	Program string
	// LookEvery is the poll interval of --watch; 0 means 2 s.
	LookEvery time.Duration
}

// plugin is the name of the file with which kubectl finds hawser.
const plugin = "kubectl-hawser"

// name returns the name with which the user calls the program.
func (e Env) name() string {
	if base := filepath.Base(e.Program); strings.HasPrefix(base, plugin) {
		return "kubectl hawser"
	}
	return program
}

// program is the default name.
const program = "hawser"

// called adapts the commands in a text so that they can be typed: hawser get works may have to be kubectl
// hawser get works.
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
	return strings.ReplaceAll(text, "kubectl "+e.name(), e.name()) // commands that already had the name
}

// Main runs the verb that args name (without the program's own name) until it returns or ctx ends. It returns
// the exit status: 0 for success, 1 for a failure, 2 for invalid arguments.
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
	// A line of an error may come from a peer; it must not look like a hint.
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

// group makes cmd a parent of the commands below, which it lists.
func group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.Args = cmdline.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(below...)
	return cmd
}

// checkArgs turns invalid arguments of root and all commands below it into usage errors.
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

// each calls f with cmd and all commands below it.
func each(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		each(c, f)
	}
}

func usageOf(cmd *cobra.Command, err error) error {
	return cmdline.Usage(hint(err, "run %s --help", cmd.CommandPath()))
}

// hintedError is an error with its remedy.
type hintedError struct {
	err  error
	hint string
}

func (e *hintedError) Error() string { return e.err.Error() }
func (e *hintedError) Unwrap() error { return e.err }

// Hint returns the remedy. Errors of other packages with a remedy have this method too.
func (e *hintedError) Hint() string { return e.hint }

// hint adds the remedy to err. Only the outermost hint is shown.
func hint(err error, format string, args ...any) error {
	return &hintedError{err: err, hint: fmt.Sprintf(format, args...)}
}
