package pebble

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// stagingName is a directory in that of the store, on its file system, in which
// a backup begins: making second names of the tables is quick, so commits wait
// for that and not for the copy.
const stagingName = "BACKUP"

// ErrBackup says that a backup is being made already.
var ErrBackup = errors.New("another backup of this store is being made; wait until it is done")

// Backup copies the store, as it is at one moment during the call, into a
// directory that is empty or not there: everything acknowledged until then and
// nothing else. Commits go on. On the file system of the store the tables,
// which never change, are shared with it and not copied. The backup is on disk
// when Backup returns nil; else the directory is empty again, or is marked as
// [ErrIncomplete]. It returns [ErrBackup], [ErrNotEmpty], [ErrInUse], the error
// of ctx, [store.ErrClosed] when the store is closed meanwhile, or
// [store.ErrReadOnly]. A full or failing disk below dir does no harm to the
// store.
func (s *Store) Backup(ctx context.Context, dir string) error {
	return s.staged(ctx, func(names []string) error {
		t, err := newTarget(s.fs, dir)
		if err != nil {
			return fmt.Errorf("store: back up to %s: %w", dir, err)
		}
		for _, name := range names {
			if err = s.goOn(ctx); err == nil {
				err = t.link(s.fs.PathJoin(s.staging, name), name)
			}
			if err != nil {
				return t.abandon(fmt.Errorf("store: back up to %s: %w", dir, err))
			}
		}
		return t.finish()
	})
}

// goOn says why a backup must end, nil when it need not.
func (s *Store) goOn(ctx context.Context) error {
	select {
	case <-s.closing:
		return store.ErrClosed
	default:
		return ctx.Err()
	}
}

// staged calls f with the files of a copy of the store in staging.
func (s *Store) staged(ctx context.Context, f func(names []string) error) (err error) {
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.backups.TryLock() {
		return ErrBackup
	}
	defer s.backups.Unlock()
	// The log is copied while commits wait, so it shall be short.
	if err := s.flush(ctx); err != nil {
		return err
	}
	if err := s.stage(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fs.RemoveAll(s.staging)) }()
	names, err := s.fs.List(s.staging)
	if err != nil {
		return err
	}
	slices.Sort(names)
	return f(names)
}

// flush writes what is only in memory and in the log into tables.
func (s *Store) flush(ctx context.Context) error {
	var flushed <-chan struct{}
	err := s.guarded(func() (err error) {
		flushed, err = s.db.AsyncFlush()
		return err
	})
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return nil
	case <-s.failure.c:
		return s.failure.readOnly()
	case <-s.closing:
		return store.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stage copies the store as the last commit left it: none is under way.
func (s *Store) stage() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	head := s.Head()
	s.guard.late.Store(nil)
	err := s.guarded(func() error { return s.db.Checkpoint(s.staging) })
	if late := s.guard.late.Load(); late != nil && err == nil {
		err = *late
	}
	if err == nil {
		// Whoever opens the copy shall notice when it has lost its end.
		err = clean{head.Term, head.Revision}.sign(s.fs, s.staging)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("store: back up: %w", err), s.fs.RemoveAll(s.staging))
	}
	return nil
}

// guarded calls f, which may be stopped in the middle when the store fails.
func (s *Store) guarded(f func() error) error {
	if s.failure.get() != nil {
		return s.failure.readOnly()
	}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				s.failure.set(fmt.Errorf("%w: %v", errFatal, p))
			}
		}()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-s.failure.c:
		return s.failure.readOnly()
	}
}
