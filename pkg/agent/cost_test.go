package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Objects that cannot be watched are read periodically: few of them at the status sync interval, many at a
// bounded rate. All of them are read.
func TestCore_BoundsReadsOfUnwatchableKinds(t *testing.T) {
	for _, c := range []struct {
		works, perWork int
		longest        time.Duration // between two reads of one object
	}{
		{works: 1, perWork: 2, longest: 20 * time.Second},
		{works: 12, perWork: 20, longest: time.Minute},
	} {
		r := newRig(t)
		r.denied = "configmaps"
		for i := range c.works {
			var manifests []string
			for m := range c.perWork {
				manifests = append(manifests, configMap(fmt.Sprintf("c-%d-%d", i, m), "1"))
			}
			r.apply(hubWork(fmt.Sprintf("w-%d", i), fmt.Sprintf("work-%d", i), 1, manifests...))
		}
		const while = 5 * time.Minute
		r.settle(5 * time.Minute) // the interval has grown with the number of objects
		r.requests()
		r.settle(while)
		reads, of := 0, map[string]int{}
		for _, call := range r.requests() {
			switch {
			case strings.HasPrefix(call, "get configmaps"):
				reads++
				of[call]++
			default:
				t.Errorf("%d works of %d: %s", c.works, c.perWork, call)
			}
		}
		if limit := int(while.Seconds()) * unwatchedReads; reads > limit {
			t.Errorf("%d works of %d: %d reads in %v, want %d at most", c.works, c.perWork, reads, while, limit)
		}
		if n := c.works * c.perWork; len(of) != n {
			t.Errorf("%d works of %d: %d objects were looked at", c.works, c.perWork, len(of))
		}
		for call, n := range of {
			if n < int(while/c.longest) {
				t.Errorf("%d works of %d: %q %d times in %v", c.works, c.perWork, call, n, while)
			}
		}
	}
}

// If the hub rejects every status, objects are recorded and removed nevertheless.
func TestCore_WorksWhileHubRejectsStatuses(t *testing.T) {
	r := newRig(t)
	r.refuse = func(codec.Event) error { return errAway }
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1")))
	r.expectListed("web", "configmaps default/a", "configmaps default/b")
	r.apply(hubWork("w-1", "web", 2, configMap("b", "1")))
	r.expectListed("web", "configmaps default/b")
	if r.configMap("a") != nil {
		t.Error("a manifest that was removed from the work was not pruned")
	}
	if len(r.sent) != 0 {
		t.Fatalf("%d statuses were accepted", len(r.sent))
	}
	r.delete(hubWork("w-1", "web", 2))
	if r.configMap("b") != nil || r.record("web") != nil {
		t.Error("a deleted work left something behind")
	}
}
