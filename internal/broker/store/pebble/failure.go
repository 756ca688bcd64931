package pebble

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// failure is the state a store enters once and does not leave: read-only.
type failure struct {
	log     *slog.Logger
	once    sync.Once
	c       chan struct{} // closed when err is set
	err     error
	closing <-chan struct{}
}

func newFailure(log *slog.Logger, closing <-chan struct{}) *failure {
	return &failure{log: log, c: make(chan struct{}), closing: closing}
}

// set makes the store read-only; only the first cause counts.
func (f *failure) set(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.c)
		f.log.Error("store turned read-only; repair the disk or restore a backup, then restart", "error", err)
	})
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

// readOnly is what a commit returns after a failure.
func (f *failure) readOnly() error {
	return fmt.Errorf("%w: %w", store.ErrReadOnly, f.get())
}

// broken makes of an error of Pebble one of ours and, unless it only says that
// something is not there, turns the store read-only.
func (f *failure) broken(key []byte, err error) error {
	if engine.IsCorruptionError(err) {
		err = &store.DamageError{Key: printable(key), What: err.Error()}
	}
	err = fmt.Errorf("store: read %s: %w", printable(key), err)
	f.set(err)
	return err
}

// logger is what Pebble logs to. Fatalf does not end the process: it is
// followed by an error return or by waiting, and the failure is seen there.
type logger struct {
	*failure
}

var errFatal = errors.New("store: fatal error of the engine")

// Infof drops routine messages.
func (logger) Infof(string, ...any) {}

// Errorf logs a background problem that Pebble goes on with.
func (l logger) Errorf(format string, args ...any) {
	l.log.Warn("store engine", "problem", fmt.Sprintf(format, args...))
}

// Fatalf turns the store read-only.
func (l logger) Fatalf(format string, args ...any) {
	l.set(fmt.Errorf("%w: %s", errFatal, fmt.Sprintf(format, args...)))
}

// slow holds up a worker of the engine, which tries again at once what cannot
// succeed any more. It holds a lock that reads do not need.
func (f *failure) slow() {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.closing:
	}
}

// listener hears what Pebble finds in the background.
func (f *failure) listener() *engine.EventListener {
	return &engine.EventListener{
		BackgroundError: func(err error) {
			f.set(fmt.Errorf("store: background work: %w", err))
			f.slow()
		},
		DataCorruption: func(i engine.DataCorruptionInfo) {
			f.set(&store.DamageError{Key: i.Path, What: i.Details.Error()})
		},
	}
}
