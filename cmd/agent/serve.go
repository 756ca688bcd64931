package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/memlimit"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/feedback"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// serve runs the agent and its admin port until ctx ends. The Lease is released after the agent has ended, then
// the state directory.
func serve(ctx context.Context, cfg *config, stderr io.Writer) (err error) {
	use := profiles[cfg.profile]
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(use.gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" && use.memory > 0 {
		debug.SetMemoryLimit(use.memory)
	}
	log, err := telemetry.NewLogger(stderr, cfg.output.Log.Level, cfg.output.Log.Format)
	if err != nil {
		return err
	}
	memlimit.LimitMemory(log)
	klog.SetSlogLogger(log)
	cmdline.KeepPrivate() // the state directory
	registry, health := telemetry.NewRegistry(), &telemetry.Health{}
	c := agent.Config{
		Cluster: cfg.clusterName, AgentID: cfg.agentID, ClientID: cfg.clientID, Version: telemetry.Release(),
		Workers: min(cfg.workers, use.inFlight), InFlight: use.inFlight, StatusSyncInterval: cfg.statusSyncInterval,
		EvictionGracePeriod: max(cfg.evictionGrace, 1), // 0 would mean the default
		KeepPermits:         cfg.gates.Enabled(gateExecutorCaches),
		Feedback:            feedback.Reader{Raw: cfg.gates.Enabled(gateRawFeedback), RawLength: cfg.maxRawLength},
		Log:                 log, Registry: registry,
	}
	namespace, err := cfg.ownNamespace(podNamespace)
	if err != nil {
		return err
	}
	broker, err := cfg.reachBroker(registry, log)
	if err != nil {
		return err
	}
	c.Dialer, c.Changed = broker.dialer, broker.changed()
	if cfg.joins() {
		c.Refused = rightsAgain
	}
	kube, answering, err := cfg.reachCluster(&c)
	if err != nil {
		return err
	}
	j, err := cfg.openJournal(log)
	if err != nil {
		return err
	}
	if j != nil { // a nil *Journal in the interface would compare unequal to nil
		c.Journal = j
		defer func() { err = errors.Join(err, j.Close()) }()
	}
	p := &process{cfg: cfg, agent: c, broker: broker, rest: kube, answering: answering, namespace: namespace, journal: j, registry: registry}
	p.hubs = hubidentity.Registry{Objects: c.Client, Records: hubidentity.RecordsOf(c.Metadata), Namespace: namespace, Now: time.Now}
	health.Add("identity", p.identityReady)
	health.Add("lease", p.leaseReady)
	health.Add("policy", p.policyReady)
	health.Add("cluster", p.unlessStandby(p.clusterReady))
	health.Add("registration", p.unlessStandby(p.registrationReady))
	health.Add("broker", p.unlessStandby(p.brokerReady))
	health.Add("works", p.late)
	health.Add("certificates", broker.watch.Check)
	log.Info("starting", "program", telemetry.Version(program), "cluster", cfg.clusterName, "broker", broker.current().addr, "transport", cfg.sourceDriver)
	return taskgroup.Group(ctx,
		taskgroup.Task{Name: "agent", Run: p.run},
		taskgroup.Task{Name: "certificates", Run: broker.watch.Run},
		taskgroup.Task{Name: "admin", Run: telemetry.Admin{Addr: cfg.output.AdminListen, Registry: registry, Health: health, Log: log}.Run},
		taskgroup.Task{Name: "log level", Run: telemetry.DebugOnSignal(log)},
		memlimit.CollectAtRest(),
	)
}

// openJournal opens the state directory; without one it returns nil.
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

// reachCluster fills in the clients of the managed cluster. It returns their configuration, and a check whether
// the cluster answers.
func (c *config) reachCluster(into *agent.Config) (r *rest.Config, answering func() error, err error) {
	if r, err = c.cluster(); err != nil {
		return nil, nil, err
	}
	kube, err := kubeclient.NewKube(kubeclient.KubeConfig{REST: r, QPS: c.kubeAPIQPS, Burst: c.kubeAPIBurst, InFlight: profiles[c.profile].inFlight})
	if err != nil {
		return nil, nil, err
	}
	into.Client, into.Metadata = kube, drift.Metadata(kube.Metadata())
	return r, kube.Answering, nil
}
