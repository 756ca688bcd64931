package controlplane

import (
	"io"
	"strings"
	"sync"
)

const (
	tailBytes = 16 << 10
	tailLines = 20
)

// tail is a writer that keeps the end of a log and passes all of it on.
type tail struct {
	next io.Writer // may be nil

	mu     sync.Mutex
	kept   []byte
	broken bool  // next failed and receives no more
	err    error // of next
}

func newTail(next io.Writer) *tail { return &tail{next: next} }

// Write never fails, because the process that writes would end if the pipe closed.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.kept = append(t.kept, b...)
	if n := len(t.kept) - tailBytes; n > 0 {
		t.kept = append(t.kept[:0], t.kept[n:]...)
	}
	pass := t.next != nil && !t.broken
	t.mu.Unlock()
	if pass {
		t.pass(b)
	}
	return len(b), nil
}

// pass passes b on, without the lock.
func (t *tail) pass(b []byte) {
	_, err := t.next.Write(b)
	t.mu.Lock()
	t.broken, t.err = err != nil, err
	t.mu.Unlock()
}

// failure returns why next did not receive the whole log.
func (t *tail) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// lastLines returns the end of the log as a suffix of an error text.
func (t *tail) lastLines() string {
	t.mu.Lock()
	text := strings.TrimSpace(string(t.kept))
	t.mu.Unlock()
	if text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	return "; the end of its log:\n" + strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
