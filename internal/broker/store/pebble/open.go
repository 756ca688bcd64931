package pebble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/resident"
)

// ErrInUse says that another process, or another store in this one, has the
// directory.
var ErrInUse = errors.New("another broker uses this directory; stop it first, or give each its own")

// Open opens the store in o.Dir, or creates it, under a new term that is on
// disk when Open returns. It reads the meta of every record once. It returns
// [ErrInUse], [ErrIncomplete] for half a copy, a [*store.DamageError] when it
// finds damage, a [*FormatError] for a store of a newer release, or the error of
// the file system. The caller must call [Store.Close].
func Open(o Options) (*Store, error) {
	if o.Dir == "" {
		return nil, errors.New("store: no directory is given")
	}
	o.setDefaults()
	s := &Store{
		fs: o.FS, dir: o.Dir, staging: o.FS.PathJoin(o.Dir, stagingName),
		failure: newFailure(o.Log),
		closing: make(chan struct{}), commits: make(chan struct{}),
		state: newState(), metas: newMetas(), events: newEvents(),
	}
	if err := s.open(&o); err != nil {
		return nil, fmt.Errorf("store: open %s: %w", o.Dir, err)
	}
	return s, nil
}

func (s *Store) open(o *Options) (err error) {
	if err := o.FS.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	if s.lock, err = lockDirectory(o.FS, o.Dir); err != nil {
		return err
	}
	for _, step := range []func(*Options) error{s.tidy, s.readClean, s.openEngine, s.load, s.checkClean, s.begin} {
		if err := step(o); err != nil {
			err = errors.Join(err, s.stop(func() error { return nil }))
			return cmp.Or(s.failure.get(), err)
		}
	}
	s.ring = resident.NewRing(o.ringSize, s.head.Revision+1)
	return nil
}

// tidy removes what a backup left that ended with the process, also one of a
// former release.
func (s *Store) tidy(o *Options) error {
	if err := checkComplete(o.FS, o.Dir); err != nil {
		return err
	}
	return errors.Join(o.FS.RemoveAll(s.staging), o.FS.RemoveAll(o.FS.PathJoin(o.Dir, formerStagingName)))
}

func (s *Store) openEngine(o *Options) error {
	e := engineOptions(o, &disk{FS: o.FS, failure: s.failure, staging: s.staging}, s.failure)
	e.Lock = s.lock
	err := s.failure.attempt(func() (err error) {
		s.db, err = openEngine(o.Dir, e)
		return err
	})
	if engine.IsCorruptionError(err) {
		return &store.DamageError{Key: o.Dir, What: err.Error()}
	}
	return err
}

// load reads what the store keeps in memory.
func (s *Store) load(*Options) error {
	ctx := context.Background()
	defer s.tally.Sort()
	for _, kind := range loaded {
		err := each(ctx, s.db, within([]byte{kind}), func(key, body []byte) error {
			m, err := s.state.load(key, body)
			if err != nil || m == nil {
				return err
			}
			if what := s.aboveHead(m); what != "" {
				return damage(key, what)
			}
			s.addRecord(m)
			return nil
		})
		if err != nil {
			return err
		}
	}
	switch {
	case s.head.Epoch == "":
		return s.mustBeEmpty(ctx)
	case !s.headFound:
		return damage([]byte{keyHead}, "it is missing in a store that has an epoch")
	}
	above := within([]byte{keyRevision})
	above.LowerBound = numberKey(keyRevision, s.head.Revision+1)
	return each(ctx, s.db, above, func(key, _ []byte) error {
		return damage(key, fmt.Sprintf("it is above the head %d", s.head.Revision))
	})
}

// mustBeEmpty: a store without an epoch is a new one, or one that lost it.
func (s *Store) mustBeEmpty(ctx context.Context) error {
	return each(ctx, s.db, &engine.IterOptions{}, func(key, _ []byte) error {
		return damage([]byte{keyEpoch}, "it is missing, but there is "+printable(key))
	})
}

// begin writes a new term, and the epoch of a new store.
func (s *Store) begin(o *Options) error {
	if s.lastTerm == math.MaxUint64 {
		return damage(numberKey(keyTerm, s.lastTerm), "there is no number for another term")
	}
	b := s.db.NewBatch()
	var errs []error
	put := func(key, body []byte) { errs = append(errs, set(b, key, body)) }
	if s.head.Epoch == "" {
		s.head.Epoch = o.NewID()
		put([]byte{keyEpoch}, []byte(s.head.Epoch))
		put([]byte{keyHead}, encodeNumber(0))
	}
	number := s.lastTerm + 1
	t := resident.Term{ID: o.NewID(), First: s.head.Revision + 1}
	put(numberKey(keyTerm, number), encodeTerm(t))
	s.terms = s.terms.Begin(t)
	if number > store.MaxTerms {
		errs = append(errs, b.DeleteRange(numberKey(keyTerm, 0), numberKey(keyTerm, number-store.MaxTerms+1), nil))
	}
	s.head.Term, s.head.TermStart = t.ID, t.First
	err := errors.Join(errs...)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	s.view, err = s.write(b)
	return err
}
