package hubsource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	workversioned "open-cluster-management.io/api/client/work/clientset/versioned"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Config holds the dependencies and options of a [Source].
type Config struct {
	// ID is the source id. It is unique per hub, and the broker knows this source by it.
	ID string
	// Works is the client of the hub's ManifestWorks.
	Works workversioned.Interface
	// Metadata reads the namespace kube-system. With a selector it also reads ManagedClusters or Namespaces.
	Metadata metadata.Interface
	// ConfigMaps and StateNamespace are where the source saves its [core.SavedState]; nil keeps it in memory.
	ConfigMaps     typedcorev1.ConfigMapsGetter
	StateNamespace string
	// Events is where the source writes Events about works; nil: nowhere.
	Events    typedcorev1.EventsGetter
	Selection Selection
	// CleanUp deletes completed works whose ttlSecondsAfterFinished is over.
	CleanUp bool
	// Election elects the replica that works. The others keep their caches up to date.
	Election leader.Election
	// History brings evidence of the watches and the Lease about the hub's history; nil: there is none.
	History *history.Signal
	// Leading run beside the works while this replica leads, and restart in each hub epoch. If one ends earlier,
	// the source ends.
	Leading []taskgroup.Task
	// Dialer connects to the broker. Changed, which may be nil, is passed to session.Config.
	Dialer  transport.Dialer
	Changed <-chan struct{}
	// Sessions are the metrics of all sessions of the process; nil: the source creates them.
	Sessions   *session.Metrics
	Registerer prometheus.Registerer
	Health     *telemetry.Health
	Log        *slog.Logger
}

// Source delivers the works of one hub; see the package comment.
type Source struct {
	cfg      Config
	metrics  *metrics
	sessions *session.Metrics
	store    *stateStore // used by the leader alone

	synced    atomic.Bool
	led       atomic.Bool                 // a leader is known, this replica or another
	connected atomic.Pointer[func() bool] // set while this replica leads
}

// New returns a source that is not running. It fails on a selection that cannot work, and on metrics that are
// already registered.
func New(cfg Config) (*Source, error) {
	if err := cfg.Selection.Validate(); err != nil {
		return nil, err
	}
	sessions := cfg.Sessions
	if sessions == nil {
		var err error
		if sessions, err = session.NewMetrics(cfg.Registerer); err != nil {
			return nil, err
		}
	}
	s := &Source{
		cfg: cfg, metrics: newMetrics(cfg.Registerer), sessions: sessions,
		store: &stateStore{maps: cfg.ConfigMaps, namespace: cfg.StateNamespace, name: StateName(cfg.ID)},
	}
	cfg.Health.Add("informers", func() error {
		if !s.synced.Load() {
			return errors.New("the works of the hub are not read yet")
		}
		return nil
	})
	cfg.Health.Add("leader", func() error {
		if e := cfg.Election; e.Leases != nil && s.synced.Load() && !s.led.Load() {
			return fmt.Errorf("no replica leads: check that the Lease %s/%s can be read and written", e.Namespace, e.Name)
		}
		return nil
	})
	cfg.Health.Add("broker", func() error {
		if connected := s.connected.Load(); connected != nil && !(*connected)() {
			return errors.New("no session with the broker")
		}
		return nil
	})
	return s, nil
}

// Run serves the hub until ctx ends. It returns an error when the hub lacks an API or a permission that it
// needs. It also does when the leader Lease is lost: then the process must end, because another replica may
// already work.
func (s *Source) Run(ctx context.Context) error {
	if err := s.preflight(ctx); err != nil {
		return err
	}
	first, err := s.watch()
	if err != nil {
		return err
	}
	return taskgroup.Group(ctx,
		taskgroup.Task{Name: "informers", Run: first.run},
		taskgroup.Task{Name: "leader", Run: func(ctx context.Context) error { return s.lead(ctx, first) }})
}

// lead waits for the caches and serves while this replica is the leader.
func (s *Source) lead(ctx context.Context, first *watch) error {
	if !first.synced(ctx) {
		return ctx.Err()
	}
	s.synced.Store(true)
	s.cfg.Log.Info("works of the hub are read", "works", len(first.works.GetStore().ListKeys()))
	observed := func(holder string) {
		s.led.Store(true)
		s.cfg.Log.Info("leader observed", "leader", holder, "self", holder == s.cfg.Election.Identity)
	}
	return s.cfg.Election.Lead(ctx, observed, func(ctx context.Context) error {
		s.metrics.leader.Set(1)
		defer s.metrics.leader.Set(0)
		return s.serve(ctx, first)
	})
}

// serve does the work of the leader. It begins with an empty core, which the informers fill before the broker
// session starts.
func (s *Source) serve(ctx context.Context, first *watch) error {
	state, err := query(ctx, s, func() (core.SavedState, error) { return s.store.load(ctx) })
	if err != nil {
		return err
	}
	t := newEventRecorder(s.cfg.Events, s.metrics, s.cfg.Log)
	sh := newShell(shellConfig{
		id: s.cfg.ID, all: s.cfg.Selection.all(), cleanUp: s.cfg.CleanUp, events: t,
		hub:   NewHub(s.cfg.Works.WorkV1(), s.cfg.Metadata),
		store: s.store, state: state, log: s.cfg.Log, metrics: s.metrics,
	})
	defer sh.shutDown() // serve may return before sh runs
	connected := func() bool {
		stats, _ := sh.stats()
		return stats.Connected
	}
	s.connected.Store(&connected)
	defer s.connected.Store(nil)

	tasks := []taskgroup.Task{
		{Name: "workers", Run: sh.Run},
		{Name: "history", Run: func(ctx context.Context) error { return s.cfg.History.Follow(ctx, sh.suspected) }},
		{Name: "hub", Run: func(ctx context.Context) error { return s.live(ctx, sh, first) }},
	}
	if t != nil {
		tasks = append(tasks, taskgroup.Task{Name: "events", Run: t.Run})
	}
	err = taskgroup.Group(ctx, tasks...)
	s.saveLast(ctx, sh)
	return err
}

// lastSave limits the last request of a leader.
const lastSave = 3 * time.Second

// saveLast saves the state, so that the next leader has less to do. It may fail.
func (s *Source) saveLast(ctx context.Context, sh *shell) {
	sh.mu.Lock()
	state, unsaved := sh.core.State()
	sh.mu.Unlock()
	if !unsaved {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
	defer cancel()
	if _, err := s.store.save(ctx, state); err != nil {
		s.cfg.Log.Warn("state was not saved at the end; the next start has to request more statuses", "err", err)
	}
}

// preflight checks for conditions that would make the informers wait for ever: a missing API, or a missing
// permission. If the hub does not answer, it waits.
func (s *Source) preflight(ctx context.Context) error {
	one := metav1.ListOptions{Limit: 1}
	_, err := query(ctx, s, func() (any, error) { return s.cfg.Works.WorkV1().ManifestWorks(metav1.NamespaceAll).List(ctx, one) })
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the hub has no ManifestWork API: install the CRD manifestworks.work.open-cluster-management.io: %w", err)
	}
	if err == nil && s.cfg.Election.Leases != nil {
		_, err = query(ctx, s, func() (any, error) { return nil, s.cfg.Election.Readable(ctx) })
	}
	if err == nil {
		err = s.preflightState(ctx)
	}
	if err != nil || s.cfg.Selection.all() {
		return err
	}
	return s.preflightSelection(ctx, one)
}

// preflightState checks whether the source can read the identity of the hub and its saved state.
func (s *Source) preflightState(ctx context.Context) error {
	system := s.cfg.Metadata.Resource(namespaces)
	_, err := query(ctx, s, func() (any, error) { return system.Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}) })
	if err != nil {
		return fmt.Errorf("the hub is known by the uid of its namespace %s: %w", metav1.NamespaceSystem, err)
	}
	_, err = query(ctx, s, func() (any, error) { return s.store.load(ctx) })
	return err
}

func (s *Source) preflightSelection(ctx context.Context, one metav1.ListOptions) error {
	gvr, _ := s.cfg.Selection.resource()
	_, err := query(ctx, s, func() (any, error) { return s.cfg.Metadata.Resource(gvr).List(ctx, one) })
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the hub has no %s API: select clusters by their namespaces instead (--namespace-selector): %w", gvr.GroupResource(), err)
	}
	return err
}

// patience is how long a hub may forbid a request that it will allow: a hub that starts reads its roles only
// after some time.
const patience = 20 * time.Second

// query repeats a request until the hub answers it.
func query[T any](ctx context.Context, s *Source, request func() (T, error)) (T, error) {
	began := time.Now()
	for delay := time.Second; ; delay = min(2*delay, 15*time.Second) {
		got, err := request()
		forbidden := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return got, err
		case ctx.Err() != nil:
			return got, ctx.Err()
		case forbidden && time.Since(began) >= patience:
			return got, fmt.Errorf("the hub does not let this service account read what it needs (deploy/hub-source/rbac.yaml grants it): %w", err)
		}
		if forbidden {
			s.cfg.Log.Warn("the hub does not let this service account read what it needs. A role is missing (deploy/hub-source/rbac.yaml has them), or the hub has just started and has not read its roles yet", "err", err, "delay", delay)
		} else {
			s.cfg.Log.Warn("hub does not answer, waiting for it", "err", err, "delay", delay)
		}
		if !taskgroup.Sleep(ctx, delay) {
			return got, ctx.Err()
		}
	}
}
