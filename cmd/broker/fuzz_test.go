package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/identity"
)

// FuzzConfig: no configuration file lets the broker serve plaintext to others
// than this machine, or gives the identity of an agent away.
func FuzzConfig(f *testing.F) {
	shipped, err := os.ReadFile("../../deploy/broker/config.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shipped)
	f.Add([]byte("insecure: true\nlisten: 127.0.0.1:8090\ndataDir: d\nmaxEventBytes: 1024\ndrainTimeout: 5s\nlog: {level: debug}\n"))
	f.Add([]byte(`{"tls": {"certFile": "c", "keyFile": "k", "clientCAFile": "a"}, "identities": [{"organization": "o", "role": "viewer", "name": "v"}]}`))
	f.Add([]byte("drainTimeout: 5\n"))
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
		host, _, err := net.SplitHostPort(c.Listen)
		ip := net.ParseIP(host)
		here := host == "localhost" || ip != nil && ip.IsLoopback()
		certified := c.TLS.CertFile != "" && c.TLS.KeyFile != "" && c.TLS.ClientCAFile != ""
		if err != nil || c.Insecure && !here || !c.Insecure && !certified {
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
