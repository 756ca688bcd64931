package main

import (
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

// TestProgram_WarnsOfItsCertificate: the broker stays ready, and reports in /readyz and by a metric that its
// certificate expires soon.
func TestProgram_WarnsOfItsCertificate(t *testing.T) {
	d := pki.Dir(t.TempDir())
	day := pki.Period{NotBefore: time.Now().Add(-23 * time.Hour), NotAfter: time.Now().Add(time.Hour)}
	if _, err := d.Init("test", pki.Starting(time.Now(), time.Hour), false); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Issue(pki.Request{Role: pki.Broker, Name: "broker", Hosts: []string{"127.0.0.1"}, Valid: day}, false); err != nil {
		t.Fatal(err)
	}
	cert := d.Cert(pki.Broker, "broker")
	p := launch(t, "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--data-dir="+t.TempDir(),
		"--tls-cert-file="+cert, "--tls-key-file="+d.Key(pki.Broker, "broker"), "--client-ca-file="+d.CACert())
	code, body := p.get("/readyz?verbose")
	if code != http.StatusOK || !strings.HasPrefix(body, "ok\ncertificates: the certificate in "+cert+" expires in ") || strings.Contains(body, "a CA") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	_, body = p.get("/metrics")
	for kind, end := range map[string]time.Time{"own": day.NotAfter, "ca": time.Now().Add(time.Hour)} {
		m := regexp.MustCompile(`hawser_certificate_not_after_timestamp_seconds\{kind="` + kind + `"\} (\S+)`).FindStringSubmatch(body)
		if m == nil {
			t.Fatalf("no metric of the certificate %s", kind)
		}
		if at, err := strconv.ParseFloat(m[1], 64); err != nil || math.Abs(at-float64(end.Unix())) > 60 {
			t.Errorf("the certificate %s expires at %s, not at %d", kind, m[1], end.Unix())
		}
	}
	p.end()
}
