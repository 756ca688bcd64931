package core

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// BenchmarkCore_MissesTheAnswerToARelease measures a release of unknown outcome, with 100,000 works of 1,000
// clusters. The subscription ends. On the next one the release goes first, and digests are compared. It fails
// if a record is requested, a tag computed or a work published.
func BenchmarkCore_MissesTheAnswerToARelease(b *testing.B) {
	const total, clusters = 100_000, 1000
	works, digests := fleetOf(b, total, clusters, func(*workv1.ManifestWork) {})
	now := time.Now()
	var c *Core
	begin := func() {
		c = New(Config{
			Now: func() time.Time { return now }, Jitter: func() float64 { return 0 }, Waker: noCore{}, NewID: func() string { return "request" },
		})
		for _, d := range digests {
			c.ClusterSelected(1, d.Cluster)
		}
		for _, w := range works {
			c.WorkSeen(1, w)
		}
		compareSums(b, c, digests, true)
	}
	b.ReportAllocs()
	for i := range b.N {
		if i%(clusters-1) == 0 {
			b.StopTimer()
			begin()
			b.StartTimer()
		}
		released := Key{Cluster: digests[i%(clusters-1)].Cluster}
		c.ClusterUnselected(1, released.Cluster)
		answer(b, c, released, Result{Err: &transport.Error{Code: transport.CodeDeadline}})
		now = now.Add(longestSpec)
		answer(b, c, Key{}, Result{})
		compareSums(b, c, digests, false)
	}
}

// answer executes the next effect of a key, which must be a release or the end of the subscription.
func answer(b *testing.B, c *Core, k Key, r Result) {
	switch e := c.Next(BrokerQueue, k); e.(type) {
	case Release, EndSubscription:
		c.Done(BrokerQueue, k, r)
	default:
		b.Fatalf("next of %+v is %T", k, e)
	}
}

// compareSums runs one subscription, from its beginning until all clusters are compared.
func compareSums(b *testing.B, c *Core, digests []codec.ClusterDigest, first bool) {
	c.Disconnected()
	c.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	request, is := c.Next(BrokerQueue, Key{}).(RequestInventory)
	if !is {
		b.Fatal("the broker gets no request")
	}
	c.Done(BrokerQueue, Key{}, Result{})
	c.Inventory(codec.Inventory{RequestID: request.ID, Clusters: digests})
	for _, d := range digests {
		k := Key{Cluster: d.Cluster}
		for idle := 0; idle < 2; { // the second idle step ends the comparison
			e := c.Next(BrokerQueue, k)
			tag, tags := e.(Tag)
			switch _, releases := e.(Release); {
			case e == nil:
				idle++
			case releases:
				c.Done(BrokerQueue, k, Result{})
			case tags && first:
				c.Done(BrokerQueue, k, Result{Tags: tag.Tags()})
			default:
				b.Fatalf("next of %s is %T: it is compared", d.Cluster, e)
			}
		}
	}
	if e, requests := c.Next(BrokerQueue, Key{}).(RequestInventory); requests {
		b.Fatalf("it requests the records of %v", e.Request.Clusters)
	}
	if s := c.Stats(); s.Comparing != 0 {
		b.Fatalf("not in sync: %+v", s)
	}
}

// fleetOf returns works, and the digests of a broker that has exactly these.
func fleetOf(b *testing.B, total, clusters int, change func(*workv1.ManifestWork)) (works []*workv1.ManifestWork, digests []codec.ClusterDigest) {
	digests = make([]codec.ClusterDigest, clusters)
	for i := range total {
		w := newWork(fmt.Sprintf("w%05d", i), 1, change)
		n := i % clusters
		w.Namespace, w.UID = fmt.Sprintf("cluster%04d", n), types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))
		works = append(works, w)
		tags := Tag{Works: []*workv1.ManifestWork{w}}.Tags()
		if tags[0] == (codec.Tag{}) {
			b.Fatal("a work has no tag")
		}
		d := &digests[n]
		d.Cluster = w.Namespace
		d.Digest.Count++
		d.Digest.Sum = d.Digest.Sum.Add(codec.RecordHash(string(w.UID), tags[0]))
	}
	return works, digests
}
