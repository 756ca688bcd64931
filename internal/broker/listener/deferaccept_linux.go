package listener

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deferAccept lets the kernel hold connections without data, for HandshakeTimeout at most. A client that opens
// thousands and sends nothing costs no file and no CPU time. In every protocol of the port the client sends
// first.
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
