package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-io/hawser/internal/telemetry"
)

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestAdmin_Endpoints(t *testing.T) {
	health := &telemetry.Health{}
	h := telemetry.Admin{Registry: telemetry.NewRegistry(), Health: health, Log: slog.New(slog.DiscardHandler)}.Handler()
	if code, _ := get(t, h, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz without checks: %d", code)
	}
	health.Add("b", func() error { return errors.New("late") })
	health.Add("a", func() error { return errors.New("down") })
	if code, body := get(t, h, "/readyz"); code != http.StatusServiceUnavailable || body != "a: down; b: late\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code, body := get(t, h, "/readyz?exclude=a"); code != http.StatusServiceUnavailable || body != "b: late\n" {
		t.Errorf("/readyz without a: %d %q", code, body)
	}
	if code, _ := get(t, h, "/readyz?exclude=b&exclude=a&exclude=unknown"); code != http.StatusOK {
		t.Errorf("/readyz without both: %d", code)
	}
	health.Add("b", func() error { return telemetry.Notice(errors.New("late")) })
	if code, body := get(t, h, "/readyz"); code != http.StatusServiceUnavailable || body != "a: down\nb: late\n" {
		t.Errorf("/readyz with a notice: %d %q", code, body)
	}
	if code, body := get(t, h, "/readyz?exclude=a"); code != http.StatusOK || body != "ok\nb: late\n" {
		t.Errorf("/readyz with only a notice: %d %q", code, body)
	}
	if code, _ := get(t, h, "/livez"); code != http.StatusOK {
		t.Errorf("/livez must not depend on checks: %d", code)
	}
	code, body := get(t, h, "/metrics")
	if code != http.StatusOK || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics: %d", code)
	}
	words := strings.Fields(telemetry.Version("program"))
	if want := fmt.Sprintf("hawser_build_info{go_version=%q,version=%q} 1\n", words[2], words[1]); !strings.Contains(body, want) {
		t.Errorf("/metrics has no %s", want)
	}
}

func TestNewLogger(t *testing.T) {
	var b bytes.Buffer
	l, err := telemetry.NewLogger(&b, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	l.Info("hidden")
	l.Warn("shown")
	if s := b.String(); strings.Contains(s, "hidden") || !strings.Contains(s, `"msg":"shown"`) {
		t.Errorf("got %q", s)
	}
	for _, bad := range [][2]string{{"loud", "json"}, {"info", "xml"}} {
		if _, err := telemetry.NewLogger(&b, bad[0], bad[1]); err == nil {
			t.Errorf("%v must be refused", bad)
		}
	}
}

// lines is a writer that sends each line to its channel.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func TestDebugOnSignal(t *testing.T) {
	out := make(lines, 8)
	log, err := telemetry.NewLogger(out, "warn", "text")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, run := make(chan error, 1), telemetry.DebugOnSignal(log)
	go func() { ended <- run(ctx) }()
	for _, want := range []string{"level=DEBUG", "level=WARN", "level=DEBUG"} {
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		if line := <-out; !strings.Contains(line, "SIGUSR1") || !strings.Contains(line, want) {
			t.Errorf("want %s: %s", want, line)
		}
		if debug := log.Enabled(ctx, slog.LevelDebug); debug != (want == "level=DEBUG") {
			t.Errorf("%s: debug lines are written: %t", want, debug)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := telemetry.DebugOnSignal(slog.New(slog.DiscardHandler))(t.Context()); err == nil {
		t.Error("a logger of another package is accepted")
	}
}
