package broker

import (
	"context"
	"time"
)

// runDrain waits for ctx to end, then refuses new calls, ends the streams one
// after the other and waits for them, until the drain timeout is over. Streams
// that are stuck in a send then end with their connections, which the fronts
// close.
func (b *Broker) runDrain(ctx context.Context) error {
	<-ctx.Done()
	deadline := time.NewTimer(b.cfg.DrainTimeout)
	defer deadline.Stop()
	streams := b.hub.close(goingAway())
	if len(streams) > 0 {
		b.log.Info("draining", "streams", len(streams))
	}
	pace := time.NewTicker(b.pause(len(streams)))
	defer pace.Stop()
	for i, s := range streams {
		s.stop(goingAway())
		if i == len(streams)-1 {
			break
		}
		select {
		case <-pace.C:
		case <-deadline.C:
			return b.abandon()
		}
	}
	select {
	case <-b.hub.empty:
	case <-deadline.C:
		return b.abandon()
	}
	return nil
}

// pause is the time between two streams' ends: the configured rate, or faster
// where that would take more than half of the drain timeout.
func (b *Broker) pause(streams int) time.Duration {
	p := time.Second / time.Duration(b.cfg.DrainRate)
	if most := b.cfg.DrainTimeout / time.Duration(2*max(streams, 1)); p > most {
		p = most
	}
	return max(p, time.Microsecond)
}

func (b *Broker) abandon() error {
	agents, sources := b.hub.count()
	b.log.Warn("drain timeout is over, some streams did not end", "agents", agents, "sources", sources)
	return nil
}
