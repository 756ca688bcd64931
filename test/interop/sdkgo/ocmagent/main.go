// Command ocmagent is the unchanged work agent of open-cluster-management.io/sdk-go, driven by a test. It
// prints its received and sent events as JSON lines. The commands on standard input change its works. README.md
// in the directory above lists both.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/klog/v2"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/constants"

	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/console"
)

func main() {
	var a agent
	klog.InitFlags(nil)
	flag.StringVar(&a.transport, "transport", constants.ConfigTypeGRPC, "transport of sdk-go: grpc or mqtt")
	flag.StringVar(&a.config, "config", "", "file with the client configuration of sdk-go for that transport: url or brokerHost and topics, caFile, clientCertFile, clientKeyFile")
	flag.StringVar(&a.cluster, "cluster", "", "name of the managed cluster")
	flag.StringVar(&a.id, "agent-id", "", "id of the agent")
	flag.DurationVar(&a.backOff, "back-off", 100*time.Millisecond, "wait between attempts to connect, instead of sdk-go's 5 s to 2 min")
	flag.BoolVar(&a.quiet, "quiet", false, "count received events instead of printing them; a line is written for each 1,000")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	a.console = console.New(os.Stdout)
	if err := a.run(ctx, os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "stockagent: %v\n", err)
		os.Exit(1)
	}
}
