package broker

import (
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestOrder_OfAComparison(t *testing.T) {
	var o order
	for _, c := range []struct {
		n    uint64
		want bool
	}{{3, true}, {3, false}, {2, false}, {0, true}, {4, true}} {
		if got := o.compare(c.n); got != c.want {
			t.Errorf("comparison %d is taken: %t", c.n, got)
		}
	}
	if !o.release("a", 7) || o.compare(6) || !o.compare(8) {
		t.Errorf("a release does not divide what was compared before from what is after: %+v", o)
	}
}

func TestOrder_OfReleases(t *testing.T) {
	var o order
	for _, c := range []struct {
		cluster string
		n       uint64
		want    bool
	}{
		{"a", 5, true},
		{"b", 4, true}, // of another cluster: both are on their way at the same time
		{"a", 3, false},
		{"a", 5, false},
		{"a", 0, true}, // counts when it arrives
		{"a", 6, true},
	} {
		if got := o.release(c.cluster, c.n); got != c.want {
			t.Errorf("release %d of %s is taken: %t", c.n, c.cluster, got)
		}
	}
	if o.last != 6 || o.releasedAt("a") != 6 || o.releasedAt("b") != 4 || o.releasedAt("c") != 0 {
		t.Errorf("%+v", o)
	}
}

// TestOrder_IsBounded: where releases are forgotten one by one, nothing that was
// said before that counts any more, of whatever cluster.
func TestOrder_IsBounded(t *testing.T) {
	s := newHawser(codec.Status)
	n := uint64(0)
	for i := range 3 * maxReleased {
		n = uint64(2*i + 2)
		if err := s.releases(fmt.Sprint("c", i), n, func() {}); err != nil {
			t.Fatalf("release %d: %v", i, err)
		}
		if len(s.order.released) > maxReleased {
			t.Fatalf("%d releases are remembered", len(s.order.released))
		}
	}
	for cluster, late := range map[string]uint64{"c0": 1, fmt.Sprint("c", 3*maxReleased-1): n - 1} {
		if err := s.void(cluster, late); err == nil || err.Attribute != codec.ExtOrder {
			t.Errorf("what was said of %s before its release: %v", cluster, err)
		}
		if err := s.releases(cluster, late, func() { t.Error("revoked") }); err == nil {
			t.Errorf("an earlier release of %s is taken", cluster)
		}
		if err := s.void(cluster, n+1); err != nil {
			t.Errorf("what is said of %s now: %v", cluster, err)
		}
	}
}

func TestOrder_EndsWithTheSubscription(t *testing.T) {
	for name, end := range map[string]func(*subscription){
		"ended": func(s *subscription) { s.stop(goingAway()) },
		"left":  func(s *subscription) { s.release() },
	} {
		s := newHawser(codec.Status)
		if s.void("c", 1) != nil || s.releases("c", 1, func() {}) != nil || s.compares(2) != nil {
			t.Errorf("%s: nothing is taken before", name)
		}
		end(s)
		for what, err := range map[string]*transport.Error{
			"a spec": s.void("c", 3), "a release": s.releases("c", 3, func() { t.Error("revoked") }), "a comparison": s.compares(4),
		} {
			if err == nil || err.Attribute != codec.HeaderSubscriptionID {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}
