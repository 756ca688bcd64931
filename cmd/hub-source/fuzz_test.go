package main

import (
	"net"
	"testing"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
)

// FuzzConfig: no configuration file lets the source use plaintext to another machine, or run without a source
// id.
func FuzzConfig(f *testing.F) {
	deployfiles.Fuzz(f, "../../deploy/hub-source/config.yaml", []string{
		"sourceID: hub\nbroker: 127.0.0.1:8090\ninsecure: true\nleaderElection: {enabled: false}\nkubeAPIQPS: 1\n",
		`{"sourceID": "hub", "broker": "b:1", "tls": {"certFile": "c", "keyFile": "k"}, "clusterSelector": "region in (eu,us)"}`,
		"leaderElection: {leaseDuration: 15, renewDeadline: 10s}\n",
		"sourceID: hub\nbroker: 127.0.0.1:8090\ninsecure: true\nwebhook: {listen: ':9443', certFile: c, keyFile: k, manifestLimit: 1}\nfeatureGates: {NilExecutorValidating: true}\n",
		"a: &a [*a]\n",
	}, load, func(t *testing.T, c *config) {
		host, _, err := net.SplitHostPort(c.Broker)
		if err != nil || c.SourceID == "" || c.Insecure && !cmdline.Loopback(host) || !c.Insecure && (c.TLS.CertFile == "" || c.TLS.KeyFile == "") {
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
