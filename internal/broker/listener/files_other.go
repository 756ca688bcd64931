//go:build !unix

package listener

// openFiles is how many files the process may open: other systems have no such
// limit.
func openFiles() int { return 16 << 10 }
