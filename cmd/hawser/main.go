// Command hawser is the tool a person types: it makes certificates, shows the
// whole of Hawser on one machine, and tells its version. Installed as
// kubectl-hawser it is a plugin of kubectl. The verbs are in internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hawser-io/hawser/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := cli.Main(ctx, cli.Env{Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now, Program: os.Args[0]}, os.Args[1:])
	stop()
	os.Exit(status)
}
