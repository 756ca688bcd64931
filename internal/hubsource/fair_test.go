package hubsource

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	workversioned "open-cluster-management.io/api/client/work/clientset/versioned"

	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// slowHub delays requests that change a status.
type slowHub struct {
	http.RoundTripper
	took func(r *http.Request) time.Duration
}

func (h slowHub) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/status") {
		select {
		case <-time.After(h.took(r)): // the time of the bubble
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return h.RoundTripper.RoundTrip(r)
}

// slow delays the hub of a source.
func (b *bench) slow(took func(r *http.Request) time.Duration) func(*Config) {
	return func(c *Config) {
		config := b.hub.config()
		config.Transport = slowHub{config.Transport, took}
		c.Works = workversioned.NewForConfigOrDie(config)
	}
}

// worksOf returns the keys of as many works of a cluster as there are workers of the hub queue.
func worksOf(cluster string) (keys []string) {
	for i := range hubWorkers {
		keys = append(keys, fmt.Sprintf("%s/w%d", cluster, i))
	}
	return keys
}

// messageOf returns the message of the agent that the hub shows on a work.
func (b *bench) messageOf(key string) string {
	if c := b.hub.work(key).Status.Conditions; len(c) > 0 {
		return c[0].Message
	}
	return ""
}

// arrive changes the status of all works of a cluster, and returns the time until the hub shows that.
func (b *bench) arrive(a *fakeAgent, within time.Duration) time.Duration {
	b.Helper()
	began := time.Now()
	for _, key := range worksOf(a.cluster) {
		_, name, _ := strings.Cut(key, "/")
		a.send(name, "news")
	}
	for time.Since(began) < within {
		b.settle(time.Millisecond)
		missing := 0
		for _, key := range worksOf(a.cluster) {
			if b.messageOf(key) != "news" {
				missing++
			}
		}
		if missing == 0 {
			return time.Since(began)
		}
		if time.Since(began) >= within-time.Millisecond {
			b.Errorf("%d of %d statuses are not on the hub after %v", missing, hubWorkers, time.Since(began))
		}
	}
	return time.Since(began)
}

// twoClusters starts a source with a cluster that floods and a quiet one.
func (b *bench) twoClusters(took func(r *http.Request) time.Duration) (flood, quiet *fakeAgent) {
	b.Helper()
	for _, key := range append(worksOf("flood"), worksOf("quiet")...) {
		cluster, name, _ := strings.Cut(key, "/")
		b.hub.apply(example(cluster, name))
	}
	flood, quiet = b.agent("flood"), b.agent("quiet")
	b.source(b.slow(took))
	b.settle(time.Minute)
	for _, key := range append(worksOf("flood"), worksOf("quiet")...) {
		b.shown(key, 1)
	}
	return flood, quiet
}

// TestSource_FloodOfOneClusterLeavesTheOthersTheirShare: the works of one cluster change faster than the hub
// accepts their statuses, as fast as its agent can. The statuses of another cluster still reach the hub.
func TestSource_FloodOfOneClusterLeavesTheOthersTheirShare(t *testing.T) {
	const patch = 10 * time.Millisecond
	inBubble(t, func(b *bench) {
		flood, quiet := b.twoClusters(func(*http.Request) time.Duration { return patch })
		b.start(func(ctx context.Context) error {
			for n := 0; ctx.Err() == nil; n++ {
				for i := range hubWorkers {
					flood.send(fmt.Sprint("w", i), fmt.Sprint("flood ", n))
				}
				<-time.After(patch / 2) // the time of the bubble
			}
			return nil
		})
		b.settle(time.Second)
		// At least half of the workers are for the 16 patches. That is two rounds, a worker that has to finish first,
		// and keys of the flood between them.
		if took := b.arrive(quiet, time.Second); took > 6*patch {
			t.Errorf("the statuses of a cluster beside a flood took %v, patches take %v", took, patch)
		}
		if got := b.messageOf("flood/w0"); got == "" || got == "flood 0" {
			t.Errorf("of the flood the hub shows %q", got)
		}
	})
}

// TestSource_UnansweredClusterBlocksNoOther: requests of one cluster that the hub never answers do not block
// other clusters.
func TestSource_UnansweredClusterBlocksNoOther(t *testing.T) {
	stuck := false
	inBubble(t, func(b *bench) {
		flood, quiet := b.twoClusters(func(r *http.Request) time.Duration {
			if stuck && strings.Contains(r.URL.Path, "/flood/") {
				return time.Hour
			}
			return 0
		})
		stuck = true
		for i := range hubWorkers {
			flood.send(fmt.Sprint("w", i), "never shown")
		}
		b.settle(time.Second)
		if took := b.arrive(quiet, time.Second); took > 2*time.Millisecond {
			t.Errorf("the statuses of a cluster beside one that is stuck took %v", took)
		}
	})
}

// TestClusterFairQueue_LeavesWorkersToTheOthers: a cluster gets as many workers as it leaves free.
func TestClusterFairQueue_LeavesWorkersToTheOthers(t *testing.T) {
	l := newClusterFairQueue(16)
	defer l.ShutDown()
	var got []string
	take := func() {
		for l.order.Len() > 0 {
			k, _ := l.Get()
			got = append(got, k.Cluster)
		}
	}
	count := func(cluster string) (n int) {
		for _, g := range got {
			if g == cluster {
				n++
			}
		}
		return n
	}
	for _, cluster := range []string{"a", "b", "c"} {
		for i := range 20 {
			l.Add(key(cluster, i))
		}
		take()
	}
	if a, b, c := count("a"), count("b"), count("c"); a != 8 || b != 4 || c != 2 {
		t.Errorf("%d, %d and %d of 16 workers for three clusters that keep them, want 8, 4 and 2", a, b, c)
	}
	l.Add(core.Key{Cluster: "d"})
	if take(); count("d") != 1 {
		t.Error("no worker is left for the last cluster")
	}
	if n := l.Len(); n != 3*20-14 {
		t.Errorf("%d keys wait", n)
	}
	l.End(key("a", 0), 0)
	l.End(key("a", 1), 0)
	if take(); count("c") != 3 {
		t.Errorf("two workers that became free went to %v", got[15:])
	}
}

// TestClusterFairQueue_PutsDeletionsFirst: deletions come before other works of the same cluster.
func TestClusterFairQueue_PutsDeletionsFirst(t *testing.T) {
	l := newClusterFairQueue(1 << 10)
	defer l.ShutDown()
	for i := range 5 {
		l.Add(key("a", i))
	}
	l.Add(key("b", 0))
	l.Prioritize(key("a", 3)) // the key waits already
	l.Add(key("a", 3))
	l.Prioritize(key("a", 7))
	l.Add(key("a", 7))
	l.Add(core.Key{Cluster: "a"})
	var got []string
	for l.order.Len() > 0 {
		k, _ := l.Get()
		got = append(got, k.Cluster+string(k.UID))
	}
	want := []string{"a3", "b0", "a7", "a", "a0", "a1", "a2", "a4"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func key(cluster string, n int) core.Key {
	return core.Key{Cluster: cluster, UID: types.UID(strconv.Itoa(n))}
}
