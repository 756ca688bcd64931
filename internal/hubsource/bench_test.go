package hubsource

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	transportmem "github.com/hawser-io/hawser/pkg/transport/mem"
)

// bench is a hub and a broker in a synctest bubble, with the sources and agents that a test starts.
type bench struct {
	*testing.T
	hub    *fakeHub
	broker *testkit.Broker
}

func inBubble(t *testing.T, test func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		test(&bench{T: t, hub: newFakeHub(t), broker: testkit.StartBroker(t, testkit.Options{})})
	})
}

// running is a program of a test.
type running struct {
	dialer *transportmem.Dialer
	source *Source
	stop   func() error // stops the program and returns its error
	ended  <-chan struct{}
}

func (b *bench) start(run func(context.Context) error) *running {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = run(ctx)
	}()
	r := &running{ended: ended}
	r.stop = func() error {
		cancel()
		<-ended
		return err
	}
	b.Cleanup(func() { _ = r.stop() }) // tests that need the error call stop themselves
	return r
}

// source starts a hub source.
func (b *bench) source(change ...func(*Config)) *running {
	b.Helper()
	dialer := b.broker.Dialer(identity.Identity{Role: identity.Source, Name: "hub"})
	cfg := Config{
		ID: "hub", Works: b.hub.works(), Metadata: b.hub.metadata(), Dialer: dialer,
		ConfigMaps: b.hub.configMaps(), StateNamespace: "hawser",
		Registerer: prometheus.NewRegistry(), Health: &telemetry.Health{}, Log: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	r := b.start(s.Run)
	r.dialer, r.source = dialer, s
	return r
}

// fakeAgent stores the works that it receives, and reports them as applied.
type fakeAgent struct {
	b       *bench
	cluster string
	session *session.Session
	dialer  *transportmem.Dialer

	mu       sync.Mutex
	held     map[string]*manifestwork.Spec // by name
	sequence codec.Sequencer
	seen     []string // "name generation", "name deleted"
	muted    bool
	// applied are the ids of the applied works. They have a lock of their own, because readers hold the hub's lock.
	// mu is held while received takes the hub's lock, and while a report is published. received, if set, is called
	// for each deletion.
	appliedMu sync.Mutex
	applied   map[string]bool
	received  func(uid string)
	reports   int
}

func (b *bench) agent(cluster string) *fakeAgent {
	a := &fakeAgent{b: b, cluster: cluster, held: map[string]*manifestwork.Spec{}, applied: map[string]bool{}}
	a.dialer = b.broker.Dialer(identity.Identity{Role: identity.Agent, Name: cluster})
	a.session = session.New(session.Config{
		Dialer: a.dialer,
		Filter: transport.Filter{Cluster: cluster, DataType: codec.ManifestBundles}, Handler: a, Log: slog.New(slog.DiscardHandler),
	})
	b.start(a.session.Run)
	return a
}

func (a *fakeAgent) Hello() transport.Hello {
	return transport.Hello{Protocol: transport.Protocol, ClusterUID: "uid-" + a.cluster}
}

func (a *fakeAgent) Disconnected(error) {}

func (a *fakeAgent) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	versions := []codec.ResourceVersion{}
	for _, s := range a.held {
		versions = append(versions, codec.ResourceVersion{ResourceID: s.ResourceID, ResourceVersion: s.Version, Tag: s.Tag.String()})
	}
	e, err := codec.NewSpecResyncRequest(codec.ResyncParams{ID: "resync", Time: time.Now(), Source: "agent-" + a.cluster, Cluster: a.cluster, DataType: codec.ManifestBundles}, versions)
	return []codec.Event{e}, err
}

func (a *fakeAgent) Handle(ctx context.Context, e codec.Event) error {
	if e.Type() == codec.TypeCheckpoint {
		return nil // the fake agent has no disk
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t, err := codec.ParseEventType(e.Type()); err == nil && t.Subresource == codec.Status {
		return a.reportAll(ctx) // the broker requests statuses that it may have missed
	}
	s, err := manifestwork.DecodeSpec(e)
	if err != nil {
		a.b.Errorf("agent: %v", err)
		return nil
	}
	a.take(s)
	if a.muted {
		return nil
	}
	if err := a.report(ctx, s, a.message()); err != nil {
		delete(a.held, s.Name) // the spec is sent and reported again
		return err
	}
	return nil
}

// message returns a unique text for each report if received is set, otherwise "".
func (a *fakeAgent) message() string {
	if a.received == nil {
		return ""
	}
	a.reports++
	return fmt.Sprint("report ", a.reports)
}

func (a *fakeAgent) reportAll(ctx context.Context) error {
	for _, s := range a.held {
		if err := a.report(ctx, s, a.message()); err != nil {
			return err
		}
	}
	return nil
}

// take applies a spec, or deletes the work; the caller holds the lock.
func (a *fakeAgent) take(s *manifestwork.Spec) {
	old := a.held[s.Name]
	if !s.Deleting {
		if old != nil && old.ResourceID != s.ResourceID {
			a.setApplied(old.ResourceID, false)
		}
		a.held[s.Name] = s
		a.setApplied(s.ResourceID, true)
		a.seen = append(a.seen, fmt.Sprint(s.Name, " ", s.Generation))
		return
	}
	if old != nil && (old.ResourceID == s.ResourceID || !s.Work.CreationTimestamp.Before(&old.Work.CreationTimestamp)) {
		// The work itself, or the work that had its name before. While the agent is disconnected, a work may
		// replace another one and be deleted. A real agent then evicts the replaced work.
		delete(a.held, s.Name)
		a.setApplied(old.ResourceID, false)
	}
	a.setApplied(s.ResourceID, false)
	a.seen = append(a.seen, s.Name+" deleted")
	if a.received != nil {
		a.received(s.ResourceID)
	}
}

func (a *fakeAgent) setApplied(id string, there bool) {
	a.appliedMu.Lock()
	defer a.appliedMu.Unlock()
	a.applied[id] = there
}

// isApplied reports whether objects of a work are on the cluster.
func (a *fakeAgent) isApplied(id string) bool {
	a.appliedMu.Lock()
	defer a.appliedMu.Unlock()
	return a.applied[id]
}

// report publishes a status; the caller holds the lock.
func (a *fakeAgent) report(ctx context.Context, s *manifestwork.Spec, message string) error {
	status := applied(s.Generation)
	status.Conditions[0].Message = message
	status.ResourceStatus.Manifests = []workv1.ManifestCondition{{ResourceMeta: workv1.ManifestResourceMeta{Kind: "ConfigMap", Name: "a"}}}
	e, err := manifestwork.EncodeStatus(s.Ref, status, manifestwork.StatusParams{
		ID: "status", Now: time.Now(), Source: "agent-" + a.cluster, OriginalSource: s.Source, Action: codec.UpdateRequest,
		SequenceID: a.sequence.Next(time.Now().UnixMilli()), Deleted: s.Deleting,
	})
	if err != nil {
		return err
	}
	_, err = a.session.Publish(ctx, e)
	return err
}

func (a *fakeAgent) send(name, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.report(context.Background(), a.held[name], message); err != nil {
		a.b.Errorf("agent: %v", err)
	}
}

func (a *fakeAgent) history() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.seen, ", ")
}

// settle lets d pass in the bubble, and then waits until all goroutines are blocked.
func (b *bench) settle(d time.Duration) {
	<-time.After(d) // the time of the bubble
	synctest.Wait()
}

func example(cluster, name string, change ...func(*workv1.ManifestWork)) *workv1.ManifestWork {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: cluster, Name: name}}
	w.Spec.Workload.Manifests = []workv1.Manifest{{RawExtension: runtime.RawExtension{
		Raw: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`)}}}
	for _, c := range change {
		c(w)
	}
	return w
}

func data(value string) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, workv1.Manifest{RawExtension: runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"` + value + `","namespace":"default"}}`)}})
	}
}

// shown asserts that the hub shows a generation as applied.
func (b *bench) shown(key string, generation int64) *workv1.ManifestWork {
	b.Helper()
	w := b.hub.work(key)
	if w == nil {
		b.Fatalf("%s is missing", key)
	}
	c := meta.FindStatusCondition(w.Status.Conditions, "Applied")
	if c == nil || c.ObservedGeneration != generation || w.Generation != generation {
		b.Fatalf("%s is at generation %d and shows %+v, want generation %d applied", key, w.Generation, w.Status.Conditions, generation)
	}
	return w
}

func (b *bench) records() string {
	b.Helper()
	var names []string
	err := b.broker.Store.Scan(context.Background(), store.Scope{DataType: codec.ManifestBundles}, func(m store.Meta) error {
		if m.State == store.Live {
			names = append(names, m.Cluster+"/"+m.Name)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return strings.Join(names, " ")
}

// gather returns the gauges of a source as "name value".
func gather(b *bench, r *running) []string {
	b.Helper()
	families, err := r.source.cfg.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		b.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.Gauge != nil {
				lines = append(lines, fmt.Sprintf("%s %v", f.GetName(), m.GetGauge().GetValue()))
			}
		}
	}
	return lines
}

func elected(b *bench, replica string, cut *bool) func(*Config) {
	return func(c *Config) {
		c.Election = leader.Election{
			Leases: b.hub.leases(), Namespace: "hawser", Name: "hub-source", Identity: replica,
			Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		}
		if cut != nil {
			cfg := b.hub.config()
			cfg.Transport = cuttable{b.hub, cut}
			c.Election.Leases = leasesOf(cfg)
		}
	}
}
