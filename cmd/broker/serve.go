package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/memlimit"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// serve runs the broker until ctx ends and all parts have stopped.
func serve(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	log, err := telemetry.NewLogger(stderr, c.Log.Level, c.Log.Format)
	if err != nil {
		return err
	}
	slog.SetDefault(log)
	memlimit.LimitMemory(log)
	log.Info("starting", "version", telemetry.Version(program))
	creds, err := c.credentials(log)
	if err == nil {
		err = c.logServerConfig(log)
	}
	if err != nil {
		return err
	}
	registry := telemetry.NewRegistry()
	cmdline.KeepPrivate()
	if open, err := cmdline.MakePrivate(c.DataDir); open > 0 || err != nil {
		log.Warn("other users could read files of the data directory; their permissions were removed, unless there is an error", "files", open, "error", err)
	}
	s, err := c.openStore(ctx, log, registry)
	if err != nil {
		return err
	}
	stream := audit.New(c.Audit, stdout, registry, log)
	ended := audited(stream)
	b, tasks, err := c.tasks(s, creds, log, registry, stream)
	if err == nil {
		serving, end := c.moveFirst(ctx, b)
		err = taskgroup.Group(serving, tasks...)
		end()
	}
	ended()
	log.Info("stopped")
	if closed := s.Close(); !errors.Is(err, closed) { // an error of the store may have ended the tasks
		err = errors.Join(err, closed)
	}
	return err
}

// openStore opens the store, which the caller must close.
func (c *config) openStore(ctx context.Context, log *slog.Logger, registry prometheus.Registerer) (store.Store, error) {
	if c.Store.Engine == enginePostgres {
		s, err := postgres.Open(ctx, postgres.Options{URL: c.Store.URL, PasswordFile: c.Store.PasswordFile, Log: log, Registry: registry})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	s, err := pebble.Open(pebble.Options{Dir: c.DataDir, Log: log, Stop: ctx.Done()})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return s, nil
}

// drainTimeout returns the time for the end of the tasks. Clients of a shared store move before that, in the other
// half.
func (c *config) drainTimeout() time.Duration {
	if c.Store.Engine == enginePostgres {
		return time.Duration(c.DrainTimeout) / 2
	}
	return time.Duration(c.DrainTimeout)
}

// moveFirst returns a context for the tasks of the program. It ends after ctx has ended and the clients have moved to
// other replicas, which takes half of the drain timeout at most. The function end must be called after the tasks.
func (c *config) moveFirst(ctx context.Context, b *broker.Broker) (serving context.Context, end func()) {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() { // ends with serving
		b.MoveClients(serving, time.Duration(c.DrainTimeout)/2)
		stop()
	})
	return serving, func() { forget(); stop() }
}

// audited writes the audit stream until end is called, which must be after the last audited event.
func audited(stream *audit.Log) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // end waits for it, unless the stream is not being read
		defer close(done)
		stream.Run(ctx)
	}()
	return func() {
		stop()
		select {
		case <-done:
		case <-time.After(time.Second):
		}
	}
}

// tasks connects the parts of the program.
func (c *config) tasks(
	s store.Store, creds *identity.Server, log *slog.Logger, registry *prometheus.Registry, stream *audit.Log,
) (*broker.Broker, []taskgroup.Task, error) {
	health := &telemetry.Health{}
	watch, err := c.watch(registry, log)
	if err != nil {
		return nil, nil, err
	}
	b, err := broker.New(broker.Config{
		Store: s, Log: log, Registry: registry, Audit: stream, Insecure: c.Insecure,
		MaxEventBytes: c.MaxEventBytes, QueueBytes: max(broker.DefaultQueueBytes, 8*c.MaxEventBytes),
		DrainTimeout: c.drainTimeout(), Quotas: quota.NewTable(c.Identities, c.ClusterQuota),
		Registration: c.Registration.Source,
	})
	if err != nil {
		return nil, nil, err
	}
	proxies, err := c.proxies()
	if err != nil {
		return nil, nil, err
	}
	messages := max(listener.DefaultMaxMessageBytes, 2*c.MaxEventBytes)
	mqttFront, err := mqtt.New(mqtt.Config{
		Server: b, MaxPacketBytes: messages, DrainTimeout: c.drainTimeout(), Log: log, OnPanic: b.Panicked,
		Announce: func() property.Announcement {
			return property.Announcement{StoreID: s.Head().StoreID, MaxEventBytes: b.MaxEventBytes()}
		},
	})
	if err != nil {
		return nil, nil, err
	}
	bearers, tasks, err := c.bearers(b, log, registry)
	if err != nil {
		return nil, nil, err
	}
	front, err := grpc.New(grpc.Config{
		Config: listener.Config{
			Addr: c.Listen, Credentials: transportCredentials(creds), Denials: b.Denials(), Audit: stream, Mapping: c.Identities, Tokens: bearers, Insecure: c.Insecure,
			MaxMessageBytes:      messages,
			HandshakesPerAddress: c.HandshakesPerAddress, Proxies: proxies, Log: log, Registry: registry,
		},
		Server: b, Admin: b, DrainTimeout: c.drainTimeout(), Other: mqttFront.Serve, OnPanic: b.Panicked,
	})
	if err != nil {
		return nil, nil, err
	}
	if creds != nil && c.Registration.Source != "" {
		b.Registration().OnKeys(c.keepAuthorities(log))
	}
	health.Add("broker", b.Ready)
	health.Add("grpc", front.Ready)
	health.Add("store", storeReady(s))
	if creds != nil {
		health.Add("certificate", creds.Check)
	}
	health.Add("certificates", watch.Check)
	admin := telemetry.Admin{Addr: c.AdminListen, Registry: registry, Health: health, Log: log}
	return b, append(tasks,
		taskgroup.Task{Name: "broker", Run: b.Run},
		taskgroup.Task{Name: "grpc", Run: front.Run},
		taskgroup.Task{Name: "mqtt", Run: mqttFront.Run},
		taskgroup.Task{Name: "certificates", Run: watch.Run},
		taskgroup.Task{Name: "admin", Run: admin.Run},
		taskgroup.Task{Name: "log level", Run: telemetry.DebugOnSignal(log)},
		memlimit.CollectAtRest(),
	), nil
}

// storeReady returns a check that reports why a store rejects writes.
func storeReady(s store.Store) func() error {
	return func() error {
		err := s.Err()
		if errors.Is(err, store.ErrLow) { // the broker must still accept deletions
			err = telemetry.Notice(err)
		}
		return err
	}
}

// bearers returns the token verification with its background tasks; nil if no tokens are accepted.
func (c *config) bearers(b *broker.Broker, log *slog.Logger, registry prometheus.Registerer) (*tokens.Tokens, []taskgroup.Task, error) {
	if !c.Tokens.Enabled() {
		return nil, nil, nil
	}
	t, err := tokens.New(tokens.Options{Config: c.Tokens, Reviewer: b.Registration(), Log: log, Registry: registry})
	if err != nil {
		return nil, nil, err
	}
	b.Registration().OnKeys(t.SetKeys)
	return t, []taskgroup.Task{{Name: "tokens", Run: t.Run}}, nil
}

// transportCredentials returns the credentials of a port; the port may have none.
func transportCredentials(s *identity.Server) credentials.TransportCredentials {
	if s == nil {
		return nil
	}
	return s
}

// watch watches the TLS files of the port.
func (c *config) watch(registry prometheus.Registerer, log *slog.Logger) (*identity.Watch, error) {
	read := func() (identity.Driver, error) {
		return identity.Driver{CAFile: c.TLS.ClientCAFile, ClientCertFile: c.TLS.CertFile, ClientKeyFile: c.TLS.KeyFile}, nil
	}
	return identity.NewWatch(identity.WatchConfig{Read: read, Log: log, Registry: registry})
}

// hubCAFile is the file with the CAs of agents that the source of registration last reported. With it the
// broker can start before that source connects. It is "" without such a source.
func (c *config) hubCAFile() string {
	if c.Registration.Source == "" {
		return ""
	}
	return filepath.Join(c.DataDir, "agent-ca."+url.PathEscape(c.Registration.Source)+".crt")
}

// keepAuthorities returns a function that stores the CAs that the source reports.
func (c *config) keepAuthorities(log *slog.Logger) func(*hawserv1.RegistrationKeys) {
	file := c.hubCAFile()
	return func(k *hawserv1.RegistrationKeys) {
		if k.ClientAuthorities == nil {
			return // nil: the source does not know the CAs
		}
		changed, err := identity.KeepHubCA(file, k.GetClientAuthorities(), time.Now())
		switch {
		case err != nil:
			log.Error("the CAs of agents from the hub are invalid; the previous ones stay in use", "source", c.Registration.Source, "error", err)
		case changed:
			log.Info("the hub reported new CAs of agents", "source", c.Registration.Source, "file", file)
		}
	}
}

// credentials returns the TLS credentials of the port; nil for plaintext.
func (c *config) credentials(log *slog.Logger) (*identity.Server, error) {
	if c.Insecure {
		log.Warn("plaintext: the identity that each peer claims is trusted", "listen", c.Listen)
		return nil, nil
	}
	if len(c.Identities) == 0 {
		log.Warn("no identity rules: agents can connect, sources cannot")
	}
	files := identity.Files{CA: c.TLS.ClientCAFile, Cert: c.TLS.CertFile, Key: c.TLS.KeyFile, AgentCA: c.TLS.AgentCAFile, HubCA: c.hubCAFile()}
	return files.Server(func(err error) { log.Error("serving with the previous TLS files", "error", err) })
}
