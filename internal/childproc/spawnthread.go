package childproc

import "runtime"

// newSpawnThread starts the goroutine that owns the forking thread. It runs as long as this process, because
// its end would kill the children.
func newSpawnThread() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
}
