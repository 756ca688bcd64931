package cmdline

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mainProcess has the arguments of the process that the container was started for.
const mainProcess = "/proc/1/cmdline"

// Doctor returns the verb doctor of a program, with the program's flags and those that flags adds. walk is
// called with the timeout of each step. Without flags it uses those of the program that runs in its container,
// so kubectl exec needs no shell and no flags.
func Doctor(program, long string, flags func(*pflag.FlagSet), walk func(cmd *cobra.Command, step time.Duration) error) *cobra.Command {
	var step time.Duration
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check the connections of this program step by step, and report the first failure", Long: long, Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := cmd.Flags()
			given := f.NFlag()
			if f.Changed("timeout") {
				given--
			}
			if given == 0 {
				if err := f.Parse(argumentsOf(mainProcess, program)); err != nil {
					return Usage(err)
				}
			}
			return walk(cmd, step)
		},
	}
	flags(cmd.Flags())
	cmd.Flags().DurationVar(&step, "timeout", 20*time.Second, "timeout of each step")
	return cmd
}

// argumentsOf returns the arguments of a process, or nil if it does not run this program.
func argumentsOf(process, program string) []string {
	text, err := os.ReadFile(process)
	if err != nil { // for instance, the system has no /proc
		return nil
	}
	args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	if filepath.Base(args[0]) != program {
		return nil
	}
	return args[1:]
}
