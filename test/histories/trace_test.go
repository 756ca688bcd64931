package histories

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/test/histories/judge"
)

// trace records events, in memory and in a file with one line of JSON each.
type trace struct {
	begin time.Time

	mu     sync.Mutex
	events []judge.Event
	acked  chan struct{} // closed and replaced at each acknowledged write
	file   *bufio.Writer
	err    error
}

func newTrace(t *testing.T, path string) *trace {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	x := &trace{begin: time.Now(), file: bufio.NewWriter(f), acked: make(chan struct{})}
	t.Cleanup(func() {
		if err := errors.Join(x.err, x.file.Flush(), f.Close()); err != nil {
			t.Errorf("the trace is incomplete: %v", err)
		}
	})
	return x
}

// now is the time since the begin of the run.
func (x *trace) now() time.Duration { return time.Since(x.begin) }

// add records an event that ends now.
func (x *trace) add(e judge.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e.To = x.now()
	x.events = append(x.events, e)
	b, err := json.Marshal(e)
	if err == nil {
		_, err = x.file.Write(append(b, '\n'))
	}
	x.err = errors.Join(x.err, err)
	if e.Kind == judge.Write && e.Acked {
		close(x.acked)
		x.acked = make(chan struct{})
	}
}

// fault records the begin or the end of a fault.
func (x *trace) fault(t *testing.T, text string) {
	t.Helper()
	t.Logf("%8.3f %s", x.now().Seconds(), text)
	x.add(judge.Event{Kind: judge.Fault, Text: text})
}

// nextAcked returns a channel that is closed at the next acknowledged write.
func (x *trace) nextAcked() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.acked
}

// all returns the recorded events.
func (x *trace) all() []judge.Event {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.events
}

// readTrace reads the events of an earlier run.
func readTrace(path string) (list []judge.Event, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	for d := json.NewDecoder(f); ; {
		var e judge.Event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
}
