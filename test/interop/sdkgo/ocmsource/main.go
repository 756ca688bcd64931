// Command ocmsource is the unchanged work source of open-cluster-management.io/sdk-go, driven by a test. The
// commands on standard input create, patch and delete works. It prints its sent and received events as JSON
// lines. README.md in the directory above lists both.
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
	var s source
	klog.InitFlags(nil)
	flag.StringVar(&s.transport, "transport", constants.ConfigTypeGRPC, "transport of sdk-go: grpc or mqtt")
	flag.StringVar(&s.config, "config", "", "file with the client configuration of sdk-go for that transport: url or brokerHost and topics, caFile, clientCertFile, clientKeyFile")
	flag.StringVar(&s.id, "source-id", "", "id of the source")
	flag.StringVar(&s.client, "client-id", "", "id of the client, the source's unless set")
	flag.DurationVar(&s.backOff, "back-off", 100*time.Millisecond, "wait between attempts to connect, instead of sdk-go's 5 s to 2 min")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	s.console = console.New(os.Stdout)
	if err := s.run(ctx, os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "stocksource: %v\n", err)
		os.Exit(1)
	}
}
