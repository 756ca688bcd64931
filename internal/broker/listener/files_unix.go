//go:build unix

package listener

import (
	"math"

	"golang.org/x/sys/unix"
)

// openFiles is how many files the process may open; the runtime raises it to
// what it is allowed.
func openFiles() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return anywhere
	}
	return int(min(uint64(r.Cur), math.MaxInt32)) //nolint:unconvert // it is signed on some systems
}

// anywhere is what every system allows.
const anywhere = 1024
