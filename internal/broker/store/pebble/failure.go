package pebble

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// failure is why a store takes no writes any more. It has one of two causes:
//
//   - Something cannot be read. The store is read-only; the engine works.
//   - A write or a sync failed. Then the engine gets no answer from the disk any
//     more (see disk), and whoever owns the store has to end the process. For
//     want of room or of file descriptors the store is read-only instead.
type failure struct {
	log   *slog.Logger
	fatal chan error // has room for the only one

	readOnly sync.Once
	c        chan struct{} // closed when err is set
	err      error

	noAnswer sync.Once
	stopped  chan struct{}  // closed when a write failed
	calls    sync.WaitGroup // of attempt, which some outlast
}

func newFailure(log *slog.Logger) *failure {
	return &failure{log: log, fatal: make(chan error, 1), c: make(chan struct{}), stopped: make(chan struct{})}
}

// set makes the store read-only; only the first cause counts.
func (f *failure) set(err error) {
	if f.refuse(err) {
		f.log.Error("store turned read-only; repair the disk or restore a backup, then restart", "error", err)
	}
}

// refuse ends the writes; first: err is why.
func (f *failure) refuse(err error) (first bool) {
	f.readOnly.Do(func() {
		f.err, first = err, true
		close(f.c)
	})
	return first
}

// writeFailed is for the first write or sync that failed. Who finds the store
// refusing writes finds out too whether it is fatal.
func (f *failure) writeFailed(err error) {
	f.noAnswer.Do(func() {
		if exhausted(err) {
			f.set(err)
		} else {
			f.fatal <- err
			if f.refuse(err) {
				f.log.Error("store takes no more writes; the process ends", "error", err)
			}
		}
		close(f.stopped)
	})
}

// exhausted: there is no room, or no file descriptor is left.
func exhausted(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// get returns the cause, nil while the store is well.
func (f *failure) get() error {
	select {
	case <-f.c:
		return f.err
	default:
		return nil
	}
}

// refusal is what a write returns after a failure, nil before.
func (f *failure) refusal() error {
	if err := f.get(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrReadOnly, err)
	}
	return nil
}

// attempt makes a call of the engine. After a failure the call may never return:
// it waits for the disk, or tries again without end what damage prevents. Then
// attempt returns the cause, and leaves the call behind.
func (f *failure) attempt(call func() error) error {
	done := make(chan error, 1)
	f.calls.Go(func() { done <- call() })
	return f.await(done)
}

// await waits for what is done, or for a failure that may keep it from ending.
func (f *failure) await(done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-f.c:
	}
	select {
	case err := <-done: // most find their end
		return err
	case <-f.stopped:
	case <-time.After(time.Second):
	}
	return f.err
}

// logger is what the engine logs to. Its fatal errors are not about writes (see
// disk), but about what it read: the store turns read-only, and the engine goes
// on with an error.
type logger struct{ *failure }

// Infof drops routine messages.
func (logger) Infof(string, ...any) {}

// Errorf logs a background problem that the engine goes on with.
func (l logger) Errorf(format string, args ...any) {
	l.log.Warn("store engine", "problem", fmt.Sprintf(format, args...))
}

// Fatalf turns the store read-only.
func (l logger) Fatalf(format string, args ...any) {
	l.set(fmt.Errorf("%w: %s", errEngine, fmt.Sprintf(format, args...)))
}

var errEngine = errors.New("store: fatal error of the engine")

// listener hears what the engine finds in the background.
func (f *failure) listener() *engine.EventListener {
	return &engine.EventListener{
		BackgroundError: func(err error) {
			f.set(fmt.Errorf("store: background work: %w", err))
			// The engine tries again at once, and will find the same.
			<-time.After(time.Second / 4)
		},
		DataCorruption: func(i engine.DataCorruptionInfo) {
			f.set(&store.DamageError{Key: i.Path, What: i.Details.Error()})
		},
	}
}
