// Command bench measures Hawser on this machine, beside the limits of the machine: one fdatasync, and a bare
// gRPC echo with the same TLS. Each value is measured five times in one run, limits and product side by side.
// The table shows median [least–most]. README.md describes the measurements.
//
//	make bench            the table
//	make bench CHECK=1    and a failure where a target is missed
//	make bench ONLY=works only what many works cost on one cluster
//	make bench ONLY=mqtt  only MQTT beside gRPC
//	make bench ONLY=registration  only clusters that join, which come last
//	make bench ONLY=fleet what the broker needs for a light fleet, beside commit ada167f
//	make bench ONLY=replicas what three brokers over one database need, lose and delay
//	make bench ONLY=postgres publishes in a database beside those in the embedded store
//	make bench ONLY=gate  five minutes beside the commit before, or BASE=commit
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

func main() {
	check := flag.Bool("check", false, "fail where a ratio misses its target")
	only := flag.String("only", "", "measure one part only: "+partCore+" (broker and delivery), "+partWorks+" (many works on one cluster), "+partMQTT+" (MQTT beside gRPC), "+partRegistration+" (clusters that join), "+partFleet+" (a light fleet beside commit "+oldest+"), "+partReplicas+" (three brokers over one database), "+partPostgres+" (publishes in a database) or "+partGate+" (beside the commit before)")
	clusters := flag.Int("clusters", 10000, "how many clusters join")
	idle := flag.Duration("idle", defaultIdle, "how long the fleet rests before its memory is read")
	agents := flag.Int("agents", 5000, "how many agents the light fleet has")
	works := flag.Int("works", 20, "how many works each of them has")
	base := flag.String("base", beforeThis, "commit that the gate compares with")
	ownAgents := flag.Bool("own-agents", false, "give the broker of another commit agents with the client code of that commit")
	echoDir := flag.String("serve-echo", "", "internal: serve the bare echo with the certificates of this directory")
	echoAddr := flag.String("echo-addr", "", "internal: where to serve it")
	flag.Parse()
	// The garbage collection of this program must not count as cost of the broker. With 3,000 sessions it has as
	// many connections.
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := func() error {
		if *echoDir != "" {
			return serveEcho(ctx, *echoDir, *echoAddr)
		}
		return run(ctx, options{check: *check, only: *only, idle: *idle, clusters: *clusters, fleet: size{*agents, *works}, base: *base, ownAgents: *ownAgents})
	}()
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}
