package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Store stores the state that must survive restarts. Its methods are called one at a time.
type Store interface {
	// Load returns the stored data, nil if there is none.
	Load(ctx context.Context) (map[string][]byte, error)
	// Save replaces the stored data. It returns [ErrTaken] if another process has written it since.
	Save(ctx context.Context, data map[string][]byte) error
}

// ErrTaken is returned by a Save that would overwrite data of another process.
var ErrTaken = errors.New("another process has written it")

// Reader reads the managed cluster.
type Reader interface {
	// Healthy returns why the cluster gives no answer; nil if it is healthy.
	Healthy(ctx context.Context) error
	// Facts returns the facts that could be read, and an error if some could not.
	Facts(ctx context.Context) (Facts, error)
}

// Config configures a Registration. Only Changed, MigrateConnections, Log, Registry and Now are optional.
type Config struct {
	// Cluster is the name of the cluster, Hub the identity of its hub.
	Cluster, Hub string
	// Broker is the broker connection, in the form of config.yaml of Open Cluster Management. It is written to the
	// Secret.
	Broker []byte

	// Bootstrap dials the broker with the credentials of the bootstrap file, Registered with the certificate
	// of the last ActivateCertificate.
	Bootstrap, Registered transport.Dialer
	// BootstrapID returns an id of the present bootstrap file; it changes with the file.
	BootstrapID func() (string, error)
	// Changed receives a value when the bootstrap file has changed.
	Changed <-chan struct{}

	// ActivateCertificate is called with each new certificate, and with nil if there is none.
	ActivateCertificate func(*Credential)
	// MigrateConnections replaces connections with a former certificate by connections with the present one. It may
	// take until ctx ends. It may be nil.
	MigrateConnections func(ctx context.Context) error
	// Retry is called when works may flow because of a change: a new certificate, or the acceptance of the cluster.
	Retry func()

	// Secret is the name of the Store for messages.
	Secret string
	Store  Store
	Reader Reader

	Log      *slog.Logger
	Registry prometheus.Registerer
	// Now is the clock, [time.Now] if nil.
	Now func() time.Time
}

// Registration is the program; see the package comment. Its methods may be called concurrently.
type Registration struct {
	c        Config
	metrics  *metrics
	events   chan event
	progress atomic.Pointer[Progress]
}

// event reports an event to the core.
type event func(c *Core, now time.Time)

// Progress is the progress of the registration.
type Progress struct {
	// As is the kind of credential with which the agent connects to the broker.
	As CredentialKind
	// WaitReason is why the cluster is not part of the fleet yet. Trouble is a problem that does not prevent this yet.
	// Both may be nil.
	WaitReason, Trouble error
	// Credential is the certificate in use, nil if there is none.
	Credential *Credential
}

// Durations.
const (
	// publishTimeout is longer than a broker waits for the hub.
	publishTimeout = 15 * time.Second
	storeTimeout   = 10 * time.Second
	loadAgain      = 5 * time.Second
)

var errStarting = errors.New("the registration has not begun")

// New checks the configuration and returns a Registration that is not running.
func New(c Config) (*Registration, error) {
	switch {
	case c.Cluster == "" || c.Hub == "":
		return nil, errors.New("registration: cluster name and hub identity are required")
	case c.Bootstrap == nil || c.Registered == nil || c.BootstrapID == nil:
		return nil, errors.New("registration: dialers and the bootstrap file are required")
	case c.ActivateCertificate == nil || c.Retry == nil || c.Store == nil || c.Reader == nil:
		return nil, errors.New("registration: ActivateCertificate, Retry, Store and Reader are required")
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Now == nil {
		c.Now = time.Now
	}
	r := &Registration{c: c, events: make(chan event)}
	r.progress.Store(&Progress{WaitReason: errStarting})
	r.metrics = newMetrics(c.Registry, r.Progress)
	return r, nil
}

// Progress returns the progress of the registration.
func (r *Registration) Progress() Progress { return *r.progress.Load() }

// Ready returns what the registration waits for; nil if the hub has accepted the cluster.
func (r *Registration) Ready() error { return r.Progress().WaitReason }

// Run registers the cluster and keeps it registered until ctx ends, and then returns nil. An error means that
// another process uses the Secret. Run must be called once.
func (r *Registration) Run(ctx context.Context) error {
	saved := r.load(ctx)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was asked to stop
	}
	l := &loop{
		Registration: r, ctx: ctx,
		core: NewCore(CoreConfig{
			Cluster: r.c.Cluster, Hub: r.c.Hub, Config: r.c.Broker, Random: rand.Float64,
			Name: func() string { return utilrand.String(5) }, NewKey: NewKey,
		}, saved, r.bootstrapID(ctx)),
	}
	return taskgroup.Group(ctx,
		taskgroup.Task{Name: "registration", Run: l.run},
		taskgroup.Task{Name: "facts", Run: r.read},
	)
}

// load reads the Secret. It retries until it succeeds: an agent that does not know its certificate must not
// request another one. It must not overwrite the key of another agent either.
//
// Scenario:
//
//	t1: two hosted agents in one namespace use the same Secret name.
//	t2: the second one overwrites the state of the first one.
//
// Without this check both request certificates for ever.
func (r *Registration) load(ctx context.Context) SavedState {
	for {
		readCtx, cancel := context.WithTimeout(ctx, storeTimeout)
		data, err := r.c.Store.Load(readCtx)
		cancel()
		if err == nil {
			saved, why := ReadSavedState(data, r.c.Cluster, r.c.Hub)
			if !errors.Is(why, ErrForeign) {
				if why != nil {
					r.c.Log.WarnContext(ctx, "the Secret is unusable, the registration begins again", "reason", why)
				}
				return saved
			}
			err = why
		}
		err = fmt.Errorf("the Secret %s for key and certificate cannot be used: %w", r.c.Secret, err)
		if text(r.Ready()) != err.Error() {
			r.c.Log.WarnContext(ctx, "the registration has not begun", "error", err)
		}
		r.progress.Store(&Progress{WaitReason: err})
		if !taskgroup.Sleep(ctx, loadAgain) {
			return SavedState{}
		}
	}
}

// bootstrapID returns "" for an unreadable file; the dialer returns the error.
func (r *Registration) bootstrapID(ctx context.Context) string {
	id, err := r.c.BootstrapID()
	if err != nil {
		r.c.Log.ErrorContext(ctx, "the bootstrap file cannot be used", "error", err)
		return ""
	}
	return id
}

// dispatch passes an event to the loop, until ctx ends.
func (r *Registration) dispatch(ctx context.Context, e event) {
	select {
	case r.events <- e:
	case <-ctx.Done():
	}
}

const (
	// healthEvery is the interval of health checks of the cluster, factsEvery that of reading its facts.
	healthEvery   = 10 * time.Second
	factsEvery    = time.Minute
	healthTimeout = 8 * time.Second
)

// read reports the state of the managed cluster to the core.
func (r *Registration) read(ctx context.Context) error {
	var facts Facts
	var due retry
	reported := ""
	for {
		requestCtx, cancel := context.WithTimeout(ctx, healthTimeout)
		err := r.c.Reader.Healthy(requestCtx)
		cancel()
		facts.Healthy = err == nil
		if err == nil && !time.Now().Before(due.until) {
			requestCtx, cancel = context.WithTimeout(ctx, factsEvery/2)
			facts, err = r.c.Reader.Facts(requestCtx)
			cancel()
			facts.Healthy = true
			// A starting kube-apiserver denies requests until it has read its roles.
			if due.failed(time.Now(), 1, healthEvery, factsEvery, err); err == nil {
				due = retry{until: time.Now().Add(factsEvery)}
			}
		}
		if text := fmt.Sprint(err); err != nil && text != reported && ctx.Err() == nil {
			r.c.Log.WarnContext(ctx, "some facts of the cluster cannot be read and are not sent to the hub", "healthy", facts.Healthy, "error", err)
			reported = text
		} else if err == nil {
			reported = ""
		}
		now := facts
		r.dispatch(ctx, func(c *Core, at time.Time) { c.Learned(at, now) })
		if !taskgroup.Sleep(ctx, healthEvery) {
			return nil
		}
	}
}

// sessionBackoff allows for a hub that refuses rights for a moment because they have not reached it yet.
var sessionBackoff = session.Backoff{Refused: 20 * time.Second}

func newEnvelope(cluster string) envelope {
	return envelope{id: uuid.NewString(), time: time.Now(), cluster: cluster}
}
