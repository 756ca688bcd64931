package main

import (
	"context"
	"io"
	"os"
	"runtime/debug"

	"k8s.io/klog/v2"

	"github.com/hawser-io/hawser/internal/run"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/cluster"
	"github.com/hawser-io/hawser/pkg/agent/drift"
)

// gcPercent keeps the heap of a program small that mostly waits; GOGC in the
// environment wins.
const gcPercent = 50

// serve runs the agent and its admin port until ctx ends.
func serve(ctx context.Context, cfg *config, stderr io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log, err := telemetry.NewLogger(stderr, cfg.logLevel, cfg.logFormat)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(log)
	broker, err := readDriver(cfg.sourceConfig, cfg.insecure)
	if err != nil {
		return err
	}
	if len(broker.unknown) > 0 {
		log.Warn("keys of the workload source configuration that mean nothing here", "file", cfg.sourceConfig, "keys", broker.unknown)
	}
	if broker.KeepAliveConfig != nil {
		log.Info("keepAliveConfig is not needed: connections are always watched by pings and heartbeats", "file", cfg.sourceConfig)
	}
	registry, health := telemetry.NewRegistry(), &telemetry.Health{}
	c := agent.Config{
		Cluster: cfg.clusterName, HubIdentity: cfg.hubIdentity, AgentID: cfg.agentID, ClientID: cfg.clientID,
		Workers: cfg.workers, StatusSyncInterval: cfg.statusSyncInterval,
		EvictionGracePeriod: max(cfg.evictionGrace, 1), // 0 would mean the default
		Log:                 log, Registry: registry,
	}
	if c.HubIdentity == "" {
		c.HubIdentity = broker.URL
	}
	if c.Dialer, err = broker.dialer(cfg.insecure, log); err != nil {
		return err
	}
	if err := cfg.reachCluster(&c); err != nil {
		return err
	}
	a, err := agent.New(c)
	if err != nil {
		return err
	}
	health.Add("cluster", a.ClusterReady)
	health.Add("broker", a.BrokerReady)
	log.Info("starting", "program", telemetry.Version(program), "cluster", cfg.clusterName, "broker", broker.URL, "hub_identity", c.HubIdentity)
	return run.Group(ctx,
		run.Task{Name: "agent", Run: a.Run},
		run.Task{Name: "admin", Run: telemetry.Admin{Addr: cfg.adminListen, Registry: registry, Health: health, Log: log}.Run},
	)
}

// reachCluster fills in the clients of the managed cluster.
func (c *config) reachCluster(into *agent.Config) error {
	r, err := c.cluster()
	if err != nil {
		return err
	}
	kube, err := cluster.NewKube(cluster.KubeConfig{REST: r, QPS: c.kubeAPIQPS, Burst: c.kubeAPIBurst})
	if err != nil {
		return err
	}
	into.Client, into.Metadata = kube, drift.Metadata(kube.Metadata())
	return nil
}
