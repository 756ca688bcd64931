package pebble

import (
	"context"
	"errors"
	"fmt"
	"math"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// ErrInUse says that another process, or another store in this one, has the
// directory.
var ErrInUse = errors.New("another broker uses this directory; stop it first, or give each its own")

// Open opens the store in o.Dir, or creates it, under a new term that is on
// disk when Open returns. It reads the meta of every record once. It returns
// [ErrInUse], [ErrIncomplete] for half a copy, a [*store.DamageError] when it finds damage, a [*FormatError] for
// a store of a newer release, or the error of the file system. The caller must
// call [Store.Close].
func Open(o Options) (*Store, error) {
	if o.Dir == "" {
		return nil, errors.New("store: no directory is given")
	}
	o.setDefaults()
	closing := make(chan struct{})
	s := &Store{
		fs:      o.FS,
		staging: o.FS.PathJoin(o.Dir, stagingName),
		sign:    func(c clean) error { return c.sign(o.FS, o.Dir) },
		failure: newFailure(o.Log, closing),
		grace:   o.grace,
		closing: closing,
		commits: make(chan struct{}),
		places:  make(map[where]*place),
		tally:   store.NewTally(),
		behind:  make(map[store.Key]string),
		metas:   newMetas(),
		events:  newEvents(),
	}
	s.guard = &guard{FS: o.FS, failure: s.failure, spared: s.staging}
	if err := s.open(&o); err != nil {
		return nil, fmt.Errorf("store: open %s: %w", o.Dir, err)
	}
	return s, nil
}

func (s *Store) open(o *Options) error {
	if err := o.FS.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	var err error
	if s.lock, err = lockDirectory(o.FS, o.Dir); err != nil {
		return err
	}
	if err := s.tidy(o); err != nil {
		return errors.Join(err, s.lock.Close())
	}
	if err := s.openEngine(o); err != nil {
		return err
	}
	if err := s.load(); err != nil {
		return errors.Join(err, s.stopEngine(unsigned))
	}
	if err := s.checkClean(o); err != nil {
		return errors.Join(err, s.stopEngine(unsigned))
	}
	if err := s.begin(o.NewID); err != nil {
		return errors.Join(err, s.stopEngine(unsigned))
	}
	s.ring = newRing(o.ringSize, s.head.Revision+1)
	return nil
}

// tidy removes what a backup left that ended with the process.
func (s *Store) tidy(o *Options) error {
	if err := checkComplete(o.FS, o.Dir); err != nil {
		return err
	}
	return o.FS.RemoveAll(s.staging)
}

// unsigned is for a store that was not opened.
func unsigned() error { return nil }

// openEngine opens the database. The guard may stop that in the middle.
func (s *Store) openEngine(o *Options) error {
	type result struct {
		db  *engine.DB
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- result{nil, fmt.Errorf("%w: %v", errFatal, p)}
			}
		}()
		e := engineOptions(o, s.guard, s.failure)
		e.Lock = s.lock
		db, err := engine.Open(o.Dir, e)
		done <- result{db, err}
	}()
	r, ok := await(s, done)
	if !ok {
		return s.failure.get()
	}
	if s.db = r.db; r.err == nil {
		return nil
	}
	if engine.IsCorruptionError(r.err) {
		r.err = &store.DamageError{Key: o.Dir, What: r.err.Error()}
	}
	return errors.Join(s.failure.get(), r.err, s.lock.Close())
}

// load reads what the store keeps in memory.
func (s *Store) load() error {
	for _, step := range []func() error{s.loadHead, s.loadTerms, s.loadSubscribed, s.loadBookmarks, s.loadRecords} {
		if err := step(); err != nil {
			return err
		}
	}
	return s.checkFeed()
}

func (s *Store) loadHead() error {
	epoch, created, err := get(s.db, s.failure, []byte{keyEpoch})
	if err != nil {
		return err
	}
	s.head.Epoch = string(epoch)
	body, ok, err := get(s.db, s.failure, []byte{keyHead})
	if err != nil {
		return err
	}
	if !created {
		return s.mustBeEmpty()
	}
	if !ok {
		return damage([]byte{keyHead}, "it is missing in a store that has an epoch")
	}
	if s.head.Revision, err = decodeNumber(body); err != nil {
		return damage([]byte{keyHead}, err.Error())
	}
	return nil
}

// mustBeEmpty: a store without an epoch is a new one, or one that lost it.
func (s *Store) mustBeEmpty() error {
	found := errors.New("found")
	var key string
	err := each(context.Background(), s.db, s.failure, nil, func(k, _ []byte) error {
		key = printable(k)
		return found
	})
	if errors.Is(err, found) {
		return damage([]byte{keyEpoch}, "it is missing, but there is "+key)
	}
	return err
}

func (s *Store) loadTerms() error {
	return each(context.Background(), s.db, s.failure, []byte{keyTerm}, func(key, body []byte) error {
		t, err := decodeTerm(body)
		if err != nil {
			return damage(key, err.Error())
		}
		s.terms = append(s.terms, t)
		return nil
	})
}

func (s *Store) loadSubscribed() error {
	return each(context.Background(), s.db, s.failure, []byte{keyCluster}, func(key, body []byte) error {
		dt, cluster, err := parseClusterKey(key)
		if err != nil {
			return err
		}
		p := s.place(where{dt, cluster})
		p.subscribed, p.uid = true, string(body)
		return nil
	})
}

func (s *Store) loadBookmarks() error {
	all := make(map[string][]byte)
	err := each(context.Background(), s.db, s.failure, []byte{keyBookmark}, func(key, body []byte) error {
		all[string(key[1:])] = append([]byte{}, body...)
		return nil
	})
	s.marks.Set(all)
	return err
}

func (s *Store) loadRecords() error {
	defer s.tally.Sort()
	return each(context.Background(), s.db, s.failure, []byte{keyMeta}, func(key, body []byte) error {
		m, err := s.parseMeta(key, body)
		if err != nil {
			return err
		}
		if m.SpecRevision > s.head.Revision || m.StatusRevision > s.head.Revision {
			return damage(key, fmt.Sprintf("its revisions %d and %d are above the head %d", m.SpecRevision, m.StatusRevision, s.head.Revision))
		}
		s.tally.Load(m)
		if id := store.WaitsBehind(m); id != "" {
			k := m.Key
			k.ResourceID = id
			s.behind[k] = m.ResourceID
		}
		return nil
	})
}

// checkFeed: nothing in the feed is above the head.
func (s *Store) checkFeed() error {
	above := span{numberKey(keyRevision, s.head.Revision+1), after([]byte{keyRevision})}
	return eachFrom(context.Background(), s.db, s.failure, above, func(key, _ []byte) error {
		return damage(key, fmt.Sprintf("it is above the head %d", s.head.Revision))
	})
}

// begin writes a new term, and the epoch of a new store.
func (s *Store) begin(newID func() string) error {
	b := s.db.NewBatch()
	var errs []error
	put := func(key, body []byte) { errs = append(errs, set(b, key, body)) }
	if s.head.Epoch == "" {
		s.head.Epoch = newID()
		put([]byte{keyEpoch}, []byte(s.head.Epoch))
		put([]byte{keyHead}, encodeNumber(0))
	}
	number, err := s.nextTerm()
	if err != nil {
		return errors.Join(err, b.Close())
	}
	t := term{id: newID(), first: s.head.Revision + 1}
	put(numberKey(keyTerm, number), encodeTerm(t))
	s.terms = append(s.terms, t)
	if n := len(s.terms) - store.MaxTerms; n > 0 {
		errs = append(errs, b.DeleteRange(numberKey(keyTerm, 0), numberKey(keyTerm, number-store.MaxTerms+1), nil))
		s.terms = s.terms[n:]
	}
	s.head.Term, s.head.TermStart = t.id, t.first
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, b.Close())
	}
	s.view, err = s.write(b)
	return err
}

// nextTerm returns the number of this opening.
func (s *Store) nextTerm() (number uint64, err error) {
	it, err := s.db.NewIter(&engine.IterOptions{LowerBound: []byte{keyTerm}, UpperBound: after([]byte{keyTerm})})
	if err != nil {
		return 0, s.failure.broken([]byte{keyTerm}, err)
	}
	if it.Last() {
		number, err = parseNumberKey(it.Key())
	}
	if err == nil && number == math.MaxUint64 {
		err = damage(it.Key(), "there is no number for another term")
	}
	return number + 1, errors.Join(err, it.Error(), it.Close())
}
