// Package cmdline is what the command lines of Hawser's long-running programs
// have in common: without a verb they serve until they are told to stop, they
// know the verb "version", and those with a configuration file read it before
// their flags, which win.
package cmdline

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/telemetry"
)

// Command returns the command of a program, without flags. serve is called
// when no verb is given; its error is the command's, which prints none itself.
func Command(name, short string, stdout, stderr io.Writer, serve func(cmd *cobra.Command) error) *cobra.Command {
	root := &cobra.Command{
		Use:               name,
		Short:             short,
		Args:              cobra.NoArgs,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return serve(cmd) },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(&cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(stdout, telemetry.Version(name))
			return err
		},
	})
	return root
}

// Main runs the command of a program until it ends or SIGINT or SIGTERM has it
// end, prints its error and returns the exit status, 0 or 1.
func Main(name string, command func(stdout, stderr io.Writer) *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(os.Stdout, os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		// There is nobody left to tell if standard error is closed.
		_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// configFlag names the file that [Load] reads.
const configFlag = "config"

// AddConfigFlag adds the flag that names the configuration file.
func AddConfigFlag(f *pflag.FlagSet) {
	f.String(configFlag, "", "configuration file (YAML); flags win over it")
}

// Load reads the file that --config names, if any, into a configuration to
// whose fields the flags of f belong, and puts the flags that were given on top.
// A field that the configuration does not have is an error.
func Load(f *pflag.FlagSet, into any) error {
	given := map[string]string{}
	f.Visit(func(flag *pflag.Flag) { given[flag.Name] = flag.Value.String() })
	if file := given[configFlag]; file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		if err := yaml.UnmarshalStrict(b, into); err != nil {
			return fmt.Errorf("configuration %s: %w", file, err)
		}
	}
	for name, value := range given {
		if err := f.Set(name, value); err != nil {
			return err
		}
	}
	return nil
}
