package feed

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/broker/call"
)

// drain waits for ctx to end, then refuses new calls, ends the streams one after the other and
// waits for them, until the drain timeout is over. Streams that are stuck in a send then end
// with their connections, which the fronts close.
func (f *Feed) drain(ctx context.Context) error {
	<-ctx.Done()
	deadline := time.NewTimer(f.cfg.DrainTimeout)
	defer deadline.Stop()
	streams := f.registry.close(call.GoingAway())
	if len(streams) > 0 {
		f.cfg.Log.Info("draining", "streams", len(streams))
	}
	pace := time.NewTicker(f.pause(len(streams)))
	defer pace.Stop()
	for i, s := range streams {
		s.stop(call.GoingAway())
		if i == len(streams)-1 {
			break
		}
		select {
		case <-pace.C:
		case <-deadline.C:
			return f.abandon()
		}
	}
	select {
	case <-f.registry.empty:
	case <-deadline.C:
		return f.abandon()
	}
	return nil
}

// pause is the time between two streams' ends: the configured rate, or faster where that
// would last more than half of the drain timeout.
func (f *Feed) pause(streams int) time.Duration {
	p := time.Second / time.Duration(f.cfg.DrainRate)
	if most := f.cfg.DrainTimeout / time.Duration(2*max(streams, 1)); p > most {
		p = most
	}
	return max(p, time.Microsecond)
}

func (f *Feed) abandon() error {
	agents, sources := f.registry.count()
	f.cfg.Log.Warn("drain timeout is over, some streams did not end", "agents", agents, "sources", sources)
	return nil
}
