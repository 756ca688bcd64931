package hubsource

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// ttl sets the time to live of a completed work.
func ttl(seconds int64) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption = &workv1.DeleteOption{TTLSecondsAfterFinished: &seconds}
	}
}

// complete makes the agent report a work as complete.
func (b *bench) complete(name string) {
	b.Helper()
	w := b.hub.work("c1/" + name)
	status := w.Status
	status.Conditions = append(status.Conditions, metav1.Condition{
		Type: workv1.WorkComplete, Status: "True", Reason: "ConditionRulesAggregated", LastTransitionTime: metav1.Now(),
	})
	if _, err := NewHub(b.hub.works().WorkV1(), nil).PatchStatus(b.Context(), w, status); err != nil {
		b.Fatal(err)
	}
}

func TestSource_CleansUpCompletedWorks(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		s := b.source(func(c *Config) { c.CleanUp = true })
		for name, seconds := range map[string]int64{"now": 0, "soon": 30, "later": 600} {
			b.hub.apply(example("c1", name, ttl(seconds)))
		}
		b.hub.apply(example("c1", "kept"))
		b.settle(5 * time.Second)
		for _, name := range []string{"now", "soon", "later", "kept"} {
			b.complete(name)
		}
		there := func() (names string) {
			for _, name := range []string{"now", "soon", "later", "kept"} {
				if b.hub.work("c1/"+name) != nil {
					names += name + " "
				}
			}
			return names
		}
		b.settle(time.Second)
		if got := there(); got != "soon later kept " {
			b.Errorf("after 1 s: %s", got)
		}
		b.settle(28 * time.Second)
		if got := there(); got != "soon later kept " {
			b.Errorf("after 29 s: %s", got)
		}
		b.settle(2 * time.Second)
		if got := there(); got != "later kept " {
			b.Errorf("after 31 s: %s", got)
		}
		if err := s.stop(); err != nil { // the next leader reads the same state
			b.Error(err)
		}
		b.source(func(c *Config) { c.CleanUp = true })
		b.settle(10*time.Minute + time.Second) // the next leader does not trust its clock at once
		if got := there(); got != "kept " {
			b.Errorf("after 10 min and a change of leaders: %s", got)
		}
		if n := b.hub.called("DELETE manifestworks"); n != 3 {
			b.Errorf("%d deletions of 3 works; the agent saw %s", n, a.history())
		}
		if got := b.records(); got != "c1/kept" {
			b.Errorf("the broker holds %s", got)
		}
	})
}

func TestSource_DoesNotCleanUpUnasked(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.agent("c1")
		b.source()
		b.hub.apply(example("c1", "w", ttl(0)))
		b.settle(5 * time.Second)
		b.complete("w")
		b.settle(time.Hour)
		if b.hub.work("c1/w") == nil || b.hub.called("DELETE manifestworks") != 0 {
			b.Error("deleted, although the gate is off")
		}
	})
}

// If the hub forbids the deletion, the source retries it with the usual back-off.
func TestSource_GoesOnWhenItMayNotCleanUp(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.agent("c1")
		b.hub.forbidden["DELETE manifestworks"] = true
		s := b.source(func(c *Config) { c.CleanUp = true })
		b.hub.apply(example("c1", "w", ttl(0)))
		b.settle(5 * time.Second)
		b.complete("w")
		b.settle(time.Minute)
		if n := b.hub.called("DELETE manifestworks"); n < 5 || n > 30 {
			b.Errorf("%d attempts in a minute", n)
		}
		found := false
		for _, line := range counters(b, s) {
			found = found || line == fmt.Sprintf("%shub_requests_total operation=delete_completed result=forbidden", metricPrefix)
		}
		if !found {
			b.Errorf("not counted: %v", counters(b, s))
		}
		b.hub.mu.Lock()
		delete(b.hub.forbidden, "DELETE manifestworks")
		b.hub.mu.Unlock()
		b.settle(30 * time.Second)
		if b.hub.work("c1/w") != nil {
			b.Error("allowed, and not deleted")
		}
	})
}
