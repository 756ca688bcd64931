package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-io/hawser/internal/local/controlplane"
	"github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/internal/pki"
)

// Config configures a fleet.
type Config struct {
	// Root is the repository, with deploy/.
	Root string
	// Dir holds all state: certificates, etcd data, stores, logs. It is created if needed; the state of an earlier
	// fleet is used again.
	Dir string
	// Bin has the hawser programs, ControlPlane the programs controlplane and kubectl.
	Bin, ControlPlane string
	// Clusters are the names of the managed clusters.
	Clusters []string
	// Subnet is the second byte of the loopback addresses 127.<Subnet>.0.x that the programs listen on; concurrent
	// fleets need different ones. 0 means a subnet that no other fleet uses.
	Subnet byte
	// APIServerArgs are added to each kube-apiserver.
	APIServerArgs []string
	// Args are added to the arguments from deploy/, and override them: by Broker, HubSource or Agent, which is for
	// all agents.
	Args map[string][]string
	// Transport is the transport between the programs; empty means GRPC. With Mosquitto, the program Broker of the
	// fleet is Mosquitto.
	Transport Transport
	// Brokers is the number of brokers. More than one share a PostgreSQL server that the fleet starts; its state is
	// not used again. 0 means one, with a store of its own.
	Brokers int
	// NoWebhook omits the webhook in deploy/ from the hub. Works that it would reject then reach hub-source, and
	// works can change while hub-source is stopped.
	NoWebhook bool
	// Printf receives each step, for display; nil prints nothing.
	Printf func(format string, args ...any)
}

// The names of the programs of a fleet, which are those of their bases in deploy/. The agent of a cluster is
// AgentOf(cluster). Further brokers are BrokerOf(number).
const (
	Broker    = "broker"
	HubSource = "hub-source"
	Agent     = "agent"
)

// AgentOf returns the name of the program that is the agent of a cluster.
func AgentOf(cluster string) string { return Agent + "-" + cluster }

// hub is the name of the hub's control plane.
const hub = "hub"

// The ports of the admin endpoints and of hub-source's webhook in deploy/.
const adminPort, webhookPort = "8081", "9443"

// SourceID is the source id of a fleet's hub, as deploy/ configures it.
const SourceID = "hub"

// Fleet is a hub, managed clusters and Hawser between them.
type Fleet struct {
	cfg Config
	// Hub and Clusters are the control planes, after Start.
	Hub      *controlplane.Cluster
	Clusters map[string]*controlplane.Cluster
	programs map[string]*Program
	database *postgres.Server // nil without several brokers

	// subnetLock reserves the subnet while this process runs.
	subnetLock net.Listener
	// ctx is the context of the control planes, which end with it.
	ctx context.Context //nolint:containedctx // it spans Start and Stop
	cut context.CancelFunc
}

// New returns a fleet that is not running yet.
func New(cfg Config) *Fleet {
	if cfg.Printf == nil {
		cfg.Printf = func(string, ...any) {}
	}
	return &Fleet{cfg: cfg, Clusters: map[string]*controlplane.Cluster{}, programs: map[string]*Program{}, cut: func() {}}
}

// Start starts all programs and returns when each is ready. ctx bounds only the start: a started fleet runs
// until Stop. On error no process is left.
func (f *Fleet) Start(ctx context.Context) error {
	f.ctx, f.cut = context.WithCancel(context.WithoutCancel(ctx))
	started := context.AfterFunc(ctx, f.cut)
	defer started()
	steps := []func(context.Context) error{f.lockSubnet, f.certificates, f.startControlPlanes, f.install, f.startDatabase, f.startPrograms}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return errors.Join(err, f.Stop())
		}
	}
	return nil
}

// Stop stops the programs, agents first, then the database and the control planes.
func (f *Fleet) Stop() error {
	var errs []error
	for _, name := range f.stopOrder() {
		errs = append(errs, f.programs[name].Stop())
	}
	if f.database != nil {
		errs = append(errs, f.database.Stop())
	}
	for _, c := range f.controlPlanes() {
		errs = append(errs, c.Stop())
	}
	f.cut()
	if f.subnetLock != nil {
		errs = append(errs, f.subnetLock.Close())
		f.subnetLock = nil
	}
	return errors.Join(errs...)
}

// Program returns a program of the fleet by name; it panics when there is none.
func (f *Fleet) Program(name string) *Program {
	p, ok := f.programs[name]
	if !ok {
		panic("fleet: no program " + name)
	}
	return p
}

// Programs returns the names of all programs.
func (f *Fleet) Programs() []string { return slices.Sorted(maps.Keys(f.programs)) }

// PKI is the directory with the certificates of all programs.
func (f *Fleet) PKI() pki.Dir { return pki.Dir(filepath.Join(f.cfg.Dir, "pki")) }

// Kubectl is the path of kubectl.
func (f *Fleet) Kubectl() string { return filepath.Join(f.cfg.ControlPlane, "kubectl") }

// LogDir has one log file per process.
func (f *Fleet) LogDir() string { return filepath.Join(f.cfg.Dir, "logs") }

func (f *Fleet) stopOrder() []string {
	var order []string
	for _, c := range f.cfg.Clusters {
		order = append(order, AgentOf(c))
	}
	order = append(append(order, HubSource), f.Brokers()...)
	return slices.DeleteFunc(order, func(n string) bool { return f.programs[n] == nil })
}

func (f *Fleet) controlPlanes() []*controlplane.Cluster {
	all := slices.Collect(maps.Values(f.Clusters))
	if f.Hub != nil {
		all = append(all, f.Hub)
	}
	return all
}

// ip returns the loopback address of a program.
func (f *Fleet) ip(name string) string {
	n := 10 - slices.Index(f.Brokers(), name) // the first broker; the others precede, hub-source and agents follow
	if !f.isBroker(name) {
		n = 11 + slices.Index(f.cfg.Clusters, name) + 1
	}
	return fmt.Sprintf("127.%d.0.%d", f.cfg.Subnet, n)
}

// Candidates if Config.Subnet is 0.
const firstSubnet, lastSubnet = 100, 150

// lockSubnet reserves the subnet by listening on one of its addresses.
func (f *Fleet) lockSubnet(ctx context.Context) (err error) {
	first, last := f.cfg.Subnet, f.cfg.Subnet
	if first == 0 {
		first, last = firstSubnet, lastSubnet
	}
	var lc net.ListenConfig
	for n := first; n <= last; n++ {
		if f.subnetLock, err = lc.Listen(ctx, "tcp", fmt.Sprintf("127.%d.0.1:8090", n)); err == nil {
			f.cfg.Subnet = n
			return nil
		}
	}
	f.subnetLock = nil
	return fmt.Errorf("another fleet runs on 127.%d.0.0: %w", last, err)
}

// certificateLifetime is longer than any fleet runs.
const certificateLifetime = 30 * 24 * time.Hour

func (f *Fleet) certificates(context.Context) error {
	dir := f.PKI()
	if _, err := dir.Authority(); errors.Is(err, os.ErrNotExist) {
		if _, err := dir.Init("hawser development CA", pki.Starting(time.Now(), certificateLifetime), false); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	hosts := []string{"localhost"}
	for _, name := range f.Brokers() {
		hosts = append(hosts, f.ip(name))
	}
	requests := []pki.Request{
		{Role: pki.Broker, Name: "broker", Hosts: hosts},
		{Role: pki.Source, Name: SourceID},
		{Role: pki.Webhook, Name: SourceID, Hosts: []string{f.ip(HubSource)}},
		{Role: pki.Source, Name: "program"},
		{Role: pki.Operator, Name: "operator"},
		{Role: pki.Viewer, Name: "viewer"},
	}
	for _, c := range f.cfg.Clusters {
		requests = append(requests, pki.Request{Role: pki.Agent, Name: c})
	}
	for _, r := range requests {
		r.Valid = pki.Starting(time.Now(), certificateLifetime)
		if _, err := dir.Issue(r, true); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) startControlPlanes(context.Context) error {
	if err := os.MkdirAll(f.LogDir(), 0o700); err != nil {
		return err
	}
	f.cfg.Printf("starting the hub and %d managed clusters (etcd, kube-apiserver, controllers)", len(f.cfg.Clusters))
	var g errgroup.Group
	clusters := make([]*controlplane.Cluster, len(f.cfg.Clusters))
	g.Go(func() (err error) {
		f.Hub, err = f.startControlPlane(hub)
		return err
	})
	for i, name := range f.cfg.Clusters {
		g.Go(func() (err error) {
			clusters[i], err = f.startControlPlane(name)
			return err
		})
	}
	err := g.Wait()
	for i, c := range clusters {
		if c != nil {
			f.Clusters[f.cfg.Clusters[i]] = c
		}
	}
	return err
}

func (f *Fleet) startControlPlane(name string) (*controlplane.Cluster, error) {
	log, err := os.OpenFile(filepath.Join(f.LogDir(), name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	c, err := controlplane.Start(f.ctx, controlplane.Config{
		Binary:    filepath.Join(f.cfg.ControlPlane, "controlplane"),
		Name:      name,
		Dir:       filepath.Join(f.cfg.Dir, name),
		Log:       log,
		Nodes:     1,
		ExtraArgs: f.cfg.APIServerArgs,
	})
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	go func() { // ends with the control plane, whose error its Stop returns
		<-c.Done()
		_ = log.Close()
	}()
	return c, nil
}

// StopControlPlane stops the hub ("hub") or a managed cluster; its objects stay. StartControlPlane starts it
// again at the same address.
func (f *Fleet) StopControlPlane(name string) error { return f.controlPlane(name).Stop() }

// StartControlPlane starts a stopped control plane. It does nothing if the control plane runs.
func (f *Fleet) StartControlPlane(name string) error {
	select {
	case <-f.controlPlane(name).Done():
	default:
		return nil
	}
	c, err := f.startControlPlane(name)
	if err != nil {
		return err
	}
	if name == hub {
		f.Hub = c
	} else {
		f.Clusters[name] = c
	}
	return nil
}

func (f *Fleet) controlPlane(name string) *controlplane.Cluster {
	if name == hub {
		return f.Hub
	}
	return f.Clusters[name]
}

// Addresses returns the addresses that the programs of a fleet listen on, so that a caller can check that the
// ports are free. Only the port of a database is chosen later.
func Addresses(c Config) []string {
	f := New(c)
	addrs := append(strings.Split(f.mqttAddrs(), ","), net.JoinHostPort(f.ip(HubSource), webhookPort))
	for _, program := range slices.Concat(f.Brokers(), []string{HubSource}, c.Clusters) {
		addrs = append(addrs, net.JoinHostPort(f.ip(program), adminPort))
	}
	return addrs
}
