package settings_test

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/testkit"
)

// TestBeats: streams that beat at nearly the same time share the time and the event.
func TestBeats(t *testing.T) {
	b := settings.NewBeats(&settings.Config{Heartbeat: 10 * time.Second, NewID: testkit.NewIDs("beat")})
	start := time.Unix(100, 0)
	for after, want := range map[time.Duration]time.Duration{
		0:                       10 * time.Second,
		99 * time.Millisecond:   10 * time.Second,
		100 * time.Millisecond:  10*time.Second + 100*time.Millisecond,
		1234 * time.Millisecond: 11*time.Second + 200*time.Millisecond,
	} {
		if got := b.Next(start.Add(after)).Sub(start); got != want {
			t.Errorf("the heartbeat after one at %v is at %v, want %v", after, got, want)
		}
	}
	if now := time.Now(); b.Next(now).Round(0) == b.Next(now) {
		t.Error("the time of a heartbeat has no monotonic clock, so a change of the wall clock moves it")
	}
	first := b.Event(start)
	if again := b.Event(start.Add(99 * time.Millisecond)); &again[0] != &first[0] {
		t.Error("a heartbeat at the same point of the grid is encoded again")
	}
	if next := b.Event(start.Add(100 * time.Millisecond)); string(next) == string(first) {
		t.Error("two points of the grid have the same heartbeat")
	}
	if n := testing.AllocsPerRun(100, func() { b.Event(start.Add(100 * time.Millisecond)); b.Next(start) }); n != 0 {
		t.Errorf("a shared heartbeat makes %v allocations, want none", n)
	}
}
