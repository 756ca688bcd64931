package syncstate

import (
	"context"
	"testing"
)

// TestSlots checks that a slot goes to the requests that wait, in order, and that none is lost.
func TestSlots(t *testing.T) {
	s := NewSlots(1)
	rung := map[string]int{}
	request := func(name string) *SlotRequest { return NewSlotRequest(func() { rung[name]++ }) }
	a, b, c, d := request("a"), request("b"), request("c"), request("d")
	if !s.Take(a) || s.Take(b) || s.Take(c) || s.Take(b) || s.Take(d) {
		t.Fatal("there is one slot, and the first request takes it")
	}
	s.Cancel(d) // while it waits
	s.Free()
	if rung["b"] != 1 || rung["c"] != 0 {
		t.Fatalf("%v were woken, want the request that waited longest", rung)
	}
	if s.Take(a) {
		t.Fatal("a request took the slot that is reserved for another one")
	}
	s.Cancel(b) // after its ring
	if rung["c"] != 1 || !s.Take(c) {
		t.Fatalf("%v were woken, want the next request after the first one gave up", rung)
	}
	s.Free()
	if rung["a"] != 1 || !s.Take(a) {
		t.Fatal("the last request does not get the slot")
	}
	s.Free()
	ctx, cancel := context.WithCancel(t.Context())
	if !s.Wait(ctx) {
		t.Fatal("the slot was lost")
	}
	cancel()
	if s.Wait(ctx) {
		t.Fatal("two have the only slot")
	}
	s.Free()
	if !s.Wait(t.Context()) || rung["d"] != 0 {
		t.Error("a request that gave up keeps the slot")
	}
}
