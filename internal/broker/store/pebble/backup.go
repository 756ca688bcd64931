package pebble

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// stagingName is a directory in that of the store, on its file system, in which
// a backup begins: making second names of the tables is quick, so commits wait
// for that and not for what comes after.
const (
	stagingName       = "outgoing"
	formerStagingName = "BACKUP"
)

// Backup sends the store, as it is at one moment during the call: everything
// acknowledged until then and nothing else. Commits go on. send gets parts of
// one file after the other, with its name in the first part of each, as
// [Receive] takes them; data is valid during the call. Backup returns
// [store.ErrBackup] when another one is being made, the error of send or of ctx,
// [store.ErrClosed] when the store is closed meanwhile, or [store.ErrReadOnly].
func (s *Store) Backup(ctx context.Context, send func(name string, data []byte) error) (err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !s.backups.TryLock() {
		return store.ErrBackup
	}
	defer s.backups.Unlock()
	// The log is copied while commits wait, so it shall be short.
	if err := s.flush(ctx); err != nil {
		return err
	}
	at, err := s.stage()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fs.RemoveAll(s.staging)) }()
	err = sendFiles(ctx, s.fs, s.staging, func(name string, data []byte) error {
		if s.isClosing() {
			return store.ErrClosed
		}
		return send(name, data)
	})
	if err != nil {
		return err
	}
	// Whoever opens the copy shall notice when it has lost its end.
	if at, err = at.at(s.fs, s.staging); err != nil {
		return err
	}
	return send(cleanName, at.value())
}

// flush writes what is only in memory and in the log into tables.
func (s *Store) flush(ctx context.Context) error {
	if err := s.failure.refusal(); err != nil {
		return err
	}
	var flushed <-chan struct{}
	err := s.failure.attempt(func() (err error) {
		flushed, err = s.db.AsyncFlush()
		return err
	})
	if err != nil {
		return cmp.Or(s.failure.refusal(), err)
	}
	select {
	case <-flushed:
		return nil
	case <-s.failure.c:
		return s.failure.refusal()
	case <-s.closing:
		return store.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stage copies the store as the last commit left it: none is under way.
func (s *Store) stage() (clean, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	if err := s.failure.refusal(); err != nil {
		return clean{}, err
	}
	err := s.failure.attempt(func() error { return s.db.Checkpoint(s.staging) })
	if refused := s.failure.refusal(); refused != nil {
		return clean{}, refused
	}
	if err != nil {
		return clean{}, errors.Join(fmt.Errorf("store: back up: %w", err), s.fs.RemoveAll(s.staging))
	}
	return s.position(), nil
}
