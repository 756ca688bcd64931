package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	programs "github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent/registration"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

// joinAgent is an agent with the cluster that it runs on.
type joinAgent struct {
	j        *join
	name     string // of the agent, for people: cluster and number
	cluster  string
	imposter bool // it uses the name of another cluster
	invited  time.Time
	program  *program
	reg      *registration.Registration
	changed  chan struct{} // another bootstrap file
	hurry    chan struct{} // works may flow

	// Guarded by the world's lock.
	secret     map[string][]byte
	credential *registration.Credential
	file       int // the bootstrap file's number
	revoked    bool
	healthy    bool
	works      map[string]int64 // versions that it got
}

// enrol adds an agent of a cluster.
func (j *join) enrol(cluster string, imposter bool) *joinAgent {
	a := &joinAgent{
		j: j, cluster: cluster, imposter: imposter, name: fmt.Sprintf("%s-%d", cluster, j.oracle.number()), healthy: true, file: 1,
		changed: make(chan struct{}, 1), hurry: make(chan struct{}, 1), works: map[string]int64{},
	}
	j.agents = append(j.agents, a)
	a.start()
	return a
}

func (a *joinAgent) start() {
	registered := &joinDialer{a.j.net, a.name, func() (transport.Peer, time.Time, error) { return a.j.net.byCertificate(a) }}
	reg, err := registration.New(registration.Config{
		Cluster: a.cluster, Hub: "hub", Broker: []byte("url: sim"),
		Bootstrap:  &joinDialer{a.j.net, a.name, func() (transport.Peer, time.Time, error) { return a.j.net.byToken(a) }},
		Registered: registered, BootstrapID: a.bootstrapID, Changed: a.changed,
		ActivateCertificate: a.use, Retry: a.retry, Store: a, Reader: a,
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
	})
	must(err)
	a.reg = reg
	works := session.New(session.Config{
		Dialer: registered, Filter: transport.Filter{Cluster: a.cluster, DataType: codec.ManifestBundles}, Handler: (*joinWorker)(a),
		Changed: a.hurry, Log: slog.New(slog.DiscardHandler),
	})
	a.program = begin(programs.Task{Name: "registration", Run: reg.Run}, programs.Task{Name: "works", Run: works.Run})
}

func (a *joinAgent) stop() {
	if a.program == nil {
		return
	}
	a.j.ended(a.name, a.program.end())
	a.program = nil
}

// leave ends an agent for good.
func (j *join) leave(a *joinAgent) {
	a.stop()
	for i, o := range j.agents {
		if o == a {
			j.agents = append(j.agents[:i:i], j.agents[i+1:]...)
		}
	}
}

func (a *joinAgent) bootstrapID() (string, error) {
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	return strconv.Itoa(a.file), nil
}

// invite gives the agent another bootstrap file.
func (a *joinAgent) invite() {
	a.j.mu.Lock()
	a.file++
	a.revoked = false
	a.j.mu.Unlock()
	poke(a.changed)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (a *joinAgent) use(c *registration.Credential) {
	a.j.mu.Lock()
	a.credential = c
	a.j.mu.Unlock()
	if c != nil {
		a.j.note("  %s uses a certificate until %s", a.name, c.NotAfter.Format("15:04:05"))
		if a.imposter {
			a.j.fail("I8", "agent %s, which was not approved, has a certificate of cluster %s", a.name, a.cluster)
		}
	}
}

func (a *joinAgent) retry() { poke(a.hurry) }

// Load implements [registration.Store].
func (a *joinAgent) Load(context.Context) (map[string][]byte, error) {
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	return maps.Clone(a.secret), nil
}

// Save implements [registration.Store].
func (a *joinAgent) Save(_ context.Context, data map[string][]byte) error {
	<-time.After(hubDelay)
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	if !a.healthy {
		return errors.New("the cluster does not answer")
	}
	a.secret = maps.Clone(data)
	return nil
}

// agentName is the name with which the agent requests certificates; "" before it has a name.
func (a *joinAgent) agentName() string {
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	return string(a.secret["agent-name"])
}

// Healthy implements [registration.Reader].
func (a *joinAgent) Healthy(context.Context) error {
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	if !a.healthy {
		return errors.New("the cluster does not answer")
	}
	return nil
}

// Facts implements [registration.Reader].
func (a *joinAgent) Facts(context.Context) (registration.Facts, error) {
	all := clusterv1.ResourceList{clusterv1.ResourceCPU: resource.MustParse("4")}
	return registration.Facts{Healthy: true, Version: "v1.36.0", Capacity: all, Allocatable: all}, nil
}

// joinWorker is the work part of the agent.
type joinWorker joinAgent

// Hello implements [session.Handler].
func (*joinWorker) Hello() transport.Hello { return transport.Hello{} }

// Subscribed implements [session.Handler].
func (a *joinWorker) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	e, err := codec.NewSpecResyncRequest(codec.ResyncParams{
		ID: a.j.w.newID(), Time: time.Now(), Source: a.cluster, Cluster: a.cluster, DataType: codec.ManifestBundles,
	}, nil)
	return []codec.Event{e}, err
}

// Handle implements [session.Handler].
func (a *joinWorker) Handle(_ context.Context, e codec.Event) error {
	id, _, err := codec.StringExtension(e, codec.ExtResourceID)
	version, _, err2 := codec.IntegerExtension(e, codec.ExtResourceVersion)
	if err := errors.Join(err, err2); err != nil || id == "" {
		return err
	}
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	a.works[id] = max(a.works[id], int64(version))
	return nil
}

// Disconnected implements [session.Handler].
func (*joinWorker) Disconnected(error) {}

// joinWorks is the work part of hub-source: one work for each cluster, with new versions all the time.
type joinWorks struct {
	j       *join
	session *session.Session
}

// worksEvery is how often a work changes.
const worksEvery = 15 * time.Second

// firstVersion is subtracted from the time to get a version.
const firstVersion = 900_000_000

func newJoinWorks(j *join) *joinWorks {
	s := &joinWorks{j: j}
	s.session = session.New(session.Config{
		Dialer: j.net.sourceDialer(), Filter: transport.Filter{Source: joinSourceID, DataType: codec.ManifestBundles}, Handler: s, Log: slog.New(slog.DiscardHandler),
	})
	return s
}

func (s *joinWorks) run(ctx context.Context) error {
	return programs.Group(ctx, programs.Task{Name: "session", Run: s.session.Run}, programs.Task{Name: "publish", Run: s.publish})
}

func (s *joinWorks) publish(ctx context.Context) error {
	for {
		select {
		case <-time.After(worksEvery):
		case <-ctx.Done():
			return nil
		}
		version := time.Now().Unix() - firstVersion
		for _, c := range joinNames {
			e, err := codec.Builder{
				ID: s.j.w.newID(), Time: time.Now(), Source: joinSourceID, Cluster: c,
				Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
				ContentType: codec.ContentTypeJSON, Data: []byte(`{"manifests":[]}`),
				Extensions: map[string]any{
					codec.ExtResourceID: "work-of-" + c, codec.ExtResourceVersion: int(version), codec.ExtMetadata: fmt.Sprintf(`{"name":"w","namespace":%q}`, c),
				},
			}.Event()
			must(err)
			attempt, stop := context.WithTimeout(ctx, worksEvery)
			if _, err = s.session.Publish(attempt, e); err == nil {
				s.j.oracle.published("work-of-"+c, version)
			} else {
				s.j.note("  hub-source: the work of %s is not published: %v", c, err)
			}
			stop()
		}
	}
}

// Hello implements [session.Handler].
func (*joinWorks) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }

// Subscribed implements [session.Handler].
func (*joinWorks) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	return nil, nil
}

// Handle implements [session.Handler].
func (*joinWorks) Handle(context.Context, codec.Event) error { return nil }

// Disconnected implements [session.Handler].
func (*joinWorks) Disconnected(error) {}
