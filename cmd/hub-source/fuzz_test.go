package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
)

// FuzzConfig: no configuration file lets the source talk in plaintext to another
// machine, or run without a name.
func FuzzConfig(f *testing.F) {
	shipped, err := os.ReadFile("../../deploy/hub-source/config.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shipped)
	f.Add([]byte("sourceID: hub\nbroker: 127.0.0.1:8090\ninsecure: true\nleaderElection: {enabled: false}\nkubeAPIQPS: 1\n"))
	f.Add([]byte(`{"sourceID": "hub", "broker": "b:1", "tls": {"certFile": "c", "keyFile": "k"}, "clusterSelector": "region in (eu,us)"}`))
	f.Add([]byte("leaderElection: {leaseDuration: 15, renewDeadline: 10s}\n"))
	f.Add([]byte("sourceID: hub\nbroker: 127.0.0.1:8090\ninsecure: true\nwebhook: {listen: ':9443', certFile: c, keyFile: k, manifestLimit: 1}\nfeatureGates: {NilExecutorValidating: true}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	file := filepath.Join(f.TempDir(), "config.yaml")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c := defaults()
		flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
		c.addFlags(flags)
		if err := flags.Parse([]string{"--config", file}); err != nil {
			t.Fatal(err)
		}
		if c.load(flags) != nil {
			return
		}
		host, _, err := net.SplitHostPort(c.Broker)
		ip := net.ParseIP(host)
		here := host == "localhost" || ip != nil && ip.IsLoopback()
		if err != nil || c.SourceID == "" || c.Insecure && !here || !c.Insecure && (c.TLS.CertFile == "" || c.TLS.KeyFile == "") {
			t.Errorf("accepted: source %q, broker %q, insecure %v, TLS %+v", c.SourceID, c.Broker, c.Insecure, c.TLS)
		}
		if h := c.Webhook; h.Listen != "" && (h.CertFile == "" || h.KeyFile == "") || h.Listen == "" && c.FeatureGates.Enabled(gateNilExecutor) ||
			h.ManifestLimit < 1 || h.ManifestLimit > 512000 {
			t.Errorf("accepted: webhook %+v, gates %s", h, c.FeatureGates.String())
		}
		if e := c.LeaderElection; c.KubeAPIQPS <= 0 || c.KubeAPIBurst <= 0 || e.Enabled && (e.RetryPeriod <= 0 || e.RenewDeadline >= e.LeaseDuration) {
			t.Errorf("accepted: %+v", c)
		}
	})
}
