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

// broker is the agent's connection to the broker of its hub, with either driver. Its configuration file is read
// again for each connection.
type broker struct {
	dialer transport.Dialer
	// current returns the values that the last connection used.
	current func() reached
	// agent is set once the agent exists: its will is sent with each MQTT connection.
	agent atomic.Pointer[agent.Agent]
	// watch watches the configuration file and the files that it names.
	watch *identity.Watch
	// joining is nil unless the agent registers itself.
	joining *joining
}

// changed signals that the next connection may succeed: the configuration, a file or the certificate has
// changed.
func (b *broker) changed() <-chan struct{} {
	if b.joining != nil {
		return b.joining.changed
	}
	return b.watch.Changed()
}

// reached is the broker's address and CAs from the configuration file.
type reached struct {
	addr string
	identity.Driver
}

// reachBroker reads the configuration file of the broker connection.
func (c *config) reachBroker(registry prometheus.Registerer, log *slog.Logger) (*broker, error) {
	if c.joins() {
		return c.reachJoining(registry, log)
	}
	if c.sourceDriver == driverMQTT {
		return c.reachMQTT(registry, log)
	}
	read := func() (*driver, error) { return c.readDriver(c.insecure) }
	// Reads the files first: see NewWatch.
	watch, err := identity.NewWatch(identity.WatchConfig{Log: log, Registry: registry, Also: []string{c.sourceConfig}, Read: identityOf(read)})
	if err != nil {
		return nil, err
	}
	mayMove := c.mayMove()
	r, err := transport.NewReloadingDialer(read, func(d *driver) (transport.Dialer, error) {
		if err := mayMove(d.URL); err != nil {
			return nil, err
		}
		c.logUnknown(log, c.sourceConfig, d.unknown)
		if d.KeepAliveConfig != nil {
			log.Info("keepAliveConfig is not needed: connections are always watched by pings and heartbeats", "file", c.sourceConfig)
		}
		return d.dialer(c.insecure, log)
	}, func(err error) {
		log.Error("the configuration file of the broker connection is invalid; its previous content stays in use", "error", err)
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
			return a.LastWill()
		}
		return e, false
	}
	mayMove := c.mayMove()
	r, err := transportmqtt.NewReloadingDialer(c.sourceConfig, transport.Filter{Cluster: c.clusterName}, c.insecure, log, func(o *transportmqtt.Options, f *transportmqtt.File) error {
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

// readDriver reads the configuration file, and applies the proxy flags.
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

// mayMove returns a function that rejects a broker address other than the first one. Without --hub-identity the
// address identifies the hub, and the identity is determined only at the start.
func (c *config) mayMove() func(addr string) error {
	first := ""
	return func(addr string) error {
		if first == "" {
			first = addr
		}
		_, file := c.brokerFile()
		if c.hubIdentity == "" && addr != first {
			return fmt.Errorf("%s names the broker %s instead of %s: without --hub-identity this takes effect after a restart", file, addr, first)
		}
		return nil
	}
}

// The flags that name the configuration file of the broker connection.
const (
	flagSource    = "workload-source-config"
	flagBootstrap = "grpc-bootstrap-config"
)

// brokerFile returns the flag and path of that file.
func (c *config) brokerFile() (flag, path string) {
	if c.joins() {
		return flagBootstrap, c.bootstrapConfig
	}
	return flagSource, c.sourceConfig
}

func (c *config) logUnknown(log *slog.Logger, file string, keys []string) {
	if len(keys) > 0 {
		log.Warn("unknown keys in the configuration of the broker connection are ignored", "file", file, "keys", keys)
	}
}

// trusted returns the fingerprints of the broker's CAs; nil means the CAs of the system.
func (b *broker) trusted() ([]string, error) {
	now := b.current()
	ca, err := now.CA()
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	return hubidentity.Fingerprints(ca), nil
}
