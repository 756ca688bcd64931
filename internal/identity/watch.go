package identity

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
)

const (
	// lookEvery is the interval in which a Watch checks its files. It is longer than checkEvery, see look.
	lookEvery = 2 * time.Second
	// warnEvery is the interval of log warnings about one certificate.
	warnEvery = 24 * time.Hour
	// nearEnd is the divisor of the lifetime: warnings begin in the last fifth.
	nearEnd = 5
)

// notAfter describes the metric of a Watch.
var notAfter = prometheus.NewDesc("hawser_certificate_not_after_timestamp_seconds",
	"When the first certificate expires, in Unix time.", []string{"kind"}, nil)

// WatchConfig is the configuration of a [Watch].
type WatchConfig struct {
	// Read returns the current certificates and CAs of the program.
	Read func() (Driver, error)
	// Also are other files that decide whether a connection can be made.
	Also []string
	// Own returns the location and the period of a certificate of the program that is in no file; where is "" while
	// there is none. The part that renews it has a metric of its own. May be nil.
	Own func() (where string, begin, end time.Time)
	Log *slog.Logger
	// Registry gets the metric.
	Registry prometheus.Registerer
}

// Watch checks the files of a program's identity. It reports changes of the files. It warns of a certificate
// that expires soon: in the log once a day, by a metric, and in Check. Create it with [NewWatch]. Methods may
// be called concurrently.
type Watch struct {
	cfg     WatchConfig
	changed taskgroup.Bell

	// Only Run uses these. reported is the time of the last warning in the log, by its subject.
	files       []string
	known, seen []fileStamp
	reported    map[string]time.Time

	mu   sync.Mutex
	ends map[string]ending // by subject: "own" or "ca"
	err  error             // why the current ones are unknown
}

// ending is the certificate of a file or of data that expires first.
type ending struct {
	file       string // the file, or the key of the data
	begin, end time.Time
}

// NewWatch returns a watch of the current files. Create it before anything else reads them. Unusable files are
// no error here, but an error of Check.
//
// Scenario:
//
//	t1: another part reads a file.
//	t2: the file changes.
//	t3: the watch checks it for the first time.
//
// Result: the change would not be reported if the watch were created after t1.
func NewWatch(c WatchConfig) (*Watch, error) {
	w := &Watch{cfg: c, changed: taskgroup.NewBell(), reported: map[string]time.Time{}}
	w.read()
	w.known = stampsOf(w.files)
	w.seen = w.known
	w.read() // read after the stamps, so no change is missed
	return w, c.Registry.Register(w)
}

// Changed returns a channel that gets a value when files have changed.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Run checks the files until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	w.warn(ctx, time.Now())
	taskgroup.Every(ctx, lookEvery, func() {
		w.look(ctx)
		w.warn(ctx, time.Now())
	})
	return nil
}

// look reports a change at the second check that finds it. Then the write is over, and loaders that check every
// 500 ms have the new files.
func (w *Watch) look(ctx context.Context) {
	stamps := stampsOf(w.files)
	if slices.Equal(stamps, w.known) || !slices.Equal(stamps, w.seen) {
		w.seen = stamps
		return
	}
	w.known = stamps
	before := w.files
	if w.read(); !slices.Equal(before, w.files) {
		w.known = stampsOf(w.files)
		w.seen = w.known
	}
	w.cfg.Log.InfoContext(ctx, "files of this program's identity have changed", "files", w.files)
	w.changed.Ring()
}

func stampsOf(files []string) []fileStamp {
	stamps := make([]fileStamp, len(files))
	for i, name := range files {
		if st, err := os.Stat(name); err == nil { // a missing file changes when it appears
			stamps[i] = fileStamp{modified: st.ModTime(), size: st.Size()}
		}
	}
	return stamps
}

// read determines the expiry of the certificates. On an error the previous result stays.
func (w *Watch) read() {
	d, err := w.cfg.Read()
	var ends map[string]ending
	if err == nil {
		w.files = append(slices.DeleteFunc([]string{d.CAFile, d.ClientCertFile, d.ClientKeyFile, d.ProxyCAFile, d.TokenFile}, func(f string) bool { return f == "" }), w.cfg.Also...)
		ends, err = d.ends()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; err == nil {
		w.ends = ends
	}
}

// ends returns the certificates that expire first. Without a file and without data the result is empty.
func (d *Driver) ends() (map[string]ending, error) {
	all := map[string]ending{}
	for _, c := range []struct {
		of, key, file string
		data          []byte
	}{
		{"own", "clientCertData", d.ClientCertFile, d.ClientCertData},
		{"ca", "caData", d.CAFile, d.CAData},
	} {
		text, err := content(c.data, c.file)
		if err != nil {
			return nil, err
		}
		if text == nil {
			continue
		}
		e := ending{file: c.file}
		if c.data != nil {
			e.file = c.key
		}
		if err := e.first(text); err != nil {
			return nil, fmt.Errorf("%s: %w", e.file, err)
		}
		all[c.of] = e
	}
	return all, nil
}

// first sets the period of the certificate that expires first.
func (e *ending) first(text []byte) error {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue // x509.CertPool also skips it
		}
		if e.end.IsZero() || c.NotAfter.Before(e.end) {
			e.begin, e.end = c.NotBefore, c.NotAfter
		}
	}
	if e.end.IsZero() {
		return errors.New("holds no PEM certificate")
	}
	return nil
}

// warning returns the warning about a certificate that expires soon, "" if it does not.
func (e *ending) warning(of string, now time.Time) string {
	left := e.end.Sub(now)
	if left > e.end.Sub(e.begin)/nearEnd {
		return ""
	}
	what, do := "the certificate", "renew it"
	if of == "ca" {
		what, do = "a CA", "add the next CA to the file, renew the certificates that this one signed, then remove this one"
	}
	end := e.end.UTC().Format(time.RFC3339)
	if left <= 0 {
		return fmt.Sprintf("%s in %s expired at %s: %s", what, e.file, end, do)
	}
	return fmt.Sprintf("%s in %s expires in %s, at %s: %s", what, e.file, inDays(left), end, do)
}

// inDays returns a duration in days, or below two days as a Go duration.
func inDays(d time.Duration) string {
	if days := int(d / (24 * time.Hour)); days >= 2 {
		return fmt.Sprintf("%d days", days)
	}
	return d.Truncate(time.Minute).String()
}

// endings returns the certificates that expire first. w.mu is held.
func (w *Watch) endings() map[string]ending {
	if w.cfg.Own == nil {
		return w.ends
	}
	ends := maps.Clone(w.ends)
	if where, begin, end := w.cfg.Own(); where != "" {
		if ends == nil {
			ends = map[string]ending{}
		}
		ends["own"] = ending{file: where, begin: begin, end: end}
	}
	return ends
}

// warnings returns the current warnings.
func (w *Watch) warnings(now time.Time) (all map[string]string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all = map[string]string{}
	for of, e := range w.endings() {
		if text := e.warning(of, now); text != "" {
			all[of] = text
		}
	}
	return all, w.err
}

// warn logs the warnings, each once a day.
func (w *Watch) warn(ctx context.Context, now time.Time) {
	warnings, _ := w.warnings(now) // unusable files are reported by the parts that use them
	for of, text := range warnings {
		if last, reported := w.reported[of]; !reported || now.Sub(last) >= warnEvery {
			w.reported[of] = now
			w.cfg.Log.WarnContext(ctx, "a certificate expires soon", "of", of, "warning", text)
		}
	}
	maps.DeleteFunc(w.reported, func(of string, _ time.Time) bool { return warnings[of] == "" })
}

// Check returns a notice about the certificates that expire soon. The program stays ready.
func (w *Watch) Check() error {
	warnings, err := w.warnings(time.Now())
	texts := slices.Sorted(maps.Values(warnings))
	if err != nil {
		texts = append(texts, err.Error())
	}
	if len(texts) == 0 {
		return nil
	}
	return telemetry.Notice(errors.New(strings.Join(texts, "; ")))
}

// Describe implements prometheus.Collector.
func (w *Watch) Describe(to chan<- *prometheus.Desc) { to <- notAfter }

// Collect implements prometheus.Collector.
func (w *Watch) Collect(to chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for of, e := range w.ends {
		to <- prometheus.MustNewConstMetric(notAfter, prometheus.GaugeValue, float64(e.end.Unix()), of)
	}
}
