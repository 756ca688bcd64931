// Command lightfleet is one source and many light agents, for the parts fleet, gate and replicas of the benchmarks. A light
// agent has the connection, the session and the acknowledgements of Hawser's agent. It has no cluster: it keeps
// only the tags of its works. The benchmark controls this program over HTTP, see [fleet.handler].
//
// This package is also compiled in the checkout of commit ada167f, so it uses only what both have.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

func main() {
	var c config
	flag.StringVar(&c.addr, "addr", "", "host:port of the broker, or of several ones, separated by commas")
	flag.StringVar(&c.pki, "pki", "", "directory with the certificates")
	flag.IntVar(&c.protocol, "protocol", 0, "version of the Hawser extensions that the broker speaks")
	flag.IntVar(&c.agents, "agents", 0, "number of agents, each of one cluster")
	flag.IntVar(&c.first, "first", 0, "number of the first agent, of several light fleets")
	flag.IntVar(&c.perAddress, "per-address", 0, "number of agents behind one IP address; 0: all")
	flag.IntVar(&c.works, "works", 0, "number of works of each cluster")
	flag.IntVar(&c.bytes, "bytes", 2048, "bytes of the data of a work")
	listen := flag.String("listen", "", "host:port for the commands of the benchmark")
	flag.Parse()
	// A garbage collection here takes processor time from the broker.
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, c, *listen); err != nil {
		fmt.Fprintf(os.Stderr, "lightfleet: %v\n", err)
		os.Exit(1)
	}
}

// serve executes the commands of the benchmark until ctx ends.
func serve(ctx context.Context, c config, listen string) error {
	f, err := newFleet(c)
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: f.handler(), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = s.Close() }) // the benchmark waits for no command any more
	if err := s.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}
