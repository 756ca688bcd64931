package registration

import (
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

// Store keeps what must outlive the process. Its methods are called one at a time.
type Store interface {
	// Load returns what is kept, nil if there is nothing.
	Load(ctx context.Context) (map[string][]byte, error)
	// Save replaces what is kept. It returns [ErrTaken] if somebody else has written it since.
	Save(ctx context.Context, data map[string][]byte) error
}

// ErrTaken is the error of a Save over what another process has written.
var ErrTaken = errors.New("another process has written it")

// Reader reads the managed cluster.
type Reader interface {
	// Healthy returns why the cluster does not answer.
	Healthy(ctx context.Context) error
	// Facts returns what could be read, and why not all of it.
	Facts(ctx context.Context) (Facts, error)
}

// Config is a Registration. All but Changed, Move, Log, Registry and Now are required.
type Config struct {
	// Cluster is the name of the cluster, Hub the identity of its hub.
	Cluster, Hub string
	// Broker is written into the Secret: how the broker is reached, in the form of Open
	// Cluster Management's config.yaml.
	Broker []byte

	// Bootstrap reaches the broker with the credentials of the bootstrap file, Registered
	// with what Use was called with last.
	Bootstrap, Registered transport.Dialer
	// BootstrapID says which bootstrap file there is now: another file, another text.
	BootstrapID func() (string, error)
	// Changed gets a value when the bootstrap file has changed.
	Changed <-chan struct{}

	// Use is called with each new certificate, and with nil when there is none.
	Use func(*Credential)
	// Move, which may be nil, has those who reached the broker with a former certificate do so
	// with what Use was called with last. It may take until ctx ends.
	Move func(ctx context.Context) error
	// Retry is called when something has changed by which works may flow: a certificate,
	// or that the hub accepted the cluster.
	Retry func()

	// Secret is the name of the Store, for people.
	Secret string
	Store  Store
	Reader Reader

	Log      *slog.Logger
	Registry prometheus.Registerer
	// Now is the clock, [time.Now] if nil.
	Now func() time.Time
}

// Registration is a program: see the package. Its methods may be called concurrently.
type Registration struct {
	c        Config
	metrics  *metrics
	events   chan event
	progress atomic.Pointer[Progress]
}

// event tells the core what happened.
type event func(c *Core, now time.Time)

// Progress is how far the registration is.
type Progress struct {
	// As is how the agent reaches the broker.
	As CredentialKind
	// Waits is what keeps the cluster from being part of the fleet, Trouble what does not
	// yet; either may be nil.
	Waits, Trouble error
	// Credential is the certificate in use, nil without one.
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

// New checks the configuration and returns a Registration that does nothing yet.
func New(c Config) (*Registration, error) {
	switch {
	case c.Cluster == "" || c.Hub == "":
		return nil, errors.New("registration: cluster name and hub identity are required")
	case c.Bootstrap == nil || c.Registered == nil || c.BootstrapID == nil:
		return nil, errors.New("registration: dialers and the bootstrap file are required")
	case c.Use == nil || c.Retry == nil || c.Store == nil || c.Reader == nil:
		return nil, errors.New("registration: use, retry, store and reader are required")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	r := &Registration{c: c, events: make(chan event)}
	r.progress.Store(&Progress{Waits: errStarting})
	var err error
	r.metrics, err = newMetrics(c.Registry, r.Progress)
	return r, err
}

// Progress returns how far the registration is.
func (r *Registration) Progress() Progress { return *r.progress.Load() }

// Ready returns what the registration waits for, nil if the hub has accepted the cluster.
func (r *Registration) Ready() error { return r.Progress().Waits }

// Run registers the cluster and keeps it registered until ctx ends, and then returns nil. An
// error is that another process uses the Secret. It is called once.
func (r *Registration) Run(ctx context.Context) error {
	kept := r.load(ctx)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was asked to stop
	}
	l := &loop{
		Registration: r, ctx: ctx,
		core: NewCore(CoreConfig{
			Cluster: r.c.Cluster, Hub: r.c.Hub, Config: r.c.Broker, Random: rand.Float64,
			Name: func() string { return utilrand.String(5) }, NewKey: NewKey,
		}, kept, r.bootstrapID(ctx)),
	}
	return taskgroup.Group(ctx,
		taskgroup.Task{Name: "registration", Run: l.run},
		taskgroup.Task{Name: "facts", Run: r.read},
	)
}

// load reads the Secret. It tries until it can be read: an agent that does not know its
// certificate must not ask for another. Nor must it take the key of another agent away: t1 two
// hosted agents in one namespace have the same name of the Secret, t2 the second one writes over
// what the first one has, therefore both ask for certificates for ever.
func (r *Registration) load(ctx context.Context) SavedState {
	for {
		readCtx, cancel := context.WithTimeout(ctx, storeTimeout)
		data, err := r.c.Store.Load(readCtx)
		cancel()
		if err == nil {
			kept, why := ReadKept(data, r.c.Cluster, r.c.Hub)
			if !errors.Is(why, ErrForeign) {
				if why != nil {
					r.c.Log.WarnContext(ctx, "what the Secret keeps cannot be used, the registration begins again", "reason", why)
				}
				return kept
			}
			err = why
		}
		err = fmt.Errorf("the Secret %s for key and certificate cannot be used: %w", r.c.Secret, err)
		if text(r.Ready()) != err.Error() {
			r.c.Log.WarnContext(ctx, "the registration has not begun", "error", err)
		}
		r.progress.Store(&Progress{Waits: err})
		if !taskgroup.Sleep(ctx, loadAgain) {
			return SavedState{}
		}
	}
}

// bootstrapID is "" for a file that cannot be read: the dialer says why.
func (r *Registration) bootstrapID(ctx context.Context) string {
	id, err := r.c.BootstrapID()
	if err != nil {
		r.c.Log.ErrorContext(ctx, "the bootstrap file cannot be used", "error", err)
		return ""
	}
	return id
}

// dispatch hands an event to the loop, until ctx ends.
func (r *Registration) dispatch(ctx context.Context, e event) {
	select {
	case r.events <- e:
	case <-ctx.Done():
	}
}

const (
	// healthEvery is how often the cluster is asked whether it answers, factsEvery how often
	// what it says of itself is read.
	healthEvery   = 10 * time.Second
	factsEvery    = time.Minute
	healthTimeout = 8 * time.Second
)

// read tells the core about the managed cluster.
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
			// A kube-apiserver that starts answers, and denies what it has not read its roles for.
			if due.failed(time.Now(), 1, healthEvery, factsEvery, err); err == nil {
				due = retry{until: time.Now().Add(factsEvery)}
			}
		}
		if text := fmt.Sprint(err); err != nil && text != reported && ctx.Err() == nil {
			r.c.Log.WarnContext(ctx, "the cluster does not say all that its hub is told", "healthy", facts.Healthy, "error", err)
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

// sessionBackoff: while rights are on their way to a hub, it refuses what it allows a moment later.
var sessionBackoff = session.Backoff{Refused: 20 * time.Second}

func newEnvelope(cluster string) envelope {
	return envelope{id: uuid.NewString(), time: time.Now(), cluster: cluster}
}
