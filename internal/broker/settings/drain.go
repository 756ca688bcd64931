package settings

import "time"

// Drained waits until empty is closed, for the drain timeout at most. It returns false if the time is over first.
// Streams that are stuck in a send then end with their connections, which the fronts close.
func (c *Config) Drained(empty <-chan struct{}) bool {
	deadline := time.NewTimer(c.DrainTimeout)
	defer deadline.Stop()
	select {
	case <-empty:
		return true
	case <-deadline.C:
		return false
	}
}
