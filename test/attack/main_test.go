//go:build linux

// Package attack attacks a real broker while a well-behaved fleet uses it, and measures the effect on the
// fleet. Broker and fleet share core 0; the attacker is a process of its own on core 1. The reference is the
// same attack against a sink on core 0 that accepts and discards. README.md in this directory lists the
// measurements, and how to run one attack.
package attack

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// part is the environment variable that makes this test binary one of the processes of an attack.
const part = "HAWSER_HOSTILE_PART"

// parts are these processes. Each ends at SIGTERM, with its context.
var parts = map[string]func(ctx context.Context) error{
	"fleet":       runFleet,
	"hub":         runHub,
	"sink":        runSink,
	"slow-broker": runSlowBroker,
}

func TestMain(m *testing.M) {
	name := os.Getenv(part)
	if name == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	run, ok := parts[name]
	if !ok {
		run = func(ctx context.Context) error { return runAttack(ctx, name) }
	}
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}
