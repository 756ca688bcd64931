package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestBroker_ThroughAProxy: with either driver the flag overrides the file, and the file the environment. No
// program listens at these proxies; the error names the proxy that was used.
func TestBroker_ThroughAProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:3")
	t.Setenv("NO_PROXY", "")
	topics := "topics: {sourceEvents: sources/hub/clusters/c1/sourceevents, agentEvents: sources/hub/clusters/c1/agentevents}\n"
	for driver, text := range map[string]string{driverGRPC: "url: 127.0.0.1:1\n", driverMQTT: "brokerHost: 127.0.0.1:1\n" + topics} {
		for name, c := range map[string]struct{ file, flag, want, doctor string }{
			"file": {"proxy: http://u:secret@127.0.0.1:2\n", "", "through the proxy http://u:xxxxx@127.0.0.1:2: ", "proxy: the proxy http://u:xxxxx@127.0.0.1:2 cannot be used"},
			"flag": {"proxy: http://u:secret@127.0.0.1:2\n", "http://127.0.0.1:4", "through the proxy http://127.0.0.1:4: ", "proxy: the proxy http://127.0.0.1:4 cannot be used"},
			"none": {"proxy: http://u:secret@127.0.0.1:2\n", "none", "dial tcp 127.0.0.1:1: ", "tcp: no program listens at 127.0.0.1:1"},
		} {
			path := driverFile(t, files(t), text+c.file)
			cfg, err := parse(t, "--cluster-name=c1", "--namespace=hawser", "--insecure", "--workload-source-driver="+driver, "--workload-source-config="+path, "--proxy="+c.flag)
			if err != nil {
				t.Fatal(err)
			}
			b, err := cfg.reachBroker(prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(driver, name, err)
			}
			if _, err := b.dialer.Dial(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v, want %q", driver, name, err, c.want)
			}
			w, err := cfg.way(t.Context(), time.Second)
			if err != nil {
				t.Fatal(driver, name, err)
			}
			if err := w.Walk(t.Context(), func(string, string) {}); err == nil || !strings.Contains(err.Error(), c.doctor) {
				t.Errorf("%s, %s: the doctor reports %v, want %q", driver, name, err, c.doctor)
			}
		}
	}
}

func TestBroker_RejectsInvalidProxy(t *testing.T) {
	if _, err := parse(t, "--cluster-name=c1", "--proxy=proxy.example:3128"); err == nil || !strings.Contains(err.Error(), "http://proxy.example:3128") {
		t.Errorf("flag: %v", err)
	}
	path := driverFile(t, files(t), "url: 127.0.0.1:1\nproxy: ftp://u:secret@proxy\n")
	if _, err := readDriver(flagSource, path, true); err == nil || !strings.Contains(err.Error(), "http://proxy.example:3128") || strings.Contains(err.Error(), "secret") {
		t.Errorf("file: %v", err)
	}
}
