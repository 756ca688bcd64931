// Command hawser is the command-line tool: it operates a broker and a hub, makes certificates, and runs a demo
// of Hawser on one machine. Installed as kubectl-hawser it is a kubectl plugin. The verbs are in internal/cli.
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
