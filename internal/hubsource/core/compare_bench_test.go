package core

import (
	"fmt"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// noCore ignores wakes: the benchmark calls the core itself.
type noCore struct{}

func (noCore) Wake(Queue, Key, time.Duration) {}
func (noCore) Prioritize(Queue, Key)          {}

// BenchmarkCore_ComparesInSync measures a connection of a source with 10,000 works of 10 KiB that are in sync.
// The first connection of a process has to compute the tags, without the core's lock. "locked" is the total
// time under the lock, "longest" the longest single time.
func BenchmarkCore_ComparesInSync(b *testing.B) {
	const total = 10_000
	for _, clusters := range []int{1, 1000} {
		for _, first := range []bool{true, false} {
			b.Run(fmt.Sprintf("clusters=%d/first=%v", clusters, first), func(b *testing.B) {
				works, digests := fleetOf(b, total, clusters, sizedJSON(10<<10))
				l := &lockTime{core: coreWith(works)}
				l.connect(b, digests)
				l.held, l.longest = 0, 0
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					if first {
						b.StopTimer()
						l.core = coreWith(works)
						b.StartTimer()
					}
					l.connect(b, digests)
				}
				b.ReportMetric(float64(l.held.Microseconds())/float64(b.N), "locked-µs/op")
				b.ReportMetric(float64(l.longest.Microseconds()), "longest-µs")
			})
		}
	}
}

func coreWith(works []*workv1.ManifestWork) *Core {
	c := New(Config{
		Now: time.Now, Jitter: func() float64 { return 0 }, Waker: noCore{}, All: true, NewID: func() string { return "request" },
	})
	for _, w := range works {
		c.WorkSeen(1, w)
	}
	return c
}

func sizedJSON(bytes int) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0].Raw = fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"},"data":{"a":"%0*d"}}`, bytes, 1)
	}
}

// lockTime measures how long the shell would hold the core's lock.
type lockTime struct {
	core          *Core
	held, longest time.Duration
}

func (l *lockTime) lock(f func()) {
	start := time.Now()
	f()
	took := time.Since(start)
	l.held, l.longest = l.held+took, max(l.longest, took)
}

func (l *lockTime) next(k Key) (e Effect) {
	l.lock(func() { e = l.core.Next(BrokerQueue, k) })
	return e
}

// connect is one connection, from the subscription to the last comparison.
func (l *lockTime) connect(b *testing.B, digests []codec.ClusterDigest) {
	l.lock(func() { l.core.Disconnected() })
	l.lock(func() { l.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor}) })
	request, is := l.next(Key{}).(RequestInventory)
	if !is {
		b.Fatal("the broker gets no request")
	}
	l.lock(func() { l.core.Done(BrokerQueue, Key{}, Result{}) })
	l.lock(func() { l.core.Inventory(codec.Inventory{RequestID: request.ID, Clusters: digests}) })
	for _, d := range digests {
		for idle := 0; idle < 2; { // the second idle step ends the comparison
			switch e := l.next(Key{Cluster: d.Cluster}).(type) {
			case nil:
				idle++
			case Tag:
				tags := e.Tags()
				l.lock(func() { l.core.Done(BrokerQueue, Key{Cluster: d.Cluster}, Result{Tags: tags}) })
			default:
				b.Fatalf("next of %s is %T", d.Cluster, e)
			}
		}
	}
	if s := l.core.Stats(); s.Comparing != 0 {
		b.Fatalf("not in sync: %+v", s)
	}
}
