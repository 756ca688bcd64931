package listener

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deferAccept leaves connections on which nothing came to the system, for as long as a handshake
// may take: whoever opens thousands and says nothing costs no file and no turn. In all that is
// spoken on the port the client speaks first.
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
