package main

import (
	"bytes"
	"context"
	"encoding/base64"
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

// TestBroker_UsesTheFileAsItIsNow: with both drivers, the next attempt uses a corrected address, or a corrected
// inline certificate. Without a hub identity it does not use another address.
func TestBroker_UsesTheFileAsItIsNow(t *testing.T) {
	server := testkit.StartBroker(t, testkit.Options{Port: true})
	dir := t.TempDir()
	ca, cert, key := server.CA.Write(dir, identity.Identity{Role: identity.Agent, Name: "c1"})
	_, otherCert, otherKey := testkit.NewCA(t).Write(t.TempDir(), identity.Identity{Role: identity.Agent, Name: "c1"})
	text := func(driver, addr, cert, key string) string {
		data := func(path string) string {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return base64.StdEncoding.EncodeToString(b)
		}
		head := "url: " + addr + "\n"
		if driver == driverMQTT {
			head = "brokerHost: " + addr + "\ntopics: {sourceEvents: sources/hub/clusters/+/sourceevents, agentEvents: sources/hub/clusters/+/agentevents}\n"
		}
		return head + fmt.Sprintf("caFile: %s\nclientCertData: %s\nclientKeyData: %s\n", ca, data(cert), data(key))
	}
	for _, driver := range []string{driverGRPC, driverMQTT} {
		t.Run(driver, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "driver.yaml")
			write := func(content string) {
				t.Helper()
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			start := func(args ...string) (*broker, *bytes.Buffer) {
				t.Helper()
				write(text(driver, "127.0.0.1:1", cert, key))
				c, err := parse(t, append(args, "--cluster-name=c1", "--workload-source-driver="+driver, "--workload-source-config="+path)...)
				if err != nil {
					t.Fatal(err)
				}
				log := &bytes.Buffer{}
				b, err := c.reachBroker(prometheus.NewRegistry(), slog.New(slog.NewTextHandler(log, nil)))
				if err != nil {
					t.Fatal(err)
				}
				return b, log
			}
			try := func(b *broker, content, want string) {
				t.Helper()
				write(content)
				conn, err := b.dialer.Dial(t.Context())
				if err == nil {
					err = conn.Close()
				}
				if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
					t.Errorf("%v, want %q", err, want)
				}
			}

			b, log := start("--hub-identity=hub1")
			try(b, text(driver, "127.0.0.1:1", cert, key), "connection refused")
			try(b, text(driver, server.Addr, otherCert, otherKey), "certificate")
			try(b, text(driver, server.Addr, cert, key), "")
			if b.current().addr != server.Addr {
				t.Errorf("the present address is %s", b.current().addr)
			}
			try(b, "not: [closed", "") // the previous file stays in use
			if !strings.Contains(log.String(), "stay") {
				t.Errorf("log: %s", log)
			}

			b, log = start()
			try(b, text(driver, server.Addr, cert, key), "connection refused")
			if !strings.Contains(log.String(), "without --hub-identity this takes effect after a restart") {
				t.Errorf("log: %s", log)
			}
		})
	}
}

// TestBroker_LogsAChangedFile: a waiting session is notified when the file of either driver has changed, also
// if the files that it names have not.
func TestBroker_LogsAChangedFile(t *testing.T) {
	for driver, head := range map[string]string{
		driverGRPC: "url: 127.0.0.1:",
		driverMQTT: "topics: {sourceEvents: sources/hub/clusters/+/sourceevents, agentEvents: sources/hub/clusters/+/agentevents}\nbrokerHost: 127.0.0.1:",
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "driver.yaml")
			write := func(content string) {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(head + "1\n")
			c, err := parse(t, "--cluster-name=c1", "--insecure", "--workload-source-driver="+driver, "--workload-source-config="+path)
			if err != nil {
				t.Fatal(err)
			}
			b, err := c.reachBroker(prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- b.watch.Run(ctx) }()
			write(head + "12\n") // the new size shows the change
			<-b.watch.Changed()
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
