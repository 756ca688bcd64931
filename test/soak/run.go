package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"

	"github.com/hawser-io/hawser/internal/local/controlplane"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/consistency"
)

// The clusters. The agent of the second one is the victim.
const cluster1, cluster2 = "cluster1", "cluster2"

// soak is one run.
type soak struct {
	plan  plan
	seed  uint64
	began time.Time
	fleet *fleet.Fleet
	load  *load
	watch sync.WaitGroup
}

func run(ctx context.Context, length time.Duration, seed uint64) (err error) {
	p, err := newPlan(length)
	if err != nil {
		return err
	}
	s := &soak{plan: p, seed: seed, began: time.Now()}
	s.printf("seed %d: storm until %s, growth is judged from %s to %s, storm until %s", seed, p.storm, p.calm, p.judged, p.end)
	dir, err := os.MkdirTemp("", "hawser-soak-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nlogs are kept in %s", err, filepath.Join(dir, "logs"))
			return
		}
		err = os.RemoveAll(dir)
	}()
	if err := s.start(ctx, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fleet.Stop()) }()
	return s.run(ctx)
}

// printf prints a line with the seconds since the start of the load.
func (s *soak) printf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "soak: %4.0fs %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// start starts the fleet.
func (s *soak) start(ctx context.Context, dir string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	programs, err := controlplane.Build(ctx, root, os.Stderr)
	if err != nil {
		return err
	}
	s.fleet = fleet.New(fleet.Config{
		Root: root, Dir: dir, Bin: filepath.Join(root, "bin"), ControlPlane: programs,
		Clusters: []string{cluster1, cluster2},
		// Works change while hub-source is down.
		NoWebhook: true,
		Args: map[string][]string{
			// A hub that is down, or a pause, must not end a process whose growth is measured.
			fleet.HubSource: {"--leader-elect-lease-duration=3m", "--leader-elect-renew-deadline=2m"},
		},
		Printf: s.printf,
	})
	return s.fleet.Start(ctx)
}

func (s *soak) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.watch.Wait()
	defer cancel() // this ends the watches before the wait for them
	if err := s.prepare(ctx); err != nil {
		return err
	}
	s.began = time.Now()
	since := func() time.Duration { return time.Since(s.began) }
	f := &faults{fleet: s.fleet, plan: s.plan, seed: s.seed, since: since, printf: s.printf, victim: fleet.AgentOf(cluster2), count: map[string]int{}}
	samples := &sampler{fleet: s.fleet, since: since, got: map[string]series{}}

	var side sync.WaitGroup
	loading, unload := context.WithCancel(ctx)
	defer side.Wait()
	defer unload()
	var loadErr, slowErr, churnErr error
	var read int
	var churn churner
	side.Go(func() { loadErr = s.load.run(loading, []string{cluster1, cluster2}) })
	side.Go(func() { samples.run(loading) })
	side.Go(func() { read, slowErr = slowly(loading, s.fleet.PKI(), s.fleet.BrokerAddr(), cluster2) })
	side.Go(func() { churnErr = churn.run(loading, s.fleet.PKI(), s.fleet.BrokerAddr()) })
	err := f.run(ctx)
	s.printf("faults are over")
	unload()
	side.Wait()
	err = errors.Join(err, samples.write(filepath.Join(s.fleet.LogDir(), "samples.csv")))
	if err := errors.Join(err, loadErr, slowErr, churnErr); err != nil {
		return err
	}
	settled := s.settle(ctx)
	for _, what := range slices.Sorted(maps.Keys(f.count)) {
		s.printf("%3d × %s", f.count[what], what)
	}
	s.printf("%d works created, %d updates, %d works deleted; the watches saw %d events, the slow subscriber read %d, the program published %d",
		s.load.created.Load(), s.load.updated.Load(), s.load.deleted.Load(), s.load.History.Events(), read, churn.done)
	return errors.Join(settled, s.promises(), s.judge(samples))
}

// prepare starts the watches.
func (s *soak) prepare(ctx context.Context) error {
	hub, err := workclientOf(s.fleet.Hub)
	if err != nil {
		return err
	}
	s.load = &load{seed: s.seed, Works: &consistency.Works{
		Hub: hub, Clusters: map[string]consistency.Cluster{}, Namespace: "soak", History: consistency.NewHistory(time.Now),
	}}
	for name, c := range s.fleet.Clusters {
		work, err := workclientOf(c)
		if err != nil {
			return err
		}
		cfg, err := c.RESTConfig()
		if err != nil {
			return err
		}
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.load.Namespace}}
		if _, err := kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
		s.load.Clusters[name] = consistency.Cluster{Kube: kube, Work: work}
		w := consistency.Watch{Cluster: name, Client: kube, Namespace: s.load.Namespace, History: s.load.History}
		s.watch.Go(func() { w.Run(ctx) })
	}
	return nil
}

func workclientOf(c *controlplane.Cluster) (workclient.Interface, error) {
	cfg, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	return workclient.NewForConfig(cfg)
}

// settle waits until hub and clusters are equal.
func (s *soak) settle(ctx context.Context) error {
	const within = 2 * time.Minute
	began := time.Now()
	deadline := time.After(within)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.load.Converged(ctx)
		if err == nil {
			s.printf("hub and clusters agree after %.1f s", time.Since(began).Seconds())
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("hub and clusters do not agree after %s without faults: %w", within, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// promises returns an error for each complaint of the history, and for each crash of a program.
func (s *soak) promises() error {
	var errs []error
	for _, c := range s.load.History.Complaints() {
		errs = append(errs, fmt.Errorf("broken promise: %s", c))
	}
	for _, name := range s.fleet.Programs() {
		for _, c := range s.fleet.Program(name).Crashes() {
			errs = append(errs, fmt.Errorf("%s ended by itself: %s", name, c))
		}
	}
	return errors.Join(errs...)
}

// judge compares the first and the last state of the long-lived processes.
func (s *soak) judge(samples *sampler) error {
	var all []growth
	var errs []error
	for _, name := range []string{fleet.Broker, fleet.HubSource, fleet.AgentOf(cluster1)} {
		g, err := s.plan.judge(name, samples.series(name))
		all, errs = append(all, g...), append(errs, err)
	}
	return errors.Join(append(errs, table(os.Stdout, all))...)
}
