// Command ocmbroker is the unchanged gRPC broker of open-cluster-management.io/sdk-go, over works in memory,
// driven by a test. The commands on standard input let it keep and send events. It prints the events that
// agents publish as JSON lines. README.md in the directory above lists both.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/console"
)

func main() {
	var b broker
	klog.InitFlags(nil)
	flag.StringVar(&b.listen, "listen", "127.0.0.1:0", "address to listen on; port 0 takes a free one, printed in the first line of output")
	flag.StringVar(&b.cert, "cert", "", "file with the serving certificate; without it the port is plaintext")
	flag.StringVar(&b.key, "key", "", "file with the key of the certificate")
	flag.StringVar(&b.clientCA, "client-ca", "", "file with the authority that clients' certificates must be from")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	b.console = console.New(os.Stdout)
	if err := b.run(ctx, os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "stockbroker: %v\n", err)
		os.Exit(1)
	}
}
