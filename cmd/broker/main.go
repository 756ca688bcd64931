// Command hawser-broker stores the accepted state of all works and delivers it to agents and sources over gRPC
// and MQTT. Flags and configuration file are in config.go, the start in serve.go. The broker itself is
// internal/broker.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
)

const program = "hawser-broker"

func main() { os.Exit(cmdline.Main(program, command)) }

// command is the program; without a verb it serves until ctx ends.
func command(stdout, stderr io.Writer) *cobra.Command {
	cfg := defaults()
	root := cmdline.Command(program, "Keep and deliver works between hubs and clusters", stdout, stderr, func(cmd *cobra.Command) error {
		if err := cfg.load(cmd.Flags()); err != nil {
			return cmdline.Usage(err)
		}
		return serve(cmd.Context(), cfg, stdout, stderr)
	})
	cfg.addFlags(root.Flags())
	return root
}
