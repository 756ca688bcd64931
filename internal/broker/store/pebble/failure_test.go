package pebble

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// These tests are about engine calls that are in progress when a store fails.

// TestAttempt_Ends: attempt does not wait for a call that never returns after damage. It returns the damage.
// Example: an opening that compacts the same damaged table again and again.
func TestAttempt_Ends(t *testing.T) {
	t.Parallel()
	damaged := &store.DamageError{Key: "000008.sst", What: "crc32c checksum mismatch"}
	for name, fail := range map[string]struct {
		report func(f *failure)
		cause  error
	}{
		"damage": {func(f *failure) {
			f.listener().DataCorruption(engine.DataCorruptionInfo{Path: damaged.Key, Details: errors.New(damaged.What)})
		}, damaged},
		"write failed":     {func(f *failure) { f.writeFailed(syscall.EIO) }, syscall.EIO},
		"background error": {func(f *failure) { f.set(damaged) }, damaged},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFailure(slog.New(slog.DiscardHandler))
				never := make(chan struct{})
				defer close(never)
				err := f.attempt(func() error {
					fail.report(f)
					<-never
					return nil
				})
				if err == nil || err.Error() != fail.cause.Error() {
					t.Errorf("attempt: %v, want %v", err, fail.cause)
				}
			})
		})
	}
}

// TestFault_CommitUnderWay: a commit that waits for a running write of the manifest is already durable. It
// succeeds when that write fails.
func TestFault_CommitUnderWay(t *testing.T) {
	t.Parallel()
	writing, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fs, on := failing(vfs.NewMem(), func(op errorfs.Op) error {
		if !writes(op) || !ofFile(op, "MANIFEST-*") {
			return nil
		}
		once.Do(func() { close(writing) })
		<-goOn
		return syscall.EIO
	})
	s := mustOpen(t, tiny(fs))
	if _, err := s.Commit(t.Context(), []store.Op{testOp(1, 1)}); err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	if _, err := s.db.AsyncFlush(); err != nil {
		t.Fatal(err)
	}
	<-writing
	visible := make(chan error, 1)
	go func() { _, err := s.Changes(context.Background(), 1, 1); visible <- err }()
	committed := make(chan error, 1)
	go func() { _, err := s.Commit(context.Background(), []store.Op{testOp(2, 1)}); committed <- err }()
	if err := <-visible; err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-committed; err != nil {
		t.Errorf("commit that is durable: %v", err)
	}
	readOnly(t, s, syscall.EIO)
	ending(t, s, syscall.EIO)
	if err := s.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("close: %v", err)
	}
}

// TestFault_CallLeftBehind: the database stays open for a call that still waits for the disk when the store is
// closed.
func TestFault_CallLeftBehind(t *testing.T) {
	t.Parallel()
	o := Options{Dir: dir, FS: vfs.NewMem()}
	s := mustOpen(t, o)
	goOn, done := make(chan struct{}), make(chan error, 1)
	err := s.failure.attempt(func() error {
		s.failure.writeFailed(syscall.EIO)
		<-goOn
		err := s.db.Set([]byte("x"), nil, engine.NoSync)
		done <- err
		return err
	})
	if !errors.Is(err, syscall.EIO) || !errors.Is(s.Close(), syscall.EIO) {
		t.Errorf("attempt: %v", err)
	}
	if _, err := Open(o); !errors.Is(err, ErrInUse) {
		t.Errorf("open of a store that has not ended: %v", err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("the call: %v", err)
	}
}
