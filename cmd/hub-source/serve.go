package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	workversioned "open-cluster-management.io/api/client/work/clientset/versioned"

	"github.com/hawser-io/hawser/internal/admission"
	"github.com/hawser-io/hawser/internal/admission/webhook"
	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/internal/memlimit"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// serve runs the hub source and its admin port until ctx ends.
func serve(ctx context.Context, cfg *config, stderr io.Writer) error {
	log, err := telemetry.NewLogger(stderr, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(log)
	memlimit.LimitMemory(log)
	c := hubsource.Config{
		ID: cfg.SourceID, Selection: cfg.selection(), CleanUp: cfg.FeatureGates.Enabled(gateCleanUp), Health: &telemetry.Health{}, Log: log,
	}
	registry := telemetry.NewRegistry()
	c.Registerer = registry
	watch, err := cfg.watch(registry, log)
	if err != nil {
		return err
	}
	if c.Dialer, err = cfg.dialer(registry, log); err != nil {
		return err
	}
	c.Changed = watch.Changed()
	c.Health.Add("certificates", watch.Check)
	hub, err := cfg.reachHub(&c)
	if err != nil {
		return err
	}
	down := newOutage(c.Dialer, c.Events, cfg.LeaderElection.ResourceNamespace, cfg.LeaderElection.ResourceName)
	c.Dialer = down
	joins, err := cfg.addRegistration(hub, &c)
	if err != nil {
		return err
	}
	if err := cfg.addRegistrationControllers(hub, &c, joins); err != nil {
		return err
	}
	source, err := hubsource.New(c)
	if err != nil {
		return err
	}
	tasks := []taskgroup.Task{
		{Name: "hub source", Run: source.Run},
		{Name: "certificates", Run: watch.Run},
		{Name: "outage", Run: down.Run},
		{Name: "admin", Run: telemetry.Admin{Addr: cfg.AdminListen, Registry: registry, Health: c.Health, Log: log}.Run},
		{Name: "log level", Run: telemetry.DebugOnSignal(log)},
		memlimit.CollectAtRest(),
	}
	if cfg.Webhook.Listen != "" {
		w, err := cfg.webhook(hub, c)
		if err != nil {
			return err
		}
		tasks = append(tasks, taskgroup.Task{Name: "webhook", Run: w.Run})
	}
	log.Info("starting", "program", telemetry.Version(program), "source_id", cfg.SourceID, "broker", cfg.Broker, "transport", cfg.Transport)
	return taskgroup.Group(ctx, tasks...)
}

// webhook returns the webhook, which every replica serves.
func (c *config) webhook(hub *rest.Config, source hubsource.Config) (*webhook.Webhook, error) {
	files := identity.Files{CA: c.Webhook.ClientCAFile, Cert: c.Webhook.CertFile, Key: c.Webhook.KeyFile}
	certificate, err := files.Serving(func(err error) { source.Log.Error("tls files of the webhook", "err", err) })
	if err != nil {
		return nil, err
	}
	// Each review belongs to a request that the kube-apiserver has admitted. It must not wait behind statuses or a
	// rate limit.
	requesting := rest.CopyConfig(hub)
	requesting.QPS = -1
	access, err := authorizationv1.NewForConfig(requesting)
	if err != nil {
		return nil, fmt.Errorf("reach the hub: %w", err)
	}
	return webhook.New(webhook.Config{
		Addr: c.Webhook.Listen, Certificate: certificate, Access: access.SubjectAccessReviews(),
		Rules: admission.Rules{
			ManifestLimit:    c.Webhook.ManifestLimit,
			CheckNilExecutor: c.FeatureGates.Enabled(gateNilExecutor), CleansUp: c.FeatureGates.Enabled(gateCleanUp),
		},
		Registerer: source.Registerer, Health: source.Health, Log: source.Log,
	})
}

// watch watches the certificate and CA files of the broker connection, and the file that names them.
func (c *config) watch(registry prometheus.Registerer, log *slog.Logger) (*identity.Watch, error) {
	if c.Transport == transport.MQTT {
		return transportmqtt.Watch(c.TransportConfig, c.Insecure, registry, log)
	}
	w := identity.WatchConfig{Log: log, Registry: registry, Read: func() (identity.Driver, error) {
		r, err := c.way()
		return r.driver(), err
	}}
	if c.file != "" {
		w.Also = []string{c.file}
	}
	return identity.NewWatch(w)
}

// way is the part of the configuration with the grpc connection to the broker.
type way struct {
	Broker, CA, Cert, Key, ServerName string
	Insecure                          bool
	Proxy                             transport.Proxy
}

func (w way) driver() identity.Driver {
	return identity.Driver{CAFile: w.CA, ClientCertFile: w.Cert, ClientKeyFile: w.Key, ProxyCAFile: w.Proxy.CAFile}
}

// way returns the current values.
func (c *config) way() (way, error) {
	now, err := c.reread()
	if err != nil {
		return way{}, err
	}
	if now.Transport != c.Transport {
		return way{}, fmt.Errorf("transport %s: the change takes effect after a restart", now.Transport)
	}
	return way{now.Broker, now.TLS.CAFile, now.TLS.CertFile, now.TLS.KeyFile, now.TLS.ServerName, now.Insecure, now.proxy()}, nil
}

// dialer returns the dialer of the configured broker.
func (c *config) dialer(registry prometheus.Registerer, log *slog.Logger) (transport.Dialer, error) {
	if c.Transport == transport.MQTT {
		return c.overMQTT(registry, log)
	}
	return transport.NewReloadingDialer(c.way, func(w way) (transport.Dialer, error) {
		o := transportgrpc.Options{Target: w.Broker, Insecure: w.Insecure, Proxy: w.Proxy, Log: log}
		if !w.Insecure {
			d := w.driver()
			var err error
			if o.Credentials, err = d.Client(w.ServerName, func(err error) { log.Error("tls files", "err", err) }); err != nil {
				return nil, err
			}
		}
		return transportgrpc.NewDialer(o)
	}, func(err error) {
		log.Error("the configuration is invalid; the previous settings of the broker connection stay in use", "err", err)
	})
}

func (c *config) overMQTT(registry prometheus.Registerer, log *slog.Logger) (transport.Dialer, error) {
	metrics, err := transportmqtt.NewMetrics(registry)
	if err != nil {
		return nil, err
	}
	r, err := transportmqtt.NewReloadingDialer(c.TransportConfig, transport.Filter{Source: c.SourceID}, c.Insecure, log, func(o *transportmqtt.Options, f *transportmqtt.File) error {
		if len(f.Unknown) > 0 {
			log.Warn("unknown keys in the transport configuration are ignored", "file", c.TransportConfig, "keys", f.Unknown)
		}
		o.Metrics, o.Proxy = metrics, c.proxy().Or(o.Proxy)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("transport-config: %w", err)
	}
	c.Broker = r.Current().BrokerHost // messages show this address
	return r, nil
}

// reachHub fills in the clients of the hub, and returns their configuration.
func (c *config) reachHub(into *hubsource.Config) (*rest.Config, error) {
	hub, err := kubeconfig.Load(c.Kubeconfig, "kubeconfig")
	if err != nil {
		return nil, fmt.Errorf("reach the hub: %w", err)
	}
	hub.QPS, hub.Burst, hub.UserAgent = c.KubeAPIQPS, c.KubeAPIBurst, program
	into.History = history.NewSignal()
	hub.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return history.Watches(next, func() { into.History.Report(history.Nothing) })
	})
	if into.Works, err = workversioned.NewForConfig(hub); err != nil {
		return nil, fmt.Errorf("reach the hub: %w", err)
	}
	if into.Metadata, err = metadata.NewForConfig(hub); err != nil {
		return nil, fmt.Errorf("reach the hub: %w", err)
	}
	if c.StateNamespace != "" {
		into.StateNamespace = c.StateNamespace
		if into.ConfigMaps, err = corev1.NewForConfig(hub); err != nil {
			return nil, fmt.Errorf("reach the hub: %w", err)
		}
	}
	// Events are written one at a time, with their own low rate.
	events := rest.CopyConfig(hub)
	events.QPS = -1
	if into.Events, err = corev1.NewForConfig(events); err != nil {
		return nil, fmt.Errorf("reach the hub: %w", err)
	}
	if !c.LeaderElection.Enabled {
		return hub, nil
	}
	// Lease renewals must not wait behind other requests.
	leases := rest.CopyConfig(hub)
	leases.QPS, leases.Burst = 5, 10
	into.Election, err = c.election(leases, into.History, into.Log)
	return hub, err
}

func (c *config) election(hub *rest.Config, lost *history.Signal, log *slog.Logger) (leader.Election, error) {
	leases, err := coordinationv1.NewForConfig(hub)
	if err != nil {
		return leader.Election{}, fmt.Errorf("reach the hub: %w", err)
	}
	e := c.LeaderElection
	identity := e.Identity
	if identity == "" {
		if identity, err = leader.Identity(uuid.NewString()); err != nil {
			return leader.Election{}, err
		}
	}
	return leader.Election{
		Leases: leader.Remember(leases, e.ResourceNamespace, e.ResourceName, lost.Report), Namespace: e.ResourceNamespace, Name: e.ResourceName,
		Identity: identity, Log: log,
		Duration: time.Duration(e.LeaseDuration), RenewDeadline: time.Duration(e.RenewDeadline), RetryPeriod: time.Duration(e.RetryPeriod),
	}, nil
}
