//go:build unix

package listener

import (
	"math"
	"net"
	"syscall"

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

// peek returns the first bytes that have arrived on a connection, at most len(b), without reading them. It does not
// block.
func peek(c net.Conn, b []byte) []byte {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	n := 0
	// Unlike raw.Read, Control does not wait for a handshake that reads at the same time.
	err = raw.Control(func(fd uintptr) {
		n, _, _ = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT) // an error means: nothing has arrived
	})
	if err != nil {
		return nil
	}
	return b[:max(n, 0)]
}
