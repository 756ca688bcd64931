package hubsource

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// inBubbleOf is inBubble with options of the broker.
func inBubbleOf(t *testing.T, options func() testkit.Options, test func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		test(&bench{T: t, hub: newFakeHub(t), broker: testkit.StartBroker(t, options())})
	})
}

// wantDelivered asserts that works are on their clusters, and that their conditions show it.
func (b *bench) wantDelivered(keys ...string) {
	b.Helper()
	for _, key := range keys {
		w := b.hub.work(key)
		b.shown(key, w.Generation)
		if d := delivered(w.Status); d == nil || d.Status != metav1.ConditionTrue || d.Reason != core.ReasonClusterAnswered || d.ObservedGeneration != w.Generation {
			b.Errorf("%s is delivered, and shows %+v", key, d)
		}
	}
}

// TestSource_ShowsQuotaRejectionsAndContinues: a work above the quota of the broker reports that. It does not
// delay works of other clusters, changes of existing works, or deletions. It is delivered without a change once
// another work is deleted.
func TestSource_ShowsQuotaRejectionsAndContinues(t *testing.T) {
	large := data(strings.Repeat("x", 4000))
	for name, c := range map[string]struct {
		hub, each identity.Limits
		over      *workv1.ManifestWork
		message   string // of the condition Delivered
		gone      string // the work whose deletion frees the quota
	}{
		"works of a cluster": {identity.Limits{}, identity.Limits{Works: 2}, example("c1", "over"), "cluster c1 may have 2 works", "c1/b"},
		"bytes of a cluster": {identity.Limits{}, identity.Limits{Bytes: 8000}, example("c1", "over", large), "cluster c1 may have 8000 bytes", "c1/b"},
		"works of a hub":     {identity.Limits{Works: 3}, identity.Limits{}, example("c2", "over"), "source hub may have 3 works", "c1/b"},
		"clusters of a hub":  {identity.Limits{Clusters: 2}, identity.Limits{}, example("c3", "over"), "source hub may have 2 clusters", "c2/w"},
	} {
		t.Run(name, func(t *testing.T) {
			tries := prometheus.NewRegistry()
			limited := func() (o testkit.Options) {
				rules := identity.Mapping{{CommonName: "x", Role: identity.Source, Name: "hub", Quota: c.hub}}
				o.Broker.Quotas, o.Broker.Registry = quota.NewTable(rules, c.each), tries
				return o
			}
			inBubbleOf(t, limited, func(b *bench) {
				for _, cluster := range []string{"c1", "c2", "c3"} {
					b.agent(cluster)
				}
				b.source()
				b.hub.apply(example("c1", "a"))
				b.hub.apply(example("c1", "b", func(w *workv1.ManifestWork) {
					if c.each.Bytes > 0 {
						large(w)
					}
				}))
				b.hub.apply(example("c2", "w"))
				b.settle(time.Second)
				b.hub.apply(c.over)
				b.settle(time.Second)
				over := c.over.Namespace + "/over"
				if d := delivered(b.hub.work(over).Status); d == nil || d.Status != "False" || d.Reason != core.ReasonQuotaExceeded || !strings.Contains(d.Message, c.message) {
					b.Fatalf("%s is over a quota, and shows %+v", over, b.hub.work(over).Status.Conditions)
				}
				b.wantDelivered("c1/a", "c1/b", "c2/w")
				for _, key := range []string{"c1/a", "c2/w"} { // these works are not affected
					cluster, work, _ := strings.Cut(key, "/")
					b.hub.apply(example(cluster, work, data("n")))
				}
				b.settle(time.Second)
				b.wantDelivered("c1/a", "c2/w")

				before := refusals(b, tries)
				b.settle(10 * time.Minute)
				if n := refusals(b, tries) - before; n < 10 || n > 21 {
					b.Errorf("tried %d times in ten minutes, want once or twice in each", n)
				}
				b.hub.remove("manifestworks", c.gone)
				b.settle(time.Second)
				if b.hub.work(c.gone) != nil {
					b.Error("the deletion waits for room")
				}
				b.settle(time.Minute)
				b.wantDelivered("c1/a", over)
			})
		})
	}
}

// refusals returns how often a broker rejected a publish because of a quota.
func refusals(b *bench, r *prometheus.Registry) (n int) {
	b.Helper()
	families, err := r.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "hawser_broker_quota_rejections_total" {
			for _, m := range f.GetMetric() {
				n += int(m.GetCounter().GetValue())
			}
		}
	}
	return n
}

// slowDisk is a store with slow commits.
type slowDisk struct {
	store.Store
	took time.Duration
}

func (d slowDisk) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	<-time.After(d.took) // the time of the bubble
	return d.Store.Commit(ctx, ops)
}

// TestSource_FullClusterShareDelaysNoOther: publishes of one cluster use all of its share of the broker's queue,
// while the disk is slow. Publishes of other clusters are not delayed, whatever the result for the first one is.
func TestSource_FullClusterShareDelaysNoOther(t *testing.T) {
	const commit = time.Second
	slow := func() (o testkit.Options) {
		o.Broker.Store = slowDisk{mem.Open(mem.Options{NewID: testkit.NewIDs("store")}), commit}
		o.Broker.MaxEventBytes, o.Broker.QueueBytes = 16<<10, 256<<10
		return o
	}
	inBubbleOf(t, slow, func(b *bench) {
		b.source()
		b.hub.apply(example("quiet", "w"))
		b.hub.apply(example("flood", "w"))
		b.settle(time.Minute)
		b.flood("flood", 80)
		b.settle(10 * time.Second)
		b.hub.apply(example("flood", "w", data(strings.Repeat("x", 6000))))
		b.settle(3 * time.Second)
		for i := range 5 {
			b.hub.apply(example("quiet", "w", data(fmt.Sprint("news ", i))))
			// One commit is being written, the next one has the spec.
			b.settle(2*commit + commit/2)
			m, err := b.broker.Store.Meta(b.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: "quiet", ResourceID: string(b.hub.work("quiet/w").UID)})
			if err != nil || m.Version != int64(2+i) {
				t.Errorf("the broker has version %d of another cluster's work %s after the hub had version %d (%v)", m.Version, 2*commit+commit/2, 2+i, err)
			}
		}
	})
}

// flood publishes a work of a cluster as the hub's source, with parallel versions in flight, as fast as the
// broker accepts them.
func (b *bench) flood(cluster string, parallel int) {
	b.Helper()
	peer := transport.Peer{Role: string(identity.Source), Name: "hub"}
	for i := range parallel {
		o := example(cluster, "flood")
		o.Name, o.UID, o.Generation = fmt.Sprint("flood", i), types.UID(fmt.Sprint("flood", i)), 1
		b.start(func(ctx context.Context) error {
			for ; ctx.Err() == nil; o.Generation++ {
				e, err := manifestwork.EncodeSpec(o, manifestwork.SpecParams{ID: "flood", Now: time.Now(), Source: "hub", Action: codec.UpdateRequest})
				if err != nil {
					return err
				}
				raw, err := codec.Marshal(e)
				if err != nil {
					return err
				}
				if _, err := b.broker.Publish(ctx, peer, raw, ""); err != nil {
					<-time.After(100 * time.Millisecond) // the time of the bubble
				}
			}
			return nil
		})
	}
}
