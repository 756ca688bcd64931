// Package cmdline is the shared command line code of Hawser's long-running programs. Without a verb they serve
// until they are stopped. They print their version. Invalid arguments end them with status 2. A configuration
// file is read before the flags, which override it.
package cmdline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/telemetry"
)

// Command returns the command of a program, without flags. It calls serve if no verb is given. The command
// returns the error of serve, and does not print it.
func Command(name, short string, stdout, stderr io.Writer, serve func(cmd *cobra.Command) error) *cobra.Command {
	root := &cobra.Command{
		Use:               name,
		Short:             short,
		Version:           telemetry.Version(name),
		Args:              NoArgs,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return serve(cmd) },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	root.AddCommand(&cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(stdout, telemetry.Version(name))
			return err
		},
	})
	return root
}

// Main runs the command of a program until it ends, or until SIGINT or SIGTERM. It prints the error and returns
// the exit status: 0 for success, 1 for a failure, 2 for invalid arguments or configuration.
func Main(name string, command func(stdout, stderr io.Writer) *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(os.Stdout, os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		// If standard error is closed, the error cannot be reported.
		_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		var hinted interface{ Hint() string }
		if errors.As(err, &hinted) && hinted.Hint() != "" {
			_, _ = fmt.Fprintf(os.Stderr, "hint: %s\n", hinted.Hint())
		}
	}
	return status(err)
}

func status(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(*UsageError)):
		return 2
	}
	return 1
}

// UsageError marks an error about arguments or configuration, which the user can correct.
type UsageError struct{ err error }

// Error returns the text of the marked error.
func (e *UsageError) Error() string { return e.err.Error() }

// Unwrap returns the marked error.
func (e *UsageError) Unwrap() error { return e.err }

// Usage marks err as a usage error; it returns nil for nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{err}
}

// NoArgs rejects arguments. If an argument is the name of a verb, the error suggests it.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return Usage(fmt.Errorf("%s takes no arguments, and got %q", cmd.CommandPath(), args[0]))
	}
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		text += ": did you mean " + strings.Join(meant, " or ") + "?"
	}
	return Usage(errors.New(text))
}

// configFlag is the flag that names the file for [Load].
const configFlag = "config"

// AddConfigFlag adds the flag that names the configuration file.
func AddConfigFlag(f *pflag.FlagSet) {
	f.String(configFlag, "", "configuration file (YAML); flags win over it")
}

// Load reads the file that --config names, if any, and overrides it with the given flags. The flags of f belong
// to the fields of into. An unknown field in the file is an error.
func Load(f *pflag.FlagSet, into any) error {
	var given []func() error // sets a flag to its value again
	f.Visit(func(flag *pflag.Flag) {
		if list, ok := flag.Value.(pflag.SliceValue); ok { // setting it would append to it
			values := slices.Clone(list.GetSlice())
			given = append(given, func() error { return list.Replace(values) })
			return
		}
		value := flag.Value.String()
		given = append(given, func() error { return f.Set(flag.Name, value) })
	})
	if file := ConfigFile(f); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		if err := Decode(b, into); err != nil {
			return fmt.Errorf("configuration %s: %w", file, err)
		}
	}
	for _, again := range given {
		if err := again(); err != nil {
			return err
		}
	}
	return nil
}

// ConfigFile returns the file that --config names, "" if none.
func ConfigFile(f *pflag.FlagSet) string {
	file := f.Lookup(configFlag)
	if file == nil {
		return ""
	}
	return file.Value.String()
}

// Repeat applies the flags that were given in from to f, the flags of another configuration of the same
// program. Flags that f does not have are skipped.
func Repeat(f, from *pflag.FlagSet) (err error) {
	from.Visit(func(given *pflag.Flag) {
		if f.Lookup(given.Name) != nil {
			err = errors.Join(err, f.Set(given.Name, given.Value.String()))
		}
	})
	return err
}
