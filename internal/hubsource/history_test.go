package hubsource

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// A restored hub lets watches continue from their position without events. That also holds if later writes have
// moved its position ahead of theirs. The tasks beside the works have informers too, and restart.
func TestSource_DetectsRestoredHubWithRunningWatches(t *testing.T) {
	for name, c := range map[string]struct {
		writes   int
		evidence history.Evidence
	}{"behind": {0, history.Nothing}, "later": {50, history.Older}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				a := b.agent("c1")
				signal, begun := history.NewSignal(), atomic.Int32{}
				b.source(func(c *Config) {
					c.History = signal
					c.Leading = []taskgroup.Task{{Name: "beside", Run: func(ctx context.Context) error {
						begun.Add(1)
						<-ctx.Done()
						return ctx.Err()
					}}}
				})
				b.hub.apply(example("c1", "w"))
				b.settle(2 * time.Minute)
				restore := b.hub.backUp()
				b.hub.apply(example("c1", "w", data("b")))
				b.settle(2 * time.Minute)
				b.hub.unresponsive = true
				restore()
				for range c.writes {
					b.hub.touch()
				}
				before := len(a.history())
				signal.Report(c.evidence)
				b.settle(2 * time.Minute)
				b.shown("c1/w", 1)
				if begun.Load() != 2 || len(a.history()) == before {
					b.Errorf("what runs beside the works has begun %d times, want 2; the agent saw %s", begun.Load(), a.history())
				}
			})
		})
	}
}
