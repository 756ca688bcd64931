package listener

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deferAccept makes the kernel keep connections on which no data arrived, for HandshakeTimeout at most. A
// client that opens thousands and sends nothing costs no file and no CPU time. In each protocol of the port the
// client sends first.
func deferAccept(_, _ string, raw syscall.RawConn) error {
	var err error
	failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, int(HandshakeTimeout/time.Second))
	})
	if failed != nil {
		return failed
	}
	return err
}
