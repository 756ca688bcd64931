package main

import (
	"net"
	"testing"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
)

// FuzzConfig: no configuration file lets the broker serve plaintext to other machines, or gives a client the
// identity of an agent.
func FuzzConfig(f *testing.F) {
	deployfiles.Fuzz(f, "../../deploy/broker/config.yaml", []string{
		"insecure: true\nlisten: 127.0.0.1:8090\ndataDir: d\nmaxEventBytes: 1024\ndrainTimeout: 5s\nlog: {level: debug}\n",
		`{"tls": {"certFile": "c", "keyFile": "k", "clientCAFile": "a"}, "identities": [{"organization": "o", "role": "viewer", "name": "v"}]}`,
		"drainTimeout: 5\n",
		"a: &a [*a]\n",
	}, load, func(t *testing.T, c *config) {
		host, _, err := net.SplitHostPort(c.Listen)
		certified := c.TLS.CertFile != "" && c.TLS.KeyFile != "" && c.TLS.ClientCAFile != ""
		if err != nil || c.Insecure && !cmdline.Loopback(host) || !c.Insecure && !certified {
			t.Errorf("accepted: listen %q, insecure %v, TLS %+v", c.Listen, c.Insecure, c.TLS)
		}
		for _, r := range c.Identities {
			if r.Role == identity.Agent || r.Name == "" {
				t.Errorf("accepted: %+v", r)
			}
		}
		if c.DataDir == "" || c.MaxEventBytes <= 0 || c.DrainTimeout <= 0 {
			t.Errorf("accepted: %+v", c)
		}
	})
}
