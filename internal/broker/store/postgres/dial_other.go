//go:build !linux

package postgres

import (
	"net"
	"syscall"
	"time"
)

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// userTimeout: other systems have no such limit; keepAlive still works.
func userTimeout(_, _ string, _ syscall.RawConn) error { return nil }
