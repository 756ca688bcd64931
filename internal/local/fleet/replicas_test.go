package fleet

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/pki"
)

// TestBrokers: each broker has an address of its own, and clients have all of them.
func TestBrokers(t *testing.T) {
	for name, c := range map[string]struct {
		config  Config
		names   []string
		clients string
	}{
		"one":            {Config{}, []string{"broker"}, "url: 127.77.0.10:8090\n"},
		"three":          {Config{Brokers: 3}, []string{"broker", "broker-2", "broker-3"}, "url: 127.77.0.10:8090,127.77.0.9:8090,127.77.0.8:8090\n"},
		"three for MQTT": {Config{Brokers: 3, Transport: MQTT}, []string{"broker", "broker-2", "broker-3"}, "brokerHost: 127.77.0.10:8090,127.77.0.9:8090,127.77.0.8:8090\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Subnet, c.config.Clusters = 77, []string{"cluster1"}
			f := New(c.config)
			if diff := cmp.Diff(c.names, f.Brokers()); diff != "" {
				t.Error(diff)
			}
			if file := string(f.ConnectionFile(pki.Agent, "cluster1")); !strings.HasPrefix(file, c.clients) {
				t.Errorf("clients have %q", file)
			}
			used := map[string]string{}
			for _, program := range append([]string{HubSource, "cluster1"}, f.Brokers()...) {
				ip := f.ip(program)
				if other := used[ip]; other != "" {
					t.Errorf("%s and %s have %s", program, other, ip)
				}
				used[ip] = program
			}
		})
	}
}
