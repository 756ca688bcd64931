//go:build !unix

package listener

// openFiles returns the number of files that the process may open. Other systems have no such limit.
func openFiles() int { return 16 << 10 }
