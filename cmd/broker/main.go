// Command hawser-broker keeps the accepted state of every work and brings it to
// agents and sources over gRPC. Flags and configuration file are in config.go,
// what is started in serve.go; the broker itself is internal/broker.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
)

const program = "hawser-broker"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(os.Stdout, os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		// There is nobody left to tell if standard error is closed.
		_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(1)
	}
}

// command is the program: without a verb it serves until ctx ends.
func command(stdout, stderr io.Writer) *cobra.Command {
	cfg := defaults()
	root := cmdline.Command(program, "Keep and deliver works between hubs and clusters", stdout, stderr, func(cmd *cobra.Command) error {
		if err := cfg.load(cmd.Flags()); err != nil {
			return err
		}
		return serve(cmd.Context(), cfg, stderr)
	})
	cfg.addFlags(root.Flags())
	return root
}
