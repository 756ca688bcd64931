package hubsource

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/transport"
)

// countedDialer counts the connections to the broker.
type countedDialer struct {
	transport.Dialer
	dials atomic.Int32
}

func (d *countedDialer) Dial(ctx context.Context) (transport.Conn, error) {
	d.dials.Add(1)
	return d.Dialer.Dial(ctx)
}

// TestSource_ReportsNothingBeforeItHasReadTheHub: a work that is not read yet looks like a missing one, so the
// source does not connect before.
func TestSource_ReportsNothingBeforeItHasReadTheHub(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		first := b.source()
		b.hub.apply(example("c1", "w"))
		b.settle(time.Minute)
		if err := first.stop(); err != nil {
			b.Fatal(err)
		}
		b.hub.setDown(true)
		dialer := &countedDialer{}
		b.source(func(c *Config) { dialer.Dialer, c.Dialer = c.Dialer, dialer })
		b.settle(time.Hour)
		if n := dialer.dials.Load(); n != 0 {
			b.Errorf("%d dials before the hub was read", n)
		}
		b.hub.setDown(false)
		b.settle(time.Minute)
		if n := dialer.dials.Load(); n != 1 {
			b.Errorf("%d dials, want one", n)
		}
		b.shown("c1/w", 1)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.held["w"] == nil {
			b.Error("the agent received the deletion of the work")
		}
	})
}
