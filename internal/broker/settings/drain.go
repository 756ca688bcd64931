package settings

import "time"

// Drain calls end for each of the given number of streams, at the configured rate. The rate is higher if that
// would take more than half of the drain timeout. Then Drain waits until empty is closed. It returns false if
// the drain timeout is over first. Streams that are stuck in a send then end with their connections, which the
// fronts close.
func (c *Config) Drain(streams int, end func(i int), empty <-chan struct{}) bool {
	deadline := time.After(c.DrainTimeout)
	pause := time.Second / time.Duration(c.DrainRate)
	if most := c.DrainTimeout / time.Duration(2*max(streams, 1)); pause > most {
		pause = most
	}
	pace := time.NewTicker(max(pause, time.Microsecond))
	defer pace.Stop()
	for i := range streams {
		if end(i); i == streams-1 {
			break
		}
		select {
		case <-pace.C:
		case <-deadline:
			return false
		}
	}
	select {
	case <-empty:
		return true
	case <-deadline:
		return false
	}
}
