package fair_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/fair"
)

func TestBucket(t *testing.T) {
	r, now := fair.Rate{PerSecond: 10, Burst: 5}, time.Unix(1, 0)
	var b fair.Bucket
	for n := range 5 {
		if !b.Spend(r, now, 1) {
			t.Errorf("the burst ends after %d", n)
		}
	}
	if b.Spend(r, now, 1) {
		t.Error("more than the burst")
	}
	now = now.Add(100 * time.Millisecond)
	if !b.Spend(r, now, 1) || b.Spend(r, now, 1) {
		t.Error("not one after a tenth of a second")
	}
	b.Charge(r, now, 1000)
	if debt := b.Debt(r); debt != 500*time.Millisecond {
		t.Errorf("after Charge the debt is %v, want half a second", debt)
	}
	if now = now.Add(500 * time.Millisecond); b.Spend(r, now, 1) {
		t.Error("after Charge a client waits no longer than others")
	}
	if now = now.Add(500 * time.Millisecond); !b.Full(r, now) {
		t.Error("Charge left a debt above two bursts")
	}
	if now = now.Add(-time.Hour); !b.Spend(r, now, 1) {
		t.Error("a clock that goes back costs something")
	}
}

func TestBucket_Reserve(t *testing.T) {
	r, now := fair.Rate{PerSecond: 10, Burst: 5}, time.Unix(1, 0)
	var b fair.Bucket
	var waits []time.Duration
	for range 8 {
		waits = append(waits, b.Reserve(r, now, 1).Round(time.Millisecond))
	}
	tenth := 100 * time.Millisecond
	if want := []time.Duration{0, 0, 0, 0, 0, tenth, 2 * tenth, 3 * tenth}; !slices.Equal(waits, want) {
		t.Errorf("what is reserved waits for %v, want %v", waits, want)
	}
	now = now.Add(time.Second)
	if wait := b.Reserve(r, now, 5); wait != 0 {
		t.Errorf("a burst that came back waits for %v", wait)
	}
}
