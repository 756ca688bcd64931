package hubsource

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestSource_RetriesChangedWorksAtOnce: a source with a long back-off connects at once when it is notified of a
// change.
func TestSource_RetriesChangedWorksAtOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		changed := make(chan struct{}, 1)
		s := b.source(func(c *Config) { c.Changed = changed })
		b.settle(time.Second)
		s.dialer.Cut()
		b.settle(10 * time.Minute)
		s.dialer.Restore()
		changed <- struct{}{}
		synctest.Wait()
		if connected := s.source.connected.Load(); connected == nil || !(*connected)() {
			b.Error("it waits")
		}
	})
}
