//go:build !linux

package listener

import (
	"net"
	"syscall"
	"time"
)

// deferAccept does nothing: only Linux can delay the accept until data arrives.
func deferAccept(_, _ string, _ syscall.RawConn) error { return nil }

// endUnacknowledged does nothing: other systems notice a dead peer by the pings of its protocol.
func endUnacknowledged(net.Conn, time.Duration) error { return nil }
