package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
)

// TestDialer_UsesTheFileAsItIsNow: the next attempt uses a corrected configuration file, or a corrected file of
// the MQTT broker. A flag overrides the file, as at the start. After an invalid change the previous values stay
// in use.
func TestDialer_UsesTheFileAsItIsNow(t *testing.T) {
	hub1 := identity.Identity{Role: identity.Source, Name: "hub1"}
	server := testkit.StartBroker(t, testkit.Options{Port: true, Known: []identity.Identity{hub1}})
	ca, cert, key := server.CA.Write(t.TempDir(), hub1)
	grpc := func(addr, cert string) string {
		return fmt.Sprintf("sourceID: hub1\nbroker: %s\ntls: {caFile: %s, certFile: %s, keyFile: %s}\n", addr, ca, cert, key)
	}
	mqtt := func(addr, cert string) string {
		return fmt.Sprintf("brokerHost: %s\ncaFile: %s\nclientCertFile: %s\nclientKeyFile: %s\ntopics: {sourceEvents: sources/hub1/clusters/+/sourceevents, agentEvents: sources/hub1/clusters/+/agentevents}\n", addr, ca, cert, key)
	}
	for name, c := range map[string]struct {
		text  func(addr, cert string) string
		args  func(file string) []string
		moves bool
	}{
		"grpc":      {grpc, func(file string) []string { return []string{"--config=" + file} }, true},
		"grpc flag": {grpc, func(file string) []string { return []string{"--config=" + file, "--broker=127.0.0.1:1"} }, false},
		"mqtt": {mqtt, func(file string) []string {
			return []string{"--source-id=hub1", "--transport=mqtt", "--transport-config=" + file}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file.yaml")
			write := func(content string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(c.text("127.0.0.1:1", cert))
			cfg, err := load(c.args(file)...)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			registry, logger := prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil))
			if _, err := cfg.watch(registry, logger); err != nil {
				t.Fatal(err)
			}
			d, err := cfg.dialer(registry, logger)
			if err != nil {
				t.Fatal(err)
			}
			dial := func() error {
				conn, err := d.Dial(t.Context())
				if err == nil {
					err = conn.Close()
				}
				return err
			}
			if err := dial(); err == nil {
				t.Fatal("connected without a broker")
			}
			for _, content := range []string{c.text(server.Addr, cert), "not: [closed", c.text(server.Addr, "none.crt")} {
				write(content)
				if err := dial(); (err == nil) != c.moves {
					t.Errorf("with %q: %v", content, err)
				}
			}
			if n := strings.Count(log.String(), "level=ERROR"); n < 2 {
				t.Errorf("%d errors in the log: %s", n, &log)
			}
		})
	}
}
