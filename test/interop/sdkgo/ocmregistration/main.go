// Command ocmregistration runs the unchanged clients of open-cluster-management.io/sdk-go with which a
// klusterlet registers, driven by a test. It prints their received and sent events as JSON lines, and carries
// out the commands on standard input. README.md in the directory above lists both.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/console"
)

func main() {
	var k klusterlet
	klog.InitFlags(nil)
	flag.StringVar(&k.config, "config", "", "file with the client configuration of sdk-go: url, caFile, clientCertFile, clientKeyFile or token")
	flag.StringVar(&k.cluster, "cluster", "", "name of the managed cluster, and id of the clients as in OCM")
	flag.DurationVar(&k.backOff, "back-off", 100*time.Millisecond, "wait between attempts to connect, instead of sdk-go's 5 s to 2 min")
	types := flag.String("types", "", "data types to make clients for, with commas between them; all of them without the flag")
	flag.Parse()
	if *types != "" {
		k.types = strings.Split(*types, ",")
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	k.console = console.New(os.Stdout)
	if err := k.run(ctx, os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "stockklusterlet: %v\n", err)
		os.Exit(1)
	}
}
