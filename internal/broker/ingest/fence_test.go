package ingest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestOrder_OfAComparison(t *testing.T) {
	var o fenceOrder
	for _, c := range []struct {
		n    uint64
		want bool
	}{{3, true}, {3, false}, {2, false}, {0, true}, {4, true}} {
		if got := o.compare(c.n); got != c.want {
			t.Errorf("comparison %d is accepted: %t", c.n, got)
		}
	}
	if !o.release("a", 7) || o.compare(6) || !o.compare(8) {
		t.Errorf("a release does not separate earlier comparisons from later ones: %+v", o)
	}
}

func TestOrder_OfReleases(t *testing.T) {
	var o fenceOrder
	for _, c := range []struct {
		cluster string
		n       uint64
		want    bool
	}{
		{"a", 5, true},
		{"b", 4, true}, // of another cluster, so the order does not matter
		{"a", 3, false},
		{"a", 5, false},
		{"a", 0, true}, // ordered by its arrival
		{"a", 6, true},
	} {
		if got := o.release(c.cluster, c.n); got != c.want {
			t.Errorf("release %d of %s is accepted: %t", c.n, c.cluster, got)
		}
	}
	if o.last != 6 || o.releasedAt("a") != 6 || o.releasedAt("b") != 4 || o.releasedAt("c") != 0 {
		t.Errorf("%+v", o)
	}
}

var src = identity.Identity{Role: identity.Source, Name: "s"}

// opened returns the fence of a running subscription with the id "1".
func opened(t *testing.T, x *Fences) *Fence {
	t.Helper()
	x.Open("1", src, store.Scope{DataType: codec.ManifestBundles, Owner: src.Name}, func(*transport.Error) { x.End("1") })
	f := x.Find("1", src)
	if f == nil {
		t.Fatal("a running subscription is not found")
	}
	return f
}

// TestOrder_IsBounded: when the separate releases are dropped, all events with lower numbers are rejected, for
// any cluster.
func TestOrder_IsBounded(t *testing.T) {
	f := opened(t, newFences())
	n := uint64(0)
	for i := range 3 * maxReleased {
		n = uint64(2*i + 2)
		if err := f.release(fmt.Sprint("c", i), n, func() {}); err != nil {
			t.Fatalf("release %d: %v", i, err)
		}
		if len(f.order.released) > maxReleased {
			t.Fatalf("%d releases are remembered", len(f.order.released))
		}
	}
	for cluster, late := range map[string]uint64{"c0": 1, fmt.Sprint("c", 3*maxReleased-1): n - 1} {
		if err := f.checkValid(cluster, late); err == nil || err.Attribute != codec.ExtFence {
			t.Errorf("an event for %s from before its release: %v", cluster, err)
		}
		if err := f.release(cluster, late, func() { t.Error("revoked") }); err == nil {
			t.Errorf("an earlier release of %s is accepted", cluster)
		}
		if err := f.checkValid(cluster, n+1); err != nil {
			t.Errorf("an event for %s after its release is rejected: %v", cluster, err)
		}
	}
}

func TestFences_EndWithTheSubscription(t *testing.T) {
	for name, end := range map[string]func(*Fences){
		"ended":      func(x *Fences) { x.End("1") },
		"left":       func(x *Fences) { x.Close("1") },
		"superseded": func(x *Fences) { x.Open("2", src, x.Find("1", src).Scope(), nil); x.endBefore(x.Find("2", src)) },
	} {
		x := newFences()
		f := opened(t, x)
		if f.checkValid("c", 1) != nil || f.release("c", 1, func() {}) != nil || f.Compares(2) != nil {
			t.Errorf("%s: nothing is accepted before", name)
		}
		end(x)
		var refused *transport.Error
		for what, err := range map[string]error{
			"a spec": f.checkValid("c", 3), "a release": f.release("c", 3, func() { t.Error("revoked") }), "a comparison": f.Compares(4),
		} {
			if !errors.As(err, &refused) || refused.Attribute != codec.HeaderSubscriptionID {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}

// TestFences_FindOnlyThoseOfTheClient: Find returns nil for the id of another client's subscription.
func TestFences_FindOnlyThoseOfTheClient(t *testing.T) {
	x := newFences()
	opened(t, x)
	if x.Find("1", identity.Identity{Role: identity.Source, Name: "other"}) != nil || x.Find("2", src) != nil {
		t.Error("it is found")
	}
	if x.Close("1"); x.Find("1", src) != nil {
		t.Error("it is found when it is closed")
	}
}
