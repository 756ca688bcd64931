package postgres

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// goneWithin bounds the wait for the end of a killed process.
const goneWithin = 10 * time.Second

// waitGone waits until a killed process that is not a child of this process has ended.
func waitGone(pid int) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(goneWithin); time.Now().Before(deadline); <-tick.C {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return nil
		}
	}
	return fmt.Errorf("postgresql: process %d still runs %s after it was killed", pid, goneWithin)
}
