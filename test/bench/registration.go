package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit/fakehub"
	"github.com/hawser-io/hawser/pkg/agent/registration"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

const (
	partRegistration = "registration"
	// joinAtOnce is the number of clusters that join at the same time. The next ones join after them.
	joinAtOnce = 1000
	joinUser   = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"
	// joinWithin is the longest time until all these clusters are available.
	joinWithin = 5 * time.Minute
	loopback   = "127.0.0.1"
	// maxHubRequests is the target for requests per second at an idle hub, without writes of Leases.
	maxHubRequests = 40
)

// joining is a hub that clusters join. Broker and hub-source are programs. This process has a minimal
// kube-apiserver, and the part of the agents that registers clusters.
type joining struct {
	dir    string
	pki    pki.Dir
	hub    *fakehub.Server
	broker *childproc.Process
	source *childproc.Process
	addr   string
	token  string

	requests, leases atomic.Int64
}

// registers measures how clusters join, and their idle cost. It returns the requests per second at the idle hub,
// without writes of Leases.
func registers(ctx context.Context, root string, clusters int, rest time.Duration, out io.Writer) (perSecond float64, err error) {
	dir, err := os.MkdirTemp("", "hawser-bench-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	j := &joining{dir: dir, pki: pki.Dir(filepath.Join(dir, "pki"))}
	stop, err := j.start(ctx, root)
	if err != nil {
		return 0, err
	}
	defer stop()
	running, end := context.WithCancel(ctx)
	var agents sync.WaitGroup
	defer agents.Wait()
	defer end()
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for n := 0; n < clusters; n += joinAtOnce {
		began, cpu := time.Now(), j.processors()
		for i := n; i < min(n+joinAtOnce, clusters); i++ {
			a, err := j.agent(fmt.Sprintf("cluster%d", i))
			if err != nil {
				return 0, err
			}
			agents.Go(func() {
				if err := a.Run(running); err != nil {
					fmt.Fprintln(os.Stderr, "bench: an agent ended:", err)
				}
			})
		}
		if err := j.available(ctx, min(n+joinAtOnce, clusters)); err != nil {
			return 0, err
		}
		if n == 0 {
			spent := j.processors()
			fmt.Fprintf(t, "%d clusters join at once, until all are available\t%.0f s\n", min(joinAtOnce, clusters), time.Since(began).Seconds())
			fmt.Fprintf(t, "  processor meanwhile: broker, hub-source\t%.1f s, %.1f s\n", spent[0]-cpu[0], spent[1]-cpu[1])
			if err := t.Flush(); err != nil {
				return 0, err
			}
		}
		fmt.Fprintf(os.Stderr, "bench: %d clusters after %.0f s more\n", min(n+joinAtOnce, clusters), time.Since(began).Seconds())
	}
	perSecond, err = j.rest(ctx, rest, clusters, t)
	return perSecond, errors.Join(err, t.Flush())
}

// rest waits for d, and then measures for d.
func (j *joining) rest(ctx context.Context, d time.Duration, clusters int, out io.Writer) (perSecond float64, err error) {
	if err := pass(ctx, d); err != nil { // work that is left from joining
		return 0, err
	}
	requests, leases, cpu, began := j.requests.Load(), j.leases.Load(), j.processors(), time.Now()
	if err := pass(ctx, d); err != nil {
		return 0, err
	}
	seconds := time.Since(began).Seconds()
	perSecond = float64(j.requests.Load()-requests) / seconds
	spent := j.processors()
	broker, err := vmRSS(j.broker.PID())
	source, err2 := vmRSS(j.source.PID())
	if err := errors.Join(err, err2); err != nil {
		return 0, err
	}
	fmt.Fprintf(out, "%d clusters at rest: requests to the hub, besides Leases\t%.2f a second\n", clusters, perSecond)
	fmt.Fprintf(out, "  writes of Leases\t%.1f a second\n", float64(j.leases.Load()-leases)/seconds)
	fmt.Fprintf(out, "  processor: broker, hub-source\t%.1f %%, %.1f %% of one\n", 100*(spent[0]-cpu[0])/seconds, 100*(spent[1]-cpu[1])/seconds)
	fmt.Fprintf(out, "  memory: broker, hub-source\t%d MiB, %d MiB\n", broker>>20, source>>20)
	return perSecond, nil
}

func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// processors returns the processor time of broker and hub-source, in seconds.
func (j *joining) processors() (seconds [2]float64) {
	for i, p := range []*childproc.Process{j.broker, j.source} {
		seconds[i], _ = cpuSeconds(p.PID()) // other checks report the ended process
	}
	return seconds
}

// available waits until n clusters are available.
func (j *joining) available(ctx context.Context, n int) error {
	ctx, stop := context.WithTimeout(ctx, joinWithin)
	defer stop()
	for {
		have := 0
		for _, c := range j.hub.All("managedclusters") {
			for _, v := range fakehub.Conditions(c) {
				if o, _ := v.(fakehub.Object); o["type"] == clusterv1.ManagedClusterConditionAvailable && o["status"] == "True" {
					have++
				}
			}
		}
		if have >= n {
			return nil
		}
		if err := pass(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d clusters are available: %w; broker: %s; hub-source: %s", have, n, err, j.broker.LogTail(), j.source.LogTail())
		}
	}
}

// start starts the hub and the programs.
func (j *joining) start(ctx context.Context, root string) (stop func(), err error) {
	if err := j.certify(); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	j.hub = fakehub.New()
	j.hub.Without("apps/v1/deployments")
	j.hub.Put("namespaces", fakehub.Object{"metadata": fakehub.Object{"name": "hawser"}})
	j.hub.PutRegistrar(ocm.Registrar)
	j.hub.Audit = func(r *fakehub.Request, _ int) {
		switch {
		case r.Verb == "watch":
		case r.Resource.Name == "leases" && r.Namespace != "hawser" && r.Verb != "get" && r.Verb != "list":
			j.leases.Add(1)
		default:
			j.requests.Add(1)
		}
	}
	j.token = j.hub.Token("open-cluster-management", "agent-registration-bootstrap", 24*time.Hour, "hawser")
	server := &http.Server{Handler: j.hub, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.ServeTLS(l, j.pki.Cert(pki.Broker, "broker"), j.pki.Key(pki.Broker, "broker")) }() // stop closes the server
	if err := j.programs(ctx, root, "https://"+l.Addr().String()); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return func() {
		j.source.Kill()
		j.broker.Kill()
		_ = server.Close() // all clients have ended
	}, nil
}

func (j *joining) certify() error {
	if _, err := j.pki.Init("bench", pki.Starting(time.Now(), 24*time.Hour), false); err != nil {
		return err
	}
	for _, r := range []pki.Request{{Role: pki.Broker, Name: "broker", Hosts: []string{"127.0.0.1"}}, {Role: pki.Source, Name: "hub"}} {
		r.Valid = pki.Starting(time.Now(), 24*time.Hour)
		if _, err := j.pki.Issue(r, false); err != nil {
			return err
		}
	}
	return nil
}

// programs starts broker and hub-source.
func (j *joining) programs(ctx context.Context, root, hub string) error {
	var err error
	if j.addr, err = freeAddr(loopback); err != nil {
		return err
	}
	brokerAdmin, err := freeAddr(loopback)
	if err != nil {
		return err
	}
	sourceAdmin, err := freeAddr(loopback)
	if err != nil {
		return err
	}
	files := map[string]string{
		"broker.yaml": fmt.Sprintf(`listen: %q
adminListen: %q
dataDir: %q
tls: {certFile: %q, keyFile: %q, clientCAFile: %q}
identities: [{commonName: "hawser:source:hub", role: source, name: hub}]
registration: {source: hub}
tokens: {audiences: [hawser], mapping: [{user: %q, role: bootstrap}]}
`, j.addr, brokerAdmin, filepath.Join(j.dir, "data"), j.pki.Cert(pki.Broker, "broker"), j.pki.Key(pki.Broker, "broker"), j.pki.CACert(), joinUser),
		"hub.kubeconfig": fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: hub-source}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
`, hub, j.pki.CACert()),
		"hub-source.yaml": fmt.Sprintf(`sourceID: hub
kubeconfig: %q
broker: %q
adminListen: %q
tls: {certFile: %q, keyFile: %q, caFile: %q}
leaderElection: {enabled: false}
registration: {enabled: true}
registrationControllers: {mode: "on", signer: {certFile: %q, keyFile: %q, duration: 24h}, autoApprovedUsers: [%q]}
`, filepath.Join(j.dir, "hub.kubeconfig"), j.addr, sourceAdmin, j.pki.Cert(pki.Source, "hub"), j.pki.Key(pki.Source, "hub"), j.pki.CACert(),
			j.pki.CACert(), j.pki.CAKey(), joinUser),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(j.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if j.broker, err = childproc.Start(ctx, j.program(root, "hawser-broker", "broker.yaml", brokerAdmin)); err != nil {
		return err
	}
	if j.source, err = childproc.Start(ctx, j.program(root, "hawser-hub-source", "hub-source.yaml", sourceAdmin)); err != nil {
		j.broker.Kill()
	}
	return err
}

func (j *joining) program(root, name, config, admin string) childproc.Spec {
	return childproc.Spec{
		Name: name, Path: filepath.Join(root, "bin", name), Args: []string{"--config", filepath.Join(j.dir, config)}, LogFile: filepath.Join(j.dir, name+".log"),
		Ready: readyAt(admin),
	}
}

// readyAt returns the readiness check of a program with this admin address.
func readyAt(admin string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := get(ctx, "http://"+admin+"/readyz")
		return err
	}
}

// get returns the body of an answer with the status OK.
func get(ctx context.Context, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return do(r)
}

func do(r *http.Request) ([]byte, error) {
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(string(body))
	}
	return body, err
}

// freeAddr returns an unused address of a host.
func freeAddr(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// joiner is the registration part of the agent of one cluster.
type joiner struct {
	*registration.Registration
	files identity.Files
	dir   string
	mu    sync.Mutex
	kept  map[string][]byte
	hub   *transport.SharedDialer
}

// agent returns the agent of a cluster.
func (j *joining) agent(cluster string) (*joiner, error) {
	a := &joiner{dir: j.dir, files: identity.Files{CA: j.pki.CACert(), Cert: filepath.Join(j.dir, cluster+".crt"), Key: filepath.Join(j.dir, cluster+".key")}}
	quiet := slog.New(slog.DiscardHandler)
	creds, err := identity.Files{CA: j.pki.CACert()}.Client("", func(error) {})
	if err != nil {
		return nil, err
	}
	bootstrap, err := transportgrpc.NewDialer(transportgrpc.Options{
		Target: j.addr, Credentials: creds, Log: quiet, Token: func() (string, error) { return j.token, nil },
	})
	if err != nil {
		return nil, err
	}
	a.hub = transport.Share(&lateDialer{addr: j.addr, joiner: a})
	a.Registration, err = registration.New(registration.Config{
		Cluster: cluster, Hub: "hub", Broker: []byte("url: bench"), Bootstrap: transport.Share(bootstrap), Registered: a.hub,
		BootstrapID: func() (string, error) { return "file", nil }, ActivateCertificate: a.use, Retry: func() {}, Store: a, Reader: a,
		Log: quiet, Registry: prometheus.NewRegistry(),
	})
	return a, err
}

// lateDialer dials with the certificate that its agent has at that time.
type lateDialer struct {
	addr   string
	joiner *joiner
}

// Dial implements [transport.Dialer].
func (d *lateDialer) Dial(ctx context.Context) (transport.Conn, error) {
	creds, err := d.joiner.files.Client("", func(error) {})
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeUnavailable, Message: "no certificate yet", Err: err}
	}
	dialer, err := transportgrpc.NewDialer(transportgrpc.Options{Target: d.addr, Credentials: creds, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return dialer.Dial(ctx)
}

func (a *joiner) use(c *registration.Credential) {
	if c == nil {
		return
	}
	if err := errors.Join(os.WriteFile(a.files.Key, c.Key, 0o600), os.WriteFile(a.files.Cert, c.Cert, 0o600)); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}

// Load implements [registration.Store].
func (a *joiner) Load(context.Context) (map[string][]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kept, nil
}

// Save implements [registration.Store].
func (a *joiner) Save(_ context.Context, data map[string][]byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = data
	return nil
}

// Healthy implements [registration.Reader].
func (*joiner) Healthy(context.Context) error { return nil }

// Facts implements [registration.Reader].
func (*joiner) Facts(context.Context) (registration.Facts, error) {
	return registration.Facts{Healthy: true, Version: "v1.36.0"}, nil
}
