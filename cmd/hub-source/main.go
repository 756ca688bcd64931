// Command hawser-hub-source publishes the ManifestWorks of a hub to the broker and writes their status back.
// Flags and configuration file are in config.go, the start in serve.go. The rest is internal/hubsource.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
)

const program = "hawser-hub-source"

func main() { os.Exit(cmdline.Main(program, command)) }

// command is the program; without a verb it serves until ctx ends.
func command(stdout, stderr io.Writer) *cobra.Command {
	cfg := defaults()
	root := cmdline.Command(program, "Deliver the ManifestWorks of a hub through a broker", stdout, stderr, func(cmd *cobra.Command) error {
		if err := cfg.load(cmd.Flags()); err != nil {
			return cmdline.Usage(err)
		}
		return serve(cmd.Context(), cfg, stderr)
	})
	cfg.addFlags(root.Flags())
	root.AddCommand(newDoctor(stdout))
	return root
}
