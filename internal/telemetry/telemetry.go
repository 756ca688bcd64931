// Package telemetry is the observability of a program: logger, version, and the admin port with /livez, /readyz
// and /metrics.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hawser-io/hawser/internal/httpport"
)

// version is set by the linker (-X …/internal/telemetry.version=v1.2.3).
var version string

// Version returns one line: the program's version, the Go version and the
// platform.
func Version(program string) string {
	return fmt.Sprintf("%s %s %s %s/%s", program, Release(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Release returns the version of the program.
func Release() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "devel"
}

// NewLogger returns a logger writing to w. level is debug, info, warn or error; format is text or json. Values
// are cut. Repeated messages about one client are counted instead of written, so that a client cannot fill a
// disk.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	now := &slog.LevelVar{}
	now.Set(l)
	o := &slog.HandlerOptions{Level: now, ReplaceAttr: cut}
	w = PrintableWriter{w}
	q := rateLimitHandler{limits: &recentLines{lines: map[[2]string]*subject{}}, level: now}
	switch format {
	case "text":
		q.Handler = slog.NewTextHandler(w, o)
		return slog.New(q), nil
	case "json":
		q.Handler = slog.NewJSONHandler(w, o)
		return slog.New(q), nil
	}
	return nil, fmt.Errorf("log format %q: use text or json", format)
}

// DebugOnSignal returns a task that toggles debug lines of a logger of [NewLogger] at each SIGUSR1. It is a
// signal, because the admin port has no authentication.
func DebugOnSignal(log *slog.Logger) func(context.Context) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1) // before the task runs, because an unhandled signal would end the program
	return func(ctx context.Context) error {
		defer signal.Stop(signals)
		q, ok := log.Handler().(rateLimitHandler)
		if !ok {
			return errors.New("the logger has no level that can be changed")
		}
		usual := q.level.Level()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-signals:
			}
			next := slog.LevelDebug
			if q.level.Level() == next {
				next = usual
			}
			q.level.Set(next)
			log.Log(ctx, max(next, slog.LevelInfo), "log level is changed, because of SIGUSR1", "level", next)
		}
	}
}

// NewRegistry returns a metrics registry with the version of the program, and the metrics of the Go runtime and
// the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := prometheus.GaugeOpts{Name: "hawser_build_info", Help: "1; the labels identify the build of the program.",
		ConstLabels: prometheus.Labels{"version": Release(), "go_version": runtime.Version()}}
	r.MustRegister(prometheus.NewGaugeFunc(info, func() float64 { return 1 }))
	return r
}

// Health is the readiness of a program: ready if all named checks return nil. The zero value is ready. Methods
// may be called concurrently.
type Health struct {
	mu     sync.Mutex
	checks map[string]func() error
}

// Add registers a check. It is called for each /readyz request and must not block.
func (h *Health) Add(name string, check func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.checks == nil {
		h.checks = map[string]func() error{}
	}
	h.checks[name] = check
}

// Notice marks the error of a check as shown but not failing: the program stays ready.
func Notice(err error) error { return &notice{err} }

type notice struct{ error }

func (n *notice) Unwrap() error { return n.error }

// Ready returns nil, or one error that names each failed check, except those in exclude.
func (h *Health) Ready(exclude ...string) error {
	failed, _ := h.look(exclude)
	if len(failed) == 0 {
		return nil
	}
	return errors.New(strings.Join(failed, "; "))
}

// look runs all checks, in the order of their names.
func (h *Health) look(exclude []string) (failed, notices []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.checks)) {
		if slices.Contains(exclude, name) {
			continue
		}
		switch err := h.checks[name](); {
		case err == nil:
		case errors.As(err, new(*notice)):
			notices = append(notices, name+": "+err.Error())
		default:
			failed = append(failed, name+": "+err.Error())
		}
	}
	return failed, notices
}

// serve answers a request for /readyz. Notices follow the failures.
func (h *Health) serve(w http.ResponseWriter, r *http.Request) {
	failed, notices := h.look(r.URL.Query()["exclude"])
	code, text := http.StatusOK, "ok"
	if len(failed) > 0 {
		code, text = http.StatusServiceUnavailable, strings.Join(failed, "; ")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, strings.Join(append([]string{text}, notices...), "\n")+"\n") // the client may be gone
}

// Admin serves /livez, /readyz and /metrics over plain HTTP.
type Admin struct {
	// Addr is host:port; empty disables the port.
	Addr     string
	Registry *prometheus.Registry
	Health   *Health
	Log      *slog.Logger
}

// Run serves until ctx ends. It returns an error if the address cannot be used.
func (a Admin) Run(ctx context.Context) error {
	if a.Addr == "" {
		<-ctx.Done()
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a.Addr)
	if err != nil {
		return fmt.Errorf("admin port: %w (choose another with --admin-listen)", err)
	}
	a.Log.Info("admin port is open", "addr", l.Addr().String())
	s, l := httpport.Server(a.Handler(), l, httpport.Limits{Connections: 64, Bytes: 8 << 20}, a.Log)
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // an interrupted scrape is harmless
	defer stop()
	if err := s.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("admin port: %w", err)
	}
	return nil
}

// Handler returns the endpoints, for tests and for programs with their own port. As on a kube-apiserver,
// /readyz?exclude=NAME skips a check.
func (a Admin) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	m.HandleFunc("GET /readyz", a.Health.serve)
	m.Handle("GET /metrics", promhttp.HandlerFor(a.Registry, promhttp.HandlerOpts{Registry: a.Registry}))
	return m
}
