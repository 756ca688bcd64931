// Command hawser-agent applies the works of one managed cluster and reports their status. Flags are in
// config.go, the configuration file of the broker connection in driver.go, the start in serve.go. The agent
// itself is pkg/agent.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
)

const program = "hawser-agent"

func main() { os.Exit(cmdline.Main(program, command)) }

// command is the program; without a verb it serves until ctx ends.
func command(stdout, stderr io.Writer) *cobra.Command {
	cfg := defaults()
	root := cmdline.Command(program, "Apply the works of this cluster, keep them, and report their status", stdout, stderr, func(cmd *cobra.Command) error {
		if err := cfg.validate(); err != nil {
			return cmdline.Usage(err)
		}
		return serve(cmd.Context(), cfg, stderr)
	})
	cfg.addFlags(root.Flags())
	root.AddCommand(newDoctor(stdout))
	return root
}
