package settings_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestBeats: streams that beat at nearly the same time share the time and the event.
func TestBeats(t *testing.T) {
	b := settings.NewBeats(&settings.Config{Heartbeat: 10 * time.Second, NewID: testkit.NewIDs("beat")})
	start := time.Unix(120, 0)
	var at25 settings.Schedule // of the first client whose heartbeats are at 2.5 s
	for n := 0; at25.Next(start).Sub(start) != 2500*time.Millisecond; n++ {
		at25 = b.Schedule(transport.Peer{Name: fmt.Sprint("client", n)}, 0)
	}
	for _, c := range []struct{ after, want time.Duration }{
		{0, 2500 * time.Millisecond},
		{2499 * time.Millisecond, 2500 * time.Millisecond},
		{2500 * time.Millisecond, 12500 * time.Millisecond},
		{2900 * time.Millisecond, 12500 * time.Millisecond}, // a late heartbeat moves none
	} {
		if got := at25.Next(start.Add(c.after)).Sub(start); got != c.want {
			t.Errorf("the heartbeat after one at %v is at %v, want %v", c.after, got, c.want)
		}
	}
	for asked, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, time.Second: 10 * time.Second, 25 * time.Second: 20 * time.Second, time.Minute: time.Minute, 18 * time.Hour: time.Minute,
	} {
		s := b.Schedule(transport.Peer{Name: "cluster"}, asked)
		first := s.Next(start)
		if got := s.Next(first).Sub(first); got != want {
			t.Errorf("a client that asks for %v gets a heartbeat every %v, want %v", asked, got, want)
		}
		if often := b.Schedule(transport.Peer{Name: "cluster"}, 0).Next(start); first.Sub(often)%(10*time.Second) != 0 {
			t.Errorf("asked for %v: a stream of the same client beats at another time", asked)
		}
	}
	for name, client := range map[string]func(n int) transport.Peer{
		"names": func(n int) transport.Peer { return transport.Peer{Name: fmt.Sprint("cluster", n)} },
		"addresses": func(n int) transport.Peer {
			return transport.Peer{Name: "bootstrap", Addr: fmt.Sprint("192.0.2.1:", n)}
		},
	} {
		times := map[time.Duration]bool{}
		for n := range 1000 {
			times[b.Schedule(client(n), 0).Next(start).Sub(start)] = true
		}
		if len(times) < 95 {
			t.Errorf("1,000 clients with different %s get heartbeats at %d of 100 times", name, len(times))
		}
	}
	if now := time.Now(); at25.Next(now).Round(0) == at25.Next(now) {
		t.Error("the time of a heartbeat has no monotonic clock, so a change of the wall clock moves it")
	}
	first := b.Event(start)
	if again := b.Event(start.Add(99 * time.Millisecond)); &again[0] != &first[0] {
		t.Error("a heartbeat at the same point of the grid is encoded again")
	}
	if next := b.Event(start.Add(100 * time.Millisecond)); string(next) == string(first) {
		t.Error("two points of the grid have the same heartbeat")
	}
	if n := testing.AllocsPerRun(100, func() { b.Event(start.Add(100 * time.Millisecond)); at25.Next(start) }); n != 0 {
		t.Errorf("a shared heartbeat makes %v allocations, want none", n)
	}
}
