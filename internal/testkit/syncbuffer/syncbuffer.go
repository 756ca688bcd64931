// Package syncbuffer collects the output of the code under test, so that a test can read it while the code
// writes more.
package syncbuffer

import (
	"bytes"
	"sync"
)

// Buffer is an [io.Writer] that keeps all written data. The zero value is empty and ready to use. Its methods
// may be called concurrently. A synctest bubble needs it too, because a timer's goroutine is not ordered after
// the test's read.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer]. It returns no error.
func (o *Buffer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String returns all written data.
func (o *Buffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
