package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/admission"
	"github.com/hawser-io/hawser/internal/httpport"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/telemetry"
)

// Path is the URL path for reviews of ManifestWorks.
const Path = "/validate-work-open-cluster-management-io-v1-manifestwork"

// AccessReviews checks on the hub whether a user has a right. Errors are those of the Kubernetes API. Calls may
// be concurrent.
type AccessReviews interface {
	Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, o metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// Config holds the dependencies and options of a [Webhook].
type Config struct {
	// Addr is host:port.
	Addr  string
	Rules admission.Rules
	// Certificate is the serving certificate.
	Certificate *identity.Serving
	Access      AccessReviews
	Registerer  prometheus.Registerer
	Health      *telemetry.Health
	Log         *slog.Logger
}

// Webhook answers reviews; see the package comment.
type Webhook struct {
	cfg     Config
	metrics *metrics
	slots   chan struct{}
}

// Limits of the port.
const (
	// maxBody is enough for two works, the new one and the old one, each of the largest size that a kube-apiserver
	// accepts.
	maxBody = 8 << 20
	// maxAtOnce is the number of concurrent reviews.
	maxAtOnce = 32
	// maxConnections: a kube-apiserver has one connection for each of its 200 concurrent changes.
	maxConnections = 512
	// maxBytes limits the bytes in memory before reviews are decided.
	maxBytes = 16 * maxBody
	// maxTime is the timeout of a request whose client names none. It is the one of the configuration in deploy/.
	maxTime = 10 * time.Second
	// drainWithin is how long the program waits for requests before it ends.
	drainWithin = 5 * time.Second
)

// New returns a webhook that does not listen yet. It adds its certificate to the readiness of the program.
func New(cfg Config) (*Webhook, error) {
	if err := admission.ValidateLimit(cfg.Rules.ManifestLimit); err != nil {
		return nil, fmt.Errorf("limit of the manifests: %w", err)
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	cfg.Health.Add("webhook", cfg.Certificate.Check)
	return &Webhook{cfg: cfg, metrics: m, slots: make(chan struct{}, maxAtOnce)}, nil
}

// Run serves until ctx ends, and then completes the requests in progress. It returns an error if the address
// cannot be used.
func (w *Webhook) Run(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", w.cfg.Addr)
	if err != nil {
		return fmt.Errorf("webhook port: %w (choose another with --webhook-listen)", err)
	}
	return w.serveOn(ctx, l)
}

func (w *Webhook) serveOn(ctx context.Context, l net.Listener) error {
	w.cfg.Log.Info("webhook port is open", "addr", l.Addr().String())
	if err := w.cfg.Certificate.Check(); err != nil {
		w.cfg.Log.Warn("webhook is not ready: the hub accepts no ManifestWorks until it is", "err", err)
	}
	s, l := httpport.Server(w.Handler(), l, httpport.Limits{Connections: maxConnections, Bytes: maxBytes}, w.cfg.Log)
	s.TLSConfig = w.cfg.Certificate.TLS()
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWithin)
		defer cancel()
		drained <- errors.Join(s.Shutdown(within), s.Close())
	})
	err := s.ServeTLS(l, "", "")
	if stop() { // the server ended by itself
		return fmt.Errorf("webhook port: %w", errors.Join(err, s.Close()))
	}
	if err := <-drained; err != nil {
		w.cfg.Log.Warn("webhook requests were cut off at the end", "err", err)
	}
	return nil
}

// Handler answers reviews at [Path] and nothing else.
func (w *Webhook) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST "+Path, w.serve)
	return m
}
