package main

import (
	"errors"
	"testing"
	"time"
)

// TestFleet_Watch: only agents that lost their broker after the mark count as returned, each of them once.
func TestFleet_Watch(t *testing.T) {
	one, other := &agent{subscribed: time.Now()}, &agent{subscribed: time.Now()}
	f := &fleet{agents: []*agent{one, other}}
	f.mark(true)
	f.inSync(one)
	f.disconnected(one, errors.New("the broker was killed"))
	f.inSync(one)
	if n := len(f.returned()); n != 0 {
		t.Errorf("%d returned on a subscription from before the loss", n)
	}
	one.subscribed = time.Now()
	f.inSync(one)
	f.inSync(one)
	f.inSync(other)
	if n := len(f.returned()); n != 1 {
		t.Errorf("%d returned, want one", n)
	}
	f.mark(false)
	one.subscribed, other.subscribed = time.Now(), time.Now()
	f.inSync(one)
	f.inSync(other)
	if took, err := f.synced(t.Context()); len(took) != 2 || err != nil {
		t.Errorf("%d are in sync, %v", len(took), err)
	}
}
