package listener

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deferAccept makes the kernel keep connections on which no data arrived, for HandshakeTimeout at most. A
// client that opens thousands and sends nothing costs no file and no CPU time. In each protocol of the port the
// client sends first.
func deferAccept(_, _ string, raw syscall.RawConn) error {
	return setOption(raw, unix.TCP_DEFER_ACCEPT, int(HandshakeTimeout/time.Second))
}

// endUnacknowledged makes the kernel end a connection when sent data is not acknowledged for d (TCP_USER_TIMEOUT,
// RFC 5482). It does nothing for a connection through a proxy, which acknowledges for the peer.
func endUnacknowledged(c net.Conn, d time.Duration) error {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	return setOption(raw, unix.TCP_USER_TIMEOUT, int(d/time.Millisecond))
}

func setOption(raw syscall.RawConn, option, value int) (err error) {
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value) })
	return errors.Join(failed, err)
}
