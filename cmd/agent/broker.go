package main

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/hub"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// broker is how the agent reaches the broker of its hub, by either driver.
type broker struct {
	// addr is the broker's, as the file has it.
	addr   string
	dialer transport.Dialer
	// agent is set once there is one: its will goes with each connection over MQTT.
	agent atomic.Pointer[agent.Agent]
	// watch looks at the files by which the broker knows the agent, and the agent the broker.
	watch *identity.Watch
	// ca returns the CAs of the broker; nil where those of the system count.
	ca func() ([]byte, error)
}

// reachBroker reads the file that says how to reach the broker.
func (c *config) reachBroker(registry prometheus.Registerer, log *slog.Logger) (*broker, error) {
	if c.sourceDriver == driverMQTT {
		return c.reachMQTT(registry, log)
	}
	d, err := readDriver(c.sourceConfig, c.insecure)
	if err != nil {
		return nil, err
	}
	c.tellUnknown(log, d.unknown)
	d.OverrideProxy(c.proxy.URL, c.proxy.CAFile)
	if d.KeepAliveConfig != nil {
		log.Info("keepAliveConfig is not needed: connections are always watched by pings and heartbeats", "file", c.sourceConfig)
	}
	b := &broker{addr: d.URL, ca: d.CA}
	read := func() (identity.Driver, error) { return d.Driver, nil }
	if b.watch, err = identity.NewWatch(identity.WatchConfig{Read: read, Log: log, Registry: registry}); err != nil {
		return nil, err
	}
	b.dialer, err = d.dialer(c.insecure, log)
	return b, err
}

func (c *config) reachMQTT(registry prometheus.Registerer, log *slog.Logger) (*broker, error) {
	watch, err := transportmqtt.Watch(c.sourceConfig, c.insecure, registry, log)
	if err != nil {
		return nil, err
	}
	o, f, err := transportmqtt.Load(c.sourceConfig, transport.Filter{Cluster: c.clusterName}, c.insecure, log)
	if err != nil {
		return nil, fmt.Errorf("workload-source-config: %w", err)
	}
	c.tellUnknown(log, f.Unknown)
	o.Proxy = c.proxy.Or(o.Proxy)
	if o.Metrics, err = transportmqtt.NewMetrics(registry); err != nil {
		return nil, err
	}
	b := &broker{addr: f.BrokerHost, ca: f.CA, watch: watch}
	o.Will = func() (e codec.Event, ok bool) {
		if a := b.agent.Load(); a != nil {
			return a.Will()
		}
		return e, false
	}
	b.dialer, err = transportmqtt.NewDialer(o)
	return b, err
}

func (c *config) tellUnknown(log *slog.Logger, keys []string) {
	if len(keys) > 0 {
		log.Warn("keys of the workload source configuration that mean nothing here", "file", c.sourceConfig, "keys", keys)
	}
}

// trusted returns the fingerprints of the CAs of the broker; nil where those of
// the system count.
func (b *broker) trusted() ([]string, error) {
	ca, err := b.ca()
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	return hub.Fingerprints(ca), nil
}
