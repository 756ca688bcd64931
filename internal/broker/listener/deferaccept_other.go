//go:build !linux

package listener

import "syscall"

// deferAccept does nothing: only Linux can delay the accept until data arrives.
func deferAccept(_, _ string, _ syscall.RawConn) error { return nil }
