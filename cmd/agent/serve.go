package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/hawser-io/hawser/internal/run"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/cluster"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/feedback"
	"github.com/hawser-io/hawser/pkg/agent/journal"
)

// gcPercent keeps the heap of a program small that mostly waits; GOGC in the
// environment wins.
const gcPercent = 50

// serve runs the agent and its admin port until ctx ends. The Lease is given up
// when the agent has ended, the state directory after that.
func serve(ctx context.Context, cfg *config, stderr io.Writer) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log, err := telemetry.NewLogger(stderr, cfg.output.Log.Level, cfg.output.Log.Format)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(log)
	broker, err := cfg.readBroker(log)
	if err != nil {
		return err
	}
	registry, health := telemetry.NewRegistry(), &telemetry.Health{}
	c := agent.Config{
		Cluster: cfg.clusterName, HubIdentity: cfg.hubIdentity, AgentID: cfg.agentID, ClientID: cfg.clientID,
		Workers: cfg.workers, StatusSyncInterval: cfg.statusSyncInterval,
		EvictionGracePeriod: max(cfg.evictionGrace, 1), // 0 would mean the default
		KeepPermits:         cfg.gates.Enabled(gateExecutorCaches),
		Feedback:            feedback.Reader{Raw: cfg.gates.Enabled(gateRawFeedback), RawLength: cfg.maxRawLength},
		Log:                 log, Registry: registry,
	}
	if c.HubIdentity == "" {
		c.HubIdentity = broker.URL
	}
	if c.Dialer, err = broker.dialer(cfg.insecure, log); err != nil {
		return err
	}
	kube, err := cfg.reachCluster(&c)
	if err != nil {
		return err
	}
	j, err := cfg.openJournal(log)
	if err != nil {
		return err
	}
	if j != nil { // a nil *Journal in the interface would be one that is there
		c.Journal = j
		defer func() { err = errors.Join(err, j.Close()) }()
	}
	l, err := cfg.newLease(kube, c.HubIdentity, j, log)
	if err != nil {
		return err
	}
	a, err := agent.New(c)
	if err != nil {
		return err
	}
	health.Add("lease", l.ready)
	health.Add("cluster", l.unlessStandby(a.ClusterReady))
	health.Add("broker", l.unlessStandby(a.BrokerReady))
	log.Info("starting", "program", telemetry.Version(program), "cluster", cfg.clusterName, "broker", broker.URL, "hub_identity", c.HubIdentity)
	return run.Group(ctx,
		run.Task{Name: "agent", Run: func(ctx context.Context) error { return l.lead(ctx, a.Run) }},
		run.Task{Name: "admin", Run: telemetry.Admin{Addr: cfg.output.AdminListen, Registry: registry, Health: health, Log: log}.Run},
	)
}

// readBroker reads the file that says how to reach the broker.
func (c *config) readBroker(log *slog.Logger) (*driver, error) {
	broker, err := readDriver(c.sourceConfig, c.insecure)
	if err != nil {
		return nil, err
	}
	if len(broker.unknown) > 0 {
		log.Warn("keys of the workload source configuration that mean nothing here", "file", c.sourceConfig, "keys", broker.unknown)
	}
	if broker.KeepAliveConfig != nil {
		log.Info("keepAliveConfig is not needed: connections are always watched by pings and heartbeats", "file", c.sourceConfig)
	}
	return broker, nil
}

// openJournal opens the state directory; nil if there is to be none.
func (c *config) openJournal(log *slog.Logger) (*journal.Journal, error) {
	if c.stateDir == "" {
		return nil, nil
	}
	j, err := journal.Open(journal.Config{Dir: c.stateDir, Log: log})
	if err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	return j, nil
}

// reachCluster fills in the clients of the managed cluster, and returns how to
// reach it.
func (c *config) reachCluster(into *agent.Config) (*rest.Config, error) {
	r, err := c.cluster()
	if err != nil {
		return nil, err
	}
	kube, err := cluster.NewKube(cluster.KubeConfig{REST: r, QPS: c.kubeAPIQPS, Burst: c.kubeAPIBurst})
	if err != nil {
		return nil, err
	}
	into.Client, into.Metadata = kube, drift.Metadata(kube.Metadata())
	return r, nil
}
