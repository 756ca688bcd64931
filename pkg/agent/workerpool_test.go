package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/codec"
)

// hanging is a cluster that does not answer requests for one kind until free is closed.
type hanging struct {
	kubeclient.Client
	resource string
	free     chan struct{}
}

func (h hanging) wait(ctx context.Context, resource string) error {
	if resource != h.resource {
		return nil
	}
	select {
	case <-h.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h hanging) Get(ctx context.Context, ref kubeclient.Ref) (*unstructured.Unstructured, error) {
	if err := h.wait(ctx, ref.Resource); err != nil {
		return nil, err
	}
	return h.Client.Get(ctx, ref)
}

func (h hanging) Create(ctx context.Context, gvr schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := h.wait(ctx, gvr.Resource); err != nil {
		return nil, err
	}
	return h.Client.Create(ctx, gvr, o)
}

// A kind of object for which the cluster gives no answers delays only the works that have it, however many they
// are. The watchdog names them.
func TestAgent_SlowWorksDelayNoOther(t *testing.T) {
	var free chan struct{}
	runAgent(t, func(r *running) {
		free = make(chan struct{}) // the channel must belong to the bubble
		r.client = hanging{r.f, "deployments", free}
	}, func(r *running) {
		const stuck = 2*DefaultWorkers + 5
		for i := range stuck {
			r.b.events <- r.events.event(hubWork(fmt.Sprintf("stuck-%d", i), fmt.Sprintf("stuck-%02d", i), 1, deployment(fmt.Sprintf("d%d", i), "x")), codec.CreateRequest, nil)
		}
		r.after(100 * time.Millisecond)
		r.b.events <- r.events.event(hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest, nil)
		r.after(6 * time.Second)
		if last, _ := r.b.statuses(); condition(last["w-1"].Status.Conditions, "Applied") == nil {
			t.Error("a work waits for others that take long")
		}
		r.after(veryslowAfter + lookForLate)
		if late := r.a.SlowWorks(); strings.Count(late, "stuck-") != stuck || r.value("hawser_agent_slow_reconciles") != stuck || r.a.ClusterReady() != nil {
			t.Errorf("got %q", late)
		}
		last, _ := r.b.statuses()
		c := condition(last["stuck-7"].Status.Conditions, "ReconcileSlow")
		if c == nil || c.Status != "True" || c.Reason != "ReconcileTakesLong" || !strings.Contains(c.Message, "Other works do not wait for it") {
			t.Errorf("the work has the condition %+v", c)
		}
		close(free)
		r.after(time.Second)
		last, _ = r.b.statuses()
		for id, s := range last {
			if c := condition(s.Status.Conditions, "Applied"); c == nil || c.Status != "True" || condition(s.Status.Conditions, "ReconcileSlow") != nil {
				t.Errorf("%s: %q", id, show(s.Status.Conditions))
			}
		}
		if r.a.SlowWorks() != "" {
			t.Errorf("late: %s", r.a.SlowWorks())
		}
	})
}

// A key that was slow last time uses no worker again, and runs nevertheless.
func TestWorkerPool_SlowWorksWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 30
		var mu sync.Mutex
		ended := map[string]int{}
		turns := newWorkerPool(2, func(ctx context.Context, _ *queue, key string) {
			if strings.HasPrefix(key, "long") {
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
				}
			}
			mu.Lock()
			defer mu.Unlock()
			ended[key]++
		})
		q := newQueue(firstRetry, lastRetry)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- turns.serve(ctx, q, 2) }()
		round := func(within time.Duration) {
			t.Helper()
			for i := range long {
				q.Add(fmt.Sprintf("long-%d", i))
			}
			<-time.After(within)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(ended) != long {
				t.Fatalf("%d of %d have ended", len(ended), long)
			}
			clear(ended)
		}
		round(10 * time.Minute) // keys with an unknown duration use workers
		for i := range long {
			q.Add(fmt.Sprintf("long-%d", i))
		}
		synctest.Wait()
		q.Add("quick")
		<-time.After(time.Millisecond)
		synctest.Wait()
		mu.Lock()
		if ended["quick"] != 1 || turns.taken != turns.slots || len(turns.waiting) != long-turns.slots {
			t.Errorf("quick ones had %d turns, %d places are taken, %d wait", ended["quick"], turns.taken, len(turns.waiting))
		}
		clear(ended)
		mu.Unlock()
		round(10 * 10 * time.Second) // each key is due once more
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if turns.taken != 0 || len(turns.running) != 0 {
			t.Errorf("%d places are taken, %d run", turns.taken, len(turns.running))
		}
	})
}
