// Package syncbuffer keeps what the code under test writes, so that a test can read it while the
// code may write more.
package syncbuffer

import (
	"bytes"
	"sync"
)

// Buffer is an [io.Writer] that remembers everything. The zero value is empty and ready to use;
// its methods may be called by many goroutines at once. A bubble of synctest needs it too:
// what runs after a timer is not ordered behind what the test read before.
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

// String returns everything that was written.
func (o *Buffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
