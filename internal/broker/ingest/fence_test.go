package ingest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
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

// fences returns the fences of a broker over a new store.
func fences() *Fences {
	n := 0
	return newFences(mem.Open(mem.Options{NewID: func() string { n++; return fmt.Sprint("store", n) }}))
}

// opened returns the fence of a running subscription with the id "1".
func opened(t *testing.T, x *Fences) *Fence { return openedAs(t, x, "1") }

func openedAs(t *testing.T, x *Fences, id string) *Fence {
	t.Helper()
	x.Open(id, src, store.Scope{DataType: codec.ManifestBundles, Owner: src.Name}, func(*transport.Error) { x.End(id) })
	f := x.Find(id, src)
	if f == nil {
		t.Fatal("a running subscription is not found")
	}
	return f
}

// TestOrder_IsBounded: when the separate releases are dropped, all events with lower numbers are rejected, for
// any cluster.
func TestOrder_IsBounded(t *testing.T) {
	f := opened(t, fences())
	n := uint64(0)
	for i := range 3 * maxReleased {
		n = uint64(2*i + 2)
		if err := f.release(fmt.Sprint("c", i), n); err != nil {
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
		if err := f.release(cluster, late); err == nil {
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
		"superseded": func(x *Fences) { takeOver(t, x, openedAs(t, x, "2")) },
		"superseded at another broker": func(x *Fences) {
			other := newFences(x.store.(*mem.Store).Share())
			takeOver(t, other, openedAs(t, other, "2"))
			follow(t, x)
		},
	} {
		x := fences()
		f := opened(t, x)
		if f.checkValid("c", 1) != nil || f.release("c", 1) != nil || f.Compares(2) != nil {
			t.Errorf("%s: nothing is accepted before", name)
		}
		end(x)
		var refused *transport.Error
		for what, err := range map[string]error{
			"a spec": f.checkValid("c", 3), "a release": f.release("c", 3), "a comparison": f.Compares(4),
		} {
			if !errors.As(err, &refused) || refused.Attribute != codec.HeaderSubscriptionID {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}

func takeOver(t *testing.T, x *Fences, f *Fence) {
	t.Helper()
	if r := supersede(t, x, f); r != store.Accepted && r != store.Unchanged {
		t.Errorf("result %d", r)
	}
	follow(t, x)
}

// supersede commits that a subscription takes over.
func supersede(t *testing.T, x *Fences, f *Fence) store.ResultCode {
	t.Helper()
	outcomes, err := x.store.(*mem.Store).Commit(t.Context(), []store.Op{{Kind: store.Supersede, Fence: f.shared}})
	if err != nil {
		t.Fatal(err)
	}
	return outcomes[0].Result
}

// follow passes all changes of the store.
func follow(t *testing.T, x *Fences) {
	t.Helper()
	changes, err := x.store.(*mem.Store).Changes(t.Context(), 0, 100)
	if err == nil {
		err = x.Follow(changes)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestFences_OfTwoBrokers: a later subscription of a source goes on when an earlier one takes over, at each broker. Once
// the later one has taken over, the earlier one cannot.
func TestFences_OfTwoBrokers(t *testing.T) {
	one := fences()
	other := newFences(one.store.(*mem.Store).Share())
	first := openedAs(t, one, "1")
	if err := store.WriteBookmarks(t.Context(), one.store.(*mem.Store), map[string][]byte{"a": {}}); err != nil {
		t.Fatal(err)
	}
	second := openedAs(t, other, "2")
	takeOver(t, one, first)
	follow(t, other)
	if err := second.Compares(1); err != nil {
		t.Errorf("the later subscription: %v", err)
	}
	takeOver(t, other, second)
	takeOver(t, other, second)
	if r := supersede(t, one, first); r != store.Fenced {
		t.Errorf("the earlier subscription takes over: result %d", r)
	}
	if err := first.Compares(1); err != nil {
		t.Errorf("before the broker follows: %v", err)
	}
	follow(t, one)
	if first.Compares(2) == nil {
		t.Error("the earlier subscription goes on")
	}
	follow(t, other)
	if err := second.Compares(2); err != nil {
		t.Errorf("the subscription that has taken over: %v", err)
	}
}

// overtaken is a store in which another broker commits after its head was read.
type overtaken struct {
	*mem.Store
	then func()
}

func (o overtaken) Head() store.Head {
	h := o.Store.Head()
	o.then()
	return h
}

// TestFences_TakenOverAtTheStart:
//
// Scenario:
//
//	t1: a subscription starts at a head of the store.
//	t2: a later subscription takes over at another broker, and this broker follows.
//	t3: the first subscription is registered.
//
// Result: it ends. No further change would end it.
func TestFences_TakenOverAtTheStart(t *testing.T) {
	other := fences()
	s := other.store.(*mem.Store)
	one := newFences(overtaken{s.Share(), func() { takeOver(t, other, openedAs(t, other, "2")) }})
	if opened(t, one).Compares(1) == nil {
		t.Error("it goes on")
	}
}

// TestFences_FindOnlyThoseOfTheClient: Find returns nil for the id of another client's subscription.
func TestFences_FindOnlyThoseOfTheClient(t *testing.T) {
	x := fences()
	opened(t, x)
	if x.Find("1", identity.Identity{Role: identity.Source, Name: "other"}) != nil || x.Find("2", src) != nil {
		t.Error("it is found")
	}
	if x.Close("1"); x.Find("1", src) != nil {
		t.Error("it is found when it is closed")
	}
}
