//go:build !unix

package listener

import "net"

// openFiles returns the number of files that the process may open. Other systems have no such limit.
func openFiles() int { return 16 << 10 }

// peek returns nothing: other systems cannot do it.
func peek(net.Conn, []byte) []byte { return nil }
