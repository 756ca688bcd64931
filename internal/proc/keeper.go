package proc

import "runtime"

// newKeeper starts the goroutine that owns the forking thread. It lives as long
// as this process: ending it would kill the children.
func newKeeper() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
}
