package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/pki"
)

// TestBroker_WatchesTheCertificate: with either driver, the program warns that the certificate in its file
// expires soon.
func TestBroker_WatchesTheCertificate(t *testing.T) {
	d := pki.Dir(t.TempDir())
	if _, err := d.Init("test", pki.Starting(time.Now(), time.Hour), false); err != nil {
		t.Fatal(err)
	}
	day := pki.Period{NotBefore: time.Now().Add(-23 * time.Hour), NotAfter: time.Now().Add(time.Hour)}
	if _, err := d.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: day}, false); err != nil {
		t.Fatal(err)
	}
	cert := d.Cert(pki.Agent, "c1")
	files := fmt.Sprintf("caFile: %s\nclientCertFile: %s\nclientKeyFile: %s\n", d.CACert(), cert, d.Key(pki.Agent, "c1"))
	for driver, text := range map[string]string{
		driverGRPC: "url: 127.0.0.1:1\n" + files,
		driverMQTT: "brokerHost: 127.0.0.1:1\n" + files + "topics: {sourceEvents: sources/hub/clusters/c1/sourceevents, agentEvents: sources/hub/clusters/c1/agentevents}\n",
	} {
		path := filepath.Join(t.TempDir(), "driver.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := parse(t, "--cluster-name=c1", "--workload-source-driver="+driver, "--workload-source-config="+path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.reachBroker(prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(driver, err)
		}
		if err := b.watch.Check(); err == nil || !strings.Contains(err.Error(), "the certificate in "+cert+" expires in") {
			t.Errorf("%s: %v", driver, err)
		}
	}
}
