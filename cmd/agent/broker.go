package main

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// broker is how the agent reaches the broker of its hub, by either driver. The file that
// says so is read again for each connection.
type broker struct {
	dialer transport.Dialer
	// current returns what the last connection was made with.
	current func() reached
	// agent is set once there is one: its will goes with each connection over MQTT.
	agent atomic.Pointer[agent.Agent]
	// watch looks at that file and at those that it names.
	watch *identity.Watch
	// joining is nil unless the agent registers itself.
	joining *joining
}

// changed gets a value when works may flow that could not before.
func (b *broker) changed() <-chan struct{} {
	if b.joining != nil {
		return b.joining.changed
	}
	return b.watch.Changed()
}

// reached is what is known of the broker by the file: its address, and the CAs.
type reached struct {
	addr string
	identity.Driver
}

// reachBroker reads the file that says how to reach the broker.
func (c *config) reachBroker(registry prometheus.Registerer, log *slog.Logger) (*broker, error) {
	if c.joins() {
		return c.reachJoining(registry, log)
	}
	if c.sourceDriver == driverMQTT {
		return c.reachMQTT(registry, log)
	}
	read := func() (*driver, error) { return c.readDriver(c.insecure) }
	// It looks first: see NewWatch.
	watch, err := identity.NewWatch(identity.WatchConfig{Log: log, Registry: registry, Also: []string{c.sourceConfig}, Read: identityOf(read)})
	if err != nil {
		return nil, err
	}
	mayMove := c.mayMove()
	r, err := transport.NewReread(read, func(d *driver) (transport.Dialer, error) {
		if err := mayMove(d.URL); err != nil {
			return nil, err
		}
		c.logUnknown(log, c.sourceConfig, d.unknown)
		if d.KeepAliveConfig != nil {
			log.Info("keepAliveConfig is not needed: connections are always watched by pings and heartbeats", "file", c.sourceConfig)
		}
		return d.dialer(c.insecure, log)
	}, func(err error) {
		log.Error("the file for the broker cannot be used, what it said before stays in use", "error", err)
	})
	if err != nil {
		return nil, err
	}
	current := func() reached { d := r.Current(); return reached{d.URL, d.Driver} }
	return &broker{dialer: r, current: current, watch: watch}, nil
}

func (c *config) reachMQTT(registry prometheus.Registerer, log *slog.Logger) (*broker, error) {
	watch, err := transportmqtt.Watch(c.sourceConfig, c.insecure, registry, log)
	if err != nil {
		return nil, err
	}
	metrics, err := transportmqtt.NewMetrics(registry)
	if err != nil {
		return nil, err
	}
	b := &broker{watch: watch}
	will := func() (e codec.Event, ok bool) {
		if a := b.agent.Load(); a != nil {
			return a.Will()
		}
		return e, false
	}
	mayMove := c.mayMove()
	r, err := transportmqtt.Reread(c.sourceConfig, transport.Filter{Cluster: c.clusterName}, c.insecure, log, func(o *transportmqtt.Options, f *transportmqtt.File) error {
		c.logUnknown(log, c.sourceConfig, f.Unknown)
		o.Metrics, o.Will, o.Proxy = metrics, will, c.proxy.Or(o.Proxy)
		return mayMove(f.BrokerHost)
	})
	if err != nil {
		return nil, fmt.Errorf("workload-source-config: %w", err)
	}
	b.dialer, b.current = r, func() reached { f := r.Current(); return reached{f.BrokerHost, f.Driver} }
	return b, nil
}

// readDriver reads the file for the broker, with what flags say of the proxy.
func (c *config) readDriver(insecure bool) (*driver, error) {
	flag, path := c.brokerFile()
	d, err := readDriver(flag, path, insecure)
	if err == nil {
		d.OverrideProxy(c.proxy.URL, c.proxy.CAFile)
	}
	return d, err
}

func identityOf(read func() (*driver, error)) func() (identity.Driver, error) {
	return func() (identity.Driver, error) {
		d, err := read()
		if err != nil {
			return identity.Driver{}, err
		}
		return d.Driver, nil
	}
}

// mayMove returns what says why another address of the broker cannot be used than the first
// that it was asked about. Without an identity of the hub the address tells which hub it is,
// and that is found out at the start.
func (c *config) mayMove() func(addr string) error {
	first := ""
	return func(addr string) error {
		if first == "" {
			first = addr
		}
		_, file := c.brokerFile()
		if c.hubIdentity == "" && addr != first {
			return fmt.Errorf("%s names the broker %s in the place of %s: without --hub-identity that counts after a restart", file, addr, first)
		}
		return nil
	}
}

// The flags that name the file which says how to reach the broker.
const (
	flagSource    = "workload-source-config"
	flagBootstrap = "grpc-bootstrap-config"
)

// brokerFile says how to reach the broker.
func (c *config) brokerFile() (flag, path string) {
	if c.joins() {
		return flagBootstrap, c.bootstrapConfig
	}
	return flagSource, c.sourceConfig
}

func (c *config) logUnknown(log *slog.Logger, file string, keys []string) {
	if len(keys) > 0 {
		log.Warn("keys of the configuration of the broker that mean nothing here", "file", file, "keys", keys)
	}
}

// trusted returns the fingerprints of the CAs of the broker; nil where those of
// the system count.
func (b *broker) trusted() ([]string, error) {
	now := b.current()
	ca, err := now.CA()
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	return hubidentity.Fingerprints(ca), nil
}
