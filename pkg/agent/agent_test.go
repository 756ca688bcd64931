package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is a fake broker at the other end of an agent's connection.
type broker struct {
	mu        sync.Mutex
	refuse    error // refuse is the error of every dial; nil accepts it
	hellos    []transport.Hello
	published []codec.Event
	events    chan codec.Event
	cut       chan error
}

func newBroker() *broker {
	return &broker{events: make(chan codec.Event, 100), cut: make(chan error, 1)}
}

func (b *broker) Dial(context.Context) (transport.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return nil, b.refuse
	}
	return b, nil
}

func (b *broker) Close() error { return nil }

func (b *broker) Publish(_ context.Context, e codec.Event, _ string) (transport.Receipt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.published = append(b.published, e)
	return transport.Receipt{}, nil
}

func (b *broker) Subscribe(ctx context.Context, s transport.Subscription, ready func(transport.Accepted), h transport.Handler) error {
	b.mu.Lock()
	b.hellos = append(b.hellos, s.Hello)
	b.mu.Unlock()
	ready(transport.Accepted{SubscriptionID: "s", Protocol: transport.Protocol, Resync: "list"})
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-b.cut:
			return err
		case e := <-b.events:
			if err := h(ctx, e); err != nil {
				return err
			}
		}
	}
}

// statuses returns the last status of each work, and the number of resync requests.
func (b *broker) statuses() (last map[string]manifestwork.StatusReport, requests int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last = map[string]manifestwork.StatusReport{}
	for _, e := range b.published {
		if s, err := manifestwork.DecodeStatus(e); err == nil {
			last[s.ResourceID] = s
		} else {
			requests++
		}
	}
	return last, requests
}

// running is an agent that runs in a synctest bubble.
type running struct {
	*testing.T
	f        *clustertest.Fake
	b        *broker
	a        *Agent
	registry *prometheus.Registry
	events   *rig              // makes events
	client   kubeclient.Client // used instead of f, unless nil
	journal  Journal
	admit    func(context.Context, transport.Accepted) error
}

func runAgent(t *testing.T, before func(*running), f func(*running)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &running{T: t, f: clustertest.New(), b: newBroker(), registry: prometheus.NewRegistry(), events: &rig{t: t, now: time.Now()}}
		if before != nil {
			before(r)
		}
		if r.client == nil {
			r.client = r.f
		}
		var err error
		r.a, err = New(Config{
			Cluster: testCluster, HubIdentity: "hub.example.com:8090", Dialer: r.b, Client: r.client, Metadata: r.f.Metadata,
			Log: slog.New(slog.DiscardHandler), Registry: r.registry, Journal: r.journal, Admit: r.admit,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.a.Run(ctx) }()
		if f == nil {
			if err := <-done; err == nil {
				t.Error("it runs although it cannot")
			}
			cancel()
			return
		}
		f(r)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (r *running) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// value returns the value of a metric without labels.
func (r *running) value(name string) float64 {
	r.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	r.Fatalf("there is no metric %s", name)
	return 0
}

func TestAgent_FromEventToStatus(t *testing.T) {
	runAgent(t, nil, func(r *running) {
		r.after(100 * time.Millisecond)
		if err := errors.Join(r.a.ClusterReady(), r.a.BrokerReady()); err != nil {
			t.Fatal(err)
		}
		w := hubWork("w-1", "web", 1, configMap("a", "1"))
		r.b.events <- r.events.event(w, codec.CreateRequest, nil)
		r.after(100 * time.Millisecond)
		last, requests := r.b.statuses()
		if got := condition(last["w-1"].Status.Conditions, "Applied"); got == nil || got.Status != "True" || requests != 1 {
			t.Fatalf("got %+v after %d requests", got, requests)
		}
		if uid := r.f.Look(r.f.Ref("v1", "Namespace", "", "kube-system")).GetUID(); r.b.hellos[0] != (transport.Hello{Protocol: transport.Protocol, ClusterUID: string(uid)}) {
			t.Errorf("hello %+v", r.b.hellos[0])
		}
		cm := r.f.Ref("v1", "ConfigMap", "default", "a")

		r.f.Edit(cm, func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "2"} })
		r.after(time.Second)
		if r.f.Look(cm).Object["data"].(map[string]any)["k"] != "1" {
			t.Fatal("drift was not repaired within a second")
		}

		r.b.events <- r.events.event(w, codec.DeleteRequest, nil)
		r.after(time.Second)
		if last, _ = r.b.statuses(); !last["w-1"].Deleted || r.f.Look(cm) != nil {
			t.Fatal("the work was not deleted within a second")
		}
	})
}

func TestAgent_AnswersCheckpoints(t *testing.T) {
	runAgent(t, nil, func(r *running) {
		r.after(100 * time.Millisecond)
		r.b.events <- r.events.checkpointEvent(codec.Checkpoint{Cursor: at(3), Digest: &codec.Digest{}})
		r.after(100 * time.Millisecond)
		r.b.mu.Lock()
		last := r.b.published[len(r.b.published)-1]
		r.b.mu.Unlock()
		if a, err := codec.ParseAck(last); err != nil || a.Cursor != at(3) || last.Source() != "cluster1-work-agent" {
			t.Fatalf("got %v, %v", last, err)
		}
		r.b.cut <- errAway
		r.after(time.Minute)
		r.b.mu.Lock()
		defer r.b.mu.Unlock()
		if got := r.b.hellos[len(r.b.hellos)-1].Cursor; got != at(3).String() {
			t.Errorf("continues from %q", got)
		}
	})
}

func TestAgent_RestartsWhileTheBrokerIsAway(t *testing.T) {
	j := &memoryJournal{entries: map[string][]byte{}}
	f := clustertest.New()
	cm := f.Ref("v1", "ConfigMap", "default", "a")
	var events *rig
	runAgent(t, func(r *running) { r.journal, r.f = j, f }, func(r *running) {
		events = r.events
		r.b.events <- r.events.event(hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest, nil)
		r.after(time.Second)
		d := held(&rig{core: r.a.core}, "w-1")
		r.b.events <- r.events.checkpointEvent(codec.Checkpoint{Cursor: at(3), Digest: d})
		r.after(time.Second)
		if j.cursor != at(3) || r.value("hawser_agent_in_sync") != 1 {
			t.Errorf("cursor %v, in sync %v", j.cursor, r.value("hawser_agent_in_sync"))
		}
	})
	if j.reported.Accepted["w-1"] != "" {
		t.Error("a broker that keeps no sequence ids has no statuses")
	}
	runAgent(t, func(r *running) {
		r.journal, r.f, r.events.revision = j, f, events.revision
		r.b.refuse = errAway
		f.Remove(cm)
	}, func(r *running) {
		r.after(time.Minute)
		if f.Look(cm) == nil {
			t.Fatal("drift is not repaired")
		}
		if n := r.value("hawser_agent_unconfirmed_works"); n != 1 {
			t.Errorf("%v unconfirmed works", n)
		}
		r.b.mu.Lock()
		r.b.refuse = nil
		r.b.mu.Unlock()
		r.after(time.Minute)
		r.b.mu.Lock()
		defer r.b.mu.Unlock()
		if got := r.b.hellos[0].Cursor; got != at(3).String() {
			t.Errorf("continues from %q", got)
		}
	})
	runAgent(t, func(r *running) { r.journal, r.f = newerJournal{j}, f }, nil)
}

func TestAgent_IdleSendsNoRequests(t *testing.T) {
	runAgent(t, nil, func(r *running) {
		r.b.events <- r.events.event(hubWork("w-1", "web", 1, configMap("a", "1"), deployment("b", "1")), codec.CreateRequest, nil)
		r.after(10 * time.Second)
		r.f.TakeCalls()
		r.after(30 * time.Minute)
		if calls := r.f.TakeCalls(); len(calls) != 0 {
			t.Fatalf("unexpected requests: %v", calls)
		}
	})
}

func TestAgent_SendsPendingStatusesAfterReconnect(t *testing.T) {
	runAgent(t, nil, func(r *running) {
		r.after(time.Second)
		r.b.mu.Lock()
		r.b.refuse = &transport.Error{Code: transport.CodeUnavailable, Message: "gone"}
		r.b.mu.Unlock()
		w := hubWork("w-1", "web", 1, configMap("a", "1"))
		r.b.events <- r.events.event(w, codec.CreateRequest, nil)
		synctest.Wait()
		r.b.cut <- r.b.refuse
		r.after(2 * time.Minute)
		r.f.Remove(r.f.Ref("v1", "ConfigMap", "default", "a"))
		r.f.Remove(r.f.Ref("v1", "Namespace", "", "default"))
		r.after(time.Minute)
		if r.a.BrokerReady() == nil {
			t.Fatal("there is no broker")
		}
		r.b.mu.Lock()
		r.b.refuse = nil
		r.b.mu.Unlock()
		r.after(2 * time.Minute)
		last, requests := r.b.statuses()
		if got := condition(last["w-1"].Status.Conditions, "Available"); got == nil || got.Status != "False" || requests != 2 {
			t.Fatalf("got %+v after %d requests", got, requests)
		}
	})
}

func TestAgent_WaitsForTheCluster(t *testing.T) {
	runAgent(t, func(r *running) {
		r.f.Refuse = func(clustertest.Call) error { return errDenied }
	}, func(r *running) {
		r.after(10 * time.Minute)
		if r.a.ClusterReady() == nil || len(r.b.hellos) != 0 {
			t.Fatal("the agent subscribed without knowing its cluster")
		}
	})
}

func TestAgent_ABugInOneRoundStopsNoOther(t *testing.T) {
	runAgent(t, func(r *running) {
		r.f.Refuse = func(c clustertest.Call) error {
			if strings.HasSuffix(c.Ref.Name, "-bad") {
				panic("bug")
			}
			return nil
		}
	}, func(r *running) {
		// The fake cluster panics while its caller holds a lock that a defer releases, as a bug would.
		r.b.events <- r.events.event(hubWork("w-1", "bad", 1, configMap("a", "1")), codec.CreateRequest, nil)
		r.b.events <- r.events.event(hubWork("w-2", "good", 1, configMap("b", "1")), codec.CreateRequest, nil)
		r.after(time.Second)
		last, _ := r.b.statuses()
		if got := condition(last["w-2"].Status.Conditions, "Applied"); got == nil || got.Status != "True" {
			t.Fatalf("got %+v", last)
		}
	})
}

func TestNew_RefusesIncompleteConfigurations(t *testing.T) {
	good := Config{Cluster: "c", HubIdentity: "h", Dialer: newBroker(), Client: clustertest.New(), Metadata: clustertest.New().Metadata}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"no cluster":       func(c *Config) { c.Cluster = "" },
		"no hub identity":  func(c *Config) { c.HubIdentity = "" },
		"no dialer":        func(c *Config) { c.Dialer = nil },
		"no client":        func(c *Config) { c.Client = nil },
		"no metadata":      func(c *Config) { c.Metadata = nil },
		"negative workers": func(c *Config) { c.Workers = -1 },
		"negative pause":   func(c *Config) { c.StatusSyncInterval = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	reg := prometheus.NewRegistry()
	good.Registry = reg
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	if _, err := New(good); err == nil {
		t.Error("two agents on one registry: accepted")
	}
}

// docs/metrics.md lists exactly the exported series.
func TestMetrics_Documented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(hawser_agent_[a-z_]+)` \\| (counter|gauge|histogram) \\|").FindAllStringSubmatch(string(doc), -1) {
		if !strings.HasPrefix(m[1], "hawser_agent_registration_") {
			documented = append(documented, m[1]+" "+m[2])
		}
	}
	runAgent(t, nil, func(r *running) {
		r.b.events <- r.events.event(hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest, nil)
		r.after(time.Second)
		families, err := r.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var registered []string
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "hawser_agent_") {
				registered = append(registered, f.GetName()+" "+strings.ToLower(f.GetType().String()))
			}
		}
		slices.Sort(documented)
		slices.Sort(registered)
		if !slices.Equal(documented, registered) {
			t.Errorf("documented %q\nregistered %q", documented, registered)
		}
	})
}

func TestBudget(t *testing.T) {
	now := time.Unix(0, 0)
	var b tokenBucket
	for i := range repairRate.burst {
		if w := b.wait(repairRate, now); w != 0 {
			t.Fatalf("repair %d waits %v", i, w)
		}
		if last := b.spend(repairRate, now); last != (i == repairRate.burst-1) {
			t.Fatalf("repair %d: last %v", i, last)
		}
	}
	if w := b.wait(repairRate, now.Add(repairRate.every/4)); w != repairRate.every*3/4 {
		t.Fatalf("waits %v", w)
	}
	now = now.Add(repairRate.every)
	if w := b.wait(repairRate, now); w != 0 {
		t.Fatalf("waits %v", w)
	}
	if !b.spend(repairRate, now) || b.wait(repairRate, now) != repairRate.every {
		t.Fatal("one repair was earned, not more")
	}
	now = now.Add(time.Duration(repairRate.burst) * repairRate.every)
	for range repairRate.burst {
		b.spend(repairRate, now)
	}
	if b.wait(repairRate, now) != repairRate.every {
		t.Fatal("more was earned than fits")
	}
}
