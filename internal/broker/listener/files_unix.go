//go:build unix

package listener

import (
	"math"

	"golang.org/x/sys/unix"
)

// openFiles returns the number of files that the process may open. The runtime has raised it to the hard limit.
func openFiles() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return anywhere
	}
	return int(min(uint64(r.Cur), math.MaxInt32)) //nolint:unconvert // it is signed on some systems
}

// anywhere is a number of open files that every system allows.
const anywhere = 1024
