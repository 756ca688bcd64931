package agentstatus

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// world is a store, a clock, and agents whose states the test sets.
type world struct {
	*testing.T
	*Peers
	store    store.Store
	registry *prometheus.Registry
	now      time.Time
	stand    map[string]State
	sequence int64
	ended    []string
}

func (w *world) StateOf(scope store.Scope, _ store.ClusterHead) State { return w.stand[scope.Cluster] }

func (w *world) ConnectionOf(scope store.Scope, _ store.ClusterHead) Connection {
	return Connection{State: w.stand[scope.Cluster]}
}

func (w *world) EndFormer(_ store.Scope, subscriptions []string) {
	w.ended = append(w.ended, subscriptions...)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ids := 0
	w := &world{
		T: t, store: mem.Open(mem.Options{NewID: func() string { ids++; return fmt.Sprint("store-", ids) }}),
		now: time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC), stand: map[string]State{}, sequence: 1,
	}
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	w.start()
	return w
}

// start starts a broker over the store.
func (w *world) start() {
	w.registry = prometheus.NewRegistry()
	cfg := &settings.Config{Store: w.store, Log: slog.New(slog.DiscardHandler), Registry: w.registry, Now: func() time.Time { return w.now }}
	cfg.Replicas = settings.NewReplicas(cfg)
	w.Peers = New(cfg)
	w.Connect(w)
}

func at(cluster string) store.Scope {
	return store.Scope{DataType: codec.ManifestBundles, Cluster: cluster}
}

func (w *world) commit(op store.Op) {
	w.Helper()
	op.Key.DataType, op.Key.ResourceID, op.At = codec.ManifestBundles, "work", w.now
	outcomes, err := w.store.Commit(w.Context(), []store.Op{op})
	if err != nil || outcomes[0].Result != store.Accepted {
		w.Fatal(outcomes, err)
	}
	w.Refresh(at(op.Key.Cluster))
}

func (w *world) put(cluster string) {
	w.Helper()
	w.commit(store.Op{
		Kind: store.PutSpec, Key: store.Key{Cluster: cluster}, Owner: "src", Name: "work", Action: codec.CreateRequest, Version: 1,
		Tag: codec.TagOf(false, 1, "", nil), Event: []byte("spec"),
	})
}

func (w *world) report(cluster string, failing bool) {
	w.Helper()
	w.sequence++
	w.commit(store.Op{
		Kind: store.PutStatus, Key: store.Key{Cluster: cluster}, Version: 1, Sequence: fmt.Sprint(w.sequence<<22 | 1<<12), StatusHash: fmt.Sprint(w.sequence),
		Failing: failing, Event: []byte("status"),
	})
}

// come connects an agent of a cluster.
func (w *world) come(cluster string, f Facts) {
	w.Helper()
	if err := storetest.Bind(w.Context(), w.store, codec.ManifestBundles, cluster, ""); err != nil {
		w.Fatal(err)
	}
	w.stand[cluster] = Unverified
	w.Connected(at(cluster), f, "")
}

func (w *world) leave(cluster string) {
	delete(w.stand, cluster)
	w.Disconnected(at(cluster))
}

// counted returns the values of the metric that are not 0, by state.
func (w *world) counted() map[string]int {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if n := int(m.GetGauge().GetValue()); f.GetName() == "hawser_broker_clusters" && n != 0 {
				got[m.GetLabel()[0].GetValue()] = n
			}
		}
	}
	return got
}

func (w *world) want(what string, want map[string]int) {
	w.Helper()
	if d := cmp.Diff(want, w.counted()); d != "" {
		w.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// TestAgents_ReportsWhyNoneIsConnected: the reason is that an agent was rejected, or that its certificate has
// expired.
func TestAgents_ReportsWhyNoneIsConnected(t *testing.T) {
	w := newWorld(t)
	w.put("c1")
	why := func(want string) {
		t.Helper()
		w.now = w.now.Add(absentAfter)
		if c, absent := w.Absent(at("c1")); !absent || c.Reason != want {
			t.Errorf("got %+v, %t, want %q", c, absent, want)
		}
	}
	why("")
	w.come("c1", Facts{CertificateEnds: time.Date(2000, 2, 3, 4, 5, 6, 0, time.UTC)})
	w.leave("c1")
	why("the certificate of its agent expired at 2000-02-03 04:05:06 UTC: put a new one into its Secret, or have it join again")
	w.Refused("c1", "not you")
	why("not you")
}

// TestAgents_CountsStates: the counts follow each change without a query.
func TestAgents_CountsStates(t *testing.T) {
	w := newWorld(t)
	w.want("nothing is there", map[string]int{})
	w.Refused("c1", "not you")
	w.want("a rejection makes no cluster", map[string]int{})
	w.put("c1")
	w.put("c2")
	w.want("works without an agent", map[string]int{"NeverConnected": 2})
	w.come("c1", Facts{})
	w.want("an agent came", map[string]int{"NeverConnected": 1, "Unverified": 1})
	w.stand["c1"] = InSync
	w.Acknowledged(at("c1"), time.Second)
	w.want("it proved it", map[string]int{"NeverConnected": 1, "InSync": 1})
	w.report("c1", true)
	w.want("it fails", map[string]int{"NeverConnected": 1, "Failing": 1})
	w.stand["c1"] = OutOfSync
	w.Refresh(at("c1"))
	w.want("it differs, which is worse", map[string]int{"NeverConnected": 1, "OutOfSync": 1})
	w.stand["c1"] = Syncing
	w.report("c1", false)
	w.want("it is better", map[string]int{"NeverConnected": 1, "Syncing": 1})
	w.leave("c1")
	w.want("it left", map[string]int{"NeverConnected": 1, "Disconnected": 1})
	w.Refused("c1", "expired")
	w.Refused("c2", "another name")
	w.want("both are refused", map[string]int{"Rejected": 2})
	w.now = w.now.Add(refusalCounts)
	w.look()
	w.want("they do not come back", map[string]int{"NeverConnected": 1, "Disconnected": 1})
	w.come("c1", Facts{})
	w.Refused("c1", "too many")
	w.leave("c1")
	w.want("it was refused while it was there, and left then", map[string]int{"NeverConnected": 1, "Rejected": 1})
	w.now = w.now.Add(time.Second)
	w.Disconnected(at("c1"))
	w.want("it left after that", map[string]int{"NeverConnected": 1, "Disconnected": 1})
	w.commit(store.Op{Kind: store.Drop, Key: store.Key{Cluster: "c2"}})
	w.want("nothing of c2 is left", map[string]int{"Disconnected": 1})
	if err := storetest.Unbind(t.Context(), w.store, codec.ManifestBundles, "c1"); err != nil {
		t.Fatal(err)
	}
	w.Forget("c1")
	w.want("c1 has a work and no name", map[string]int{"NeverConnected": 1})
	if f, _, s := w.Of(at("c1")); f != (Facts{}) || s != NeverConnected {
		t.Errorf("the forgotten client has %+v, %v", f, s)
	}
	if f, _, s := w.Of(at("c9")); f != (Facts{}) || s != 0 {
		t.Errorf("an unknown cluster has %+v, %v", f, s)
	}
}

// TestAgents_KeepsLastSeen: the facts stay after an agent disconnected, with limited sizes. After a restart
// they are unknown, but the store still has that an agent subscribed.
func TestAgents_KeepsLastSeen(t *testing.T) {
	w := newWorld(t)
	w.come("c1", Facts{Address: "192.0.2.1:7", Version: "v1\x1b[2J" + strings.Repeat("9", 1<<20), Transport: "grpc", CertificateEnds: w.now.Add(time.Hour)})
	w.Acknowledged(at("c1"), time.Second)
	came := w.now
	w.now = w.now.Add(time.Minute)
	w.leave("c1")
	w.now = w.now.Add(time.Minute)
	w.Refused("c1", "because\n"+strings.Repeat("x", 1<<20))
	want := Facts{
		Seen: came.Add(time.Minute), Address: "192.0.2.1:7", Version: "v1.[2J" + strings.Repeat("9", longest-6), Transport: "grpc", CertificateEnds: came.Add(time.Hour),
		RoundTrip: time.Second, RefusedAt: w.now, Refusal: "because." + strings.Repeat("x", longestRefusal-8),
	}
	if f, _, s := w.Of(at("c1")); f != want || s != Rejected {
		t.Errorf("the tracker has %+v, %v", f, s)
	}
	w.start()
	if f, _, s := w.Of(at("c1")); f != (Facts{}) || s != Disconnected || w.Began() != w.now {
		t.Errorf("after a restart the tracker has %+v, %v, started at %s", f, s, w.Began())
	}
	w.want("after a restart", map[string]int{"Disconnected": 1})
}
