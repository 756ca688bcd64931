package clustercontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	addonversioned "open-cluster-management.io/api/client/addon/clientset/versioned"
	clusterversioned "open-cluster-management.io/api/client/cluster/clientset/versioned"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
)

// Config holds the dependencies and options of a [Controller].
type Config struct {
	Mode Mode
	// Signer signs approved CSRs. Without files no CSR is signed here.
	Signer Signer
	// AutoApprovedUsers are the users, by their names at the broker, whose clusters are accepted and approved
	// automatically.
	AutoApprovedUsers []string

	Kube     kubernetes.Interface
	Clusters clusterversioned.Interface
	Addons   addonversioned.Interface
	Metadata metadata.Interface
	// Broker returns the state of the connection over which agents renew their Leases. It must not block. nil:
	// renewals need no connection.
	Broker func() ConnectionState

	Registerer prometheus.Registerer
	Health     *telemetry.Health
	Log        *slog.Logger
}

// Signer is the CA that signs the certificates of clusters, and their lifetime. The PEM files are read for each
// certificate.
type Signer struct {
	CertFile, KeyFile string
	Duration          time.Duration
}

func (s Signer) configured() bool { return s.CertFile != "" }

func (s Signer) read() (authority, error) { return readAuthority(s.CertFile, s.KeyFile) }

// Controller reconciles the ManagedClusters of a hub; see the package comment.
type Controller struct {
	cfg     Config
	metrics metrics

	// unread is why the clusters are not reconciled although they should be. unknown is why it is unknown whether
	// they should be.
	unread, unknown trouble
	// active: the clusters are reconciled here.
	active atomic.Bool
}

// trouble is an error that lasts until it is replaced. The zero value is none.
type trouble struct{ atomic.Pointer[error] }

func (t *trouble) set(err error) { t.Store(&err) }

func (t *trouble) get() error {
	if err := t.Load(); err != nil {
		return *err
	}
	return nil
}

// New returns a controller that is not running. It fails if its metrics are already registered, or if the CA
// cannot sign. With [Auto] an unusable CA is no error: where Open Cluster Management signs, none is needed.
func New(cfg Config) (*Controller, error) {
	c := &Controller{cfg: cfg, metrics: newMetrics(cfg.Registerer)}
	if cfg.Signer.configured() {
		if _, err := cfg.Signer.read(); err != nil && cfg.Mode == On {
			return nil, fmt.Errorf("the CA that signs clusters: %w", err)
		}
		if err := cfg.Registerer.Register(notAfterCollector{cfg.Signer.read}); err != nil {
			return nil, err
		}
	}
	cfg.Health.Add("registration-controllers", c.check)
	return c, nil
}

// check returns the problems that an operator has to know, as a notice: works are still delivered.
func (c *Controller) check() error {
	all := []error{c.unread.get(), c.unknown.get()}
	if c.active.Load() && c.cfg.Signer.configured() {
		all = append(all, c.cfg.Signer.look(time.Now()))
	}
	if err := errors.Join(all...); err != nil {
		return telemetry.Notice(err)
	}
	return nil
}

// look returns an error or a warning about the CA, nil if there is none.
func (s Signer) look(now time.Time) error {
	a, err := s.read()
	if err != nil {
		return fmt.Errorf("the CA that signs clusters cannot be read, nothing is signed: %w", err)
	}
	return a.warning(now, s.Duration)
}

// Run reconciles the clusters until ctx ends, while this replica leads. What the hub forbids or does not serve
// goes to the log and the health check, and ends nothing.
func (c *Controller) Run(ctx context.Context) error {
	defer c.unknown.set(nil)
	switch c.cfg.Mode {
	case Off:
		<-ctx.Done()
		return nil
	case On:
		c.cfg.Log.InfoContext(ctx, "this replica manages the members of the hub")
		return c.work(ctx)
	}
	for shownBy := "-"; ctx.Err() == nil; {
		was := shownBy
		if shownBy = c.await(ctx, func(found string) bool { return found != was }); ctx.Err() != nil {
			return nil
		}
		if shownBy != "" {
			c.cfg.Log.InfoContext(ctx, "the registration controllers of Open Cluster Management manage the members of the hub", "detected_by", shownBy)
			continue
		}
		c.cfg.Log.InfoContext(ctx, "this replica manages the members of the hub: Open Cluster Management's registration controllers were not found")
		if err := c.workUntilFound(ctx); err != nil {
			return err
		}
	}
	return nil
}

// await looks for the controllers of Open Cluster Management until enough accepts the result, and returns it.
func (c *Controller) await(ctx context.Context, enough func(shownBy string) bool) string {
	for delay := time.Second; ; {
		shownBy, err := FindOCM(ctx, c.cfg.Kube)
		switch {
		case ctx.Err() != nil:
			return ""
		case err != nil:
			err = fmt.Errorf("it is unknown whether Open Cluster Management's registration controllers run here. Set registrationControllers.mode to on or off if the hub never allows to look for them: %w", err)
			c.unknown.set(err)
			c.cfg.Log.WarnContext(ctx, "look for other registration controllers", "err", err, "delay", delay)
		default:
			c.unknown.set(nil)
			if enough(shownBy) {
				return shownBy
			}
			delay = lookForOCM
		}
		if !taskgroup.Sleep(ctx, delay) {
			return ""
		}
		delay = min(2*delay, lookForOCM)
	}
}

// workUntilFound works until the controllers of Open Cluster Management are found.
func (c *Controller) workUntilFound(ctx context.Context) error {
	lifetime, end := context.WithCancel(ctx)
	defer end()
	return taskgroup.Group(lifetime,
		taskgroup.Task{Name: "members", Run: c.work},
		taskgroup.Task{Name: "look", Run: func(ctx context.Context) error {
			c.await(ctx, func(shownBy string) bool { return shownBy != "" })
			end()
			return ctx.Err()
		}})
}

// warnEvery is how often the log warns that the CA expires soon.
const warnEvery = 24 * time.Hour

// warn logs the warnings about the CA until ctx ends.
func (c *Controller) warn(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := c.cfg.Signer.look(time.Now()); err != nil {
			c.cfg.Log.WarnContext(ctx, "the CA that signs clusters needs an operator", "warning", err)
		}
	}, warnEvery)
	return nil
}
