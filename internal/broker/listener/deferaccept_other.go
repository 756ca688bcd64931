//go:build !linux

package listener

import "syscall"

// deferAccept is for Linux; elsewhere a connection is accepted before anything comes.
func deferAccept(_, _ string, _ syscall.RawConn) error { return nil }
