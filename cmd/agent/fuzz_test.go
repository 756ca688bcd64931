package main

import (
	"log/slog"
	"net"
	"os"
	"testing"

	"github.com/hawser-io/hawser/internal/cmdline"
)

// FuzzDriver: no driver file lets the agent use plaintext to another machine, or connect without a certificate
// or a token. For an accepted file with the content of its named files, a dialer can be made, or its
// certificates are rejected.
func FuzzDriver(f *testing.F) {
	shipped, err := os.ReadFile("../../deploy/agent/config.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, insecure := range []bool{false, true} {
		f.Add(shipped, insecure)
		f.Add([]byte("url: 127.0.0.1:8090\nserverHealthinessTimeout: 20s\nkeepAliveConfig: {enable: true, time: 40s}\n"), insecure)
		f.Add([]byte(`{"url": "b:1", "caData": "Yw==", "clientCertData": "Yw==", "clientKeyData": "aw==", "mystery": [1]}`), insecure)
		f.Add([]byte("url: b:1\ntoken: t\nserverHealthinessTimeout: 5\n"), insecure)
		f.Add([]byte("a: &a [*a]\n"), insecure)
		f.Add([]byte("null"), insecure)
	}
	f.Fuzz(func(t *testing.T, b []byte, insecure bool) {
		d, err := parseDriver(b)
		if err != nil || d.validate(insecure) != nil {
			return
		}
		host, _, err := net.SplitHostPort(d.URL)
		if err != nil || insecure && !cmdline.Loopback(host) || d.HasCert() != d.HasKey() || !insecure && !d.HasCert() && !d.HasToken() {
			t.Errorf("accepted: url %q, insecure %v", d.URL, insecure)
		}
		if v := d.ServerHealthinessTimeout; v != nil && *v <= 0 {
			t.Errorf("accepted: health timeout %d", *v)
		}
		if d.CAFile != "" || d.ClientCertFile != "" || d.ClientKeyFile != "" {
			return // package identity tests the content of the files
		}
		if dialer, err := d.dialer(insecure, slog.New(slog.DiscardHandler)); (dialer == nil) == (err == nil) {
			t.Errorf("dialer %v, %v", dialer, err)
		}
	})
}
