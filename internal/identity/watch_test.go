package identity

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
)

const day = 24 * time.Hour

// watched is a program in a synctest bubble whose certificates the test renews.
type watched struct {
	side
	log   syncbuffer.Buffer
	watch *Watch
	more  string
}

func newWatched(t *testing.T, own, ca time.Duration) *watched {
	w := &watched{side: side{t, t.TempDir()}}
	w.issue(own, ca)
	w.more = filepath.Join(w.dir, "config.yaml")
	w.write("config.yaml", []byte("a: b"))
	f := w.files()
	var err error
	w.watch, err = NewWatch(WatchConfig{
		Read: func() (Driver, error) { return Driver{CAFile: f.CA, ClientCertFile: f.Cert, ClientKeyFile: f.Key}, nil },
		Also: []string{w.more}, Log: slog.New(slog.NewTextHandler(&w.log, nil)), Registry: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// run runs the watch in a goroutine.
func (w *watched) run() { go func() { _ = w.watch.Run(w.t.Context()) }() } // Run returns nil

// pass lets time pass. The watch checks every hour, which costs less than its interval.
func (w *watched) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); w.after(time.Hour) {
		w.watch.look(w.t.Context())
		w.watch.warn(w.t.Context(), time.Now())
	}
}

// issue writes a certificate and its CA, whose validity begins now.
func (w *watched) issue(own, ca time.Duration) {
	w.t.Helper()
	a, err := pki.NewAuthority("ca", pki.Starting(time.Now(), ca))
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := a.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: pki.Starting(time.Now(), own)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("ca.crt", a.CertificatePEM())
	w.write("tls.crt", p.CertPEM)
	w.write("tls.key", p.KeyPEM)
	w.stamp("ca.crt", "tls.crt", "tls.key")
}

// stamp sets the modification time of files to the time of the bubble.
func (w *watched) stamp(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := os.Chtimes(filepath.Join(w.dir, name), time.Now(), time.Now()); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *watched) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// ready returns the text of /readyz?verbose, which must not fail.
func (w *watched) ready() string {
	w.t.Helper()
	health := &telemetry.Health{}
	health.Add("certificates", w.watch.Check)
	if err := health.Ready(); err != nil {
		w.t.Errorf("a certificate that expires soon makes the program not ready: %v", err)
	}
	if err := w.watch.Check(); err != nil {
		return err.Error()
	}
	return ""
}

func (w *watched) warnings(of string) int {
	return strings.Count(w.log.String(), "level=WARN msg=\"a certificate expires soon\" of="+of)
}

func (w *watched) notified() bool {
	select {
	case <-w.watch.Changed():
		return true
	default:
		return false
	}
}

// TestWatch_WarnsOfTheEnd checks the warnings in the last fifth of a certificate's lifetime. They come once a
// day in the log and always in Check, separately for its CA, until it is renewed.
func TestWatch_WarnsOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 100*day, 1000*day)
		w.pass(79 * day)
		if w.warnings("own") != 0 || w.ready() != "" {
			t.Errorf("too early: %q %q", w.log.String(), w.ready())
		}
		w.pass(2*day + time.Hour)
		if n := w.warnings("own"); n != 2 {
			t.Errorf("%d warnings in little more than a day:\n%s", n, w.log.String())
		}
		if got := w.ready(); !strings.Contains(got, w.files().Cert+" expires in 18 days") || !strings.Contains(got, "renew it") {
			t.Errorf("Check: %q", got)
		}
		w.pass(19 * day)
		if got := w.ready(); !strings.Contains(got, "expired at") {
			t.Errorf("Check: %q", got)
		}
		if left := w.left("own"); left > 0 || left < -day.Seconds() {
			t.Errorf("%v seconds remain of an expired certificate", left)
		}
		w.issue(100*day, 100*day)
		w.pass(3 * time.Hour)
		if got := w.ready(); got != "" {
			t.Errorf("after the renewal: %q", got)
		}
		if left := w.left("ca"); left < 99*day.Seconds() || left > 100*day.Seconds() {
			t.Errorf("%v seconds remain of the CA", left)
		}
		w.pass(81 * day)
		if got := w.ready(); w.warnings("ca") == 0 || !strings.Contains(got, "a CA in "+w.files().CA) {
			t.Errorf("of the CA: %q\n%s", got, w.log.String())
		}
	})
}

func (w *watched) left(of string) float64 {
	w.t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(w.watch); err != nil {
		w.t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == of {
			return m.GetGauge().GetValue() - float64(time.Now().Unix())
		}
	}
	w.t.Errorf("no metric has the label %s", of)
	return 0
}

// TestWatch_ReportsEachChangeOnce also checks a removed file and an invalid certificate. A change is not
// reported during the write.
func TestWatch_ReportsEachChangeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 10*lookEvery, day)
		w.run()
		w.after(10 * lookEvery)
		if w.notified() || w.warnings("own") != 1 {
			t.Errorf("nothing has changed, and one certificate expires soon:\n%s", w.log.String())
		}
		for what, change := range map[string]func(){
			"certificate":   func() { w.issue(day, day) },
			"configuration": func() { w.write("config.yaml", []byte("c: d")); w.stamp("config.yaml") },
			"file gone":     func() { _ = os.Remove(w.more) },
		} {
			change()
			w.after(3 * lookEvery)
			if !w.notified() {
				t.Errorf("%s: not reported", what)
			}
			w.after(10 * lookEvery)
			if w.notified() {
				t.Errorf("%s: reported twice", what)
			}
		}
		w.write("tls.crt", []byte("half of it"))
		for range 5 {
			w.stamp("tls.crt")
			w.after(lookEvery)
			if w.notified() {
				t.Error("it is being written")
			}
		}
		w.after(2 * lookEvery)
		if got := w.ready(); !w.notified() || !strings.Contains(got, "no PEM certificate") {
			t.Errorf("of a broken file: %q", got)
		}
	})
}

// TestWatch_WithoutCertificates checks that a program without certificates gets no warning about them, and that
// missing files are reported.
func TestWatch_WithoutCertificates(t *testing.T) {
	r := prometheus.NewRegistry()
	w, err := NewWatch(WatchConfig{Read: func() (Driver, error) { return Driver{}, nil }, Registry: r})
	if err != nil {
		t.Fatal(err)
	}
	if families, err := r.Gather(); len(families) != 0 || err != nil || w.Check() != nil {
		t.Errorf("metrics %v, %v, %v", families, err, w.Check())
	}
	w, err = NewWatch(WatchConfig{Read: func() (Driver, error) { return Driver{CAFile: "/none"}, nil }, Registry: prometheus.NewRegistry()})
	if err != nil || w.Check() == nil {
		t.Errorf("of a CA that is not there: %v, %v", err, w.Check())
	}
}

// TestWatch_WarnsOfACertificateWithoutAFile checks the warning about a certificate that the program renews by
// itself, when that has not happened.
func TestWatch_WarnsOfACertificateWithoutAFile(t *testing.T) {
	now := time.Now()
	where, end := "", now.Add(time.Minute)
	registry := prometheus.NewRegistry()
	w, err := NewWatch(WatchConfig{
		Read: func() (Driver, error) { return Driver{}, nil }, Registry: registry,
		Own: func() (string, time.Time, time.Time) { return where, now.Add(-time.Hour), end },
	})
	if err != nil || w.Check() != nil {
		t.Fatalf("without a certificate: %v, %v", err, w.Check())
	}
	where = "the Secret s"
	if err := w.Check(); err == nil || !strings.Contains(err.Error(), "the certificate in the Secret s expires in") {
		t.Errorf("got %v", err)
	}
	if end = now.Add(time.Hour); w.Check() != nil {
		t.Errorf("renewed: %v", w.Check())
	}
	if families, err := registry.Gather(); len(families) != 0 || err != nil {
		t.Errorf("metrics %v, %v", families, err)
	}
}

// TestWatch_MetricIsDocumented: docs/metrics.md has the row.
func TestWatch_MetricIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "\n| `hawser_certificate_not_after_timestamp_seconds` | gauge | `kind` |") {
		t.Error("docs/metrics.md does not list hawser_certificate_not_after_timestamp_seconds")
	}
}
