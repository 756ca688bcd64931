package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

// defaultRingSize is the number of last changes that are read from memory. It needs about 1 MiB.
const defaultRingSize = 4096

// Store implements [store.Store] in one database.
type Store struct {
	*memory

	pool     *pgxpool.Pool
	target   target
	log      *slog.Logger
	newID    func() string
	ringSize uint64
	id       string // of this replica

	commit sync.Mutex // serializes commits
	// lost: the next commit begins an incarnation, because the database lost commits.
	lost   bool
	passed atomic.Uint64 // revision up to which no reader of this process needs a removal
	reach  reach

	health health
	fatal  chan error

	metrics  metrics
	loses    atomic.Bool  // a failover can lose what was acknowledged
	followed atomic.Int64 // when the last read of the whole log began, in Unix nanoseconds

	// calls are those that may take long.
	calls    *store.Calls
	follower follower
}

var _ store.Store = (*Store)(nil)

// Open connects to the database, creates or migrates the tables, and reads the records without their payloads
// once. Errors are [*DatabaseError], [*SchemaError], [*store.DamageError] and [*value.FormatError]. The caller must call
// [Store.Close].
func Open(ctx context.Context, o Options) (*Store, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.NewID == nil {
		o.NewID = rand.Text
	}
	c, err := o.poolConfig()
	if err != nil {
		return nil, err
	}
	s := &Store{
		target: targetOf(&c.ConnConfig.Config), log: o.Log, newID: o.NewID, id: rand.Text(),
		ringSize: cmp.Or(o.ringSize, defaultRingSize), calls: store.NewCalls(), fatal: make(chan error, 1), reach: newReach(),
		memory: newMemory(memIndex{state: memindex.NewState()}),
	}
	s.newMetrics(o.Registry)
	if err := s.open(ctx, &o, c); err != nil {
		if s.pool != nil {
			s.pool.Close()
		}
		return nil, s.target.failure(err)
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, o *Options, c *pgxpool.Config) (err error) {
	pooled, err := s.prepare(ctx, o, c.ConnConfig.Copy())
	if err != nil {
		return err
	}
	if pooled {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, c); err != nil {
		return err
	}
	// The other replicas keep the log and the removals from here on.
	if err := s.register(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.unregister()
		}
	}()
	m, _, err := s.snapshot(ctx, place{})
	if err != nil {
		return err
	}
	s.replace(m)
	s.passed.Store(m.state.At.Revision)
	s.followed.Store(time.Now().UnixNano())
	// This begins an incarnation, if the database is another one than before.
	if err := s.update(ctx, nil, func(*transaction) error { return nil }); err != nil {
		return err
	}
	s.follower.start(s, c.ConnConfig, o, pooled)
	return nil
}

// prepare checks the server and brings the tables to the version of this release, over a connection of its own.
func (s *Store) prepare(ctx context.Context, o *Options, c *pgx.ConnConfig) (pooled bool, err error) {
	conn, facts, err := o.connect(ctx, c, s.target)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	s.noteStandby(facts)
	for _, w := range facts.warnings() {
		s.log.Warn("setting of the database", "problem", w, "host", s.target.host, "database", s.target.database)
	}
	if err := migrate(ctx, conn, migrations); err != nil {
		return false, err
	}
	return facts.isPooled, s.create(ctx, conn)
}

// create writes the store id and the begin of the log into empty tables.
func (s *Store) create(ctx context.Context, conn *pgx.Conn) error {
	return pgx.BeginTxFunc(ctx, conn, readCommitted, func(tx pgx.Tx) error {
		if is, err := hasMigration(ctx, tx); is || err != nil {
			return cmp.Or(err, s.target.describe(half, nil))
		}
		tag, err := tx.Exec(ctx, "INSERT INTO hawser.store (id) VALUES ($1) ON CONFLICT DO NOTHING", s.newID())
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO hawser.log (number, token, head, entries) VALUES (0, 0, 0, $1)", value.Seal(logKey(0), nil))
		return err
	})
}

// enter begins a call; the caller must call leave at its end. It fails after a loss.
func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	if leave, err = s.calls.Enter(ctx); err != nil {
		return nil, err
	}
	if err := s.health.loss(); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// Close implements [store.Store].
func (s *Store) Close() error {
	return s.calls.Close(func() error {
		s.follower.stop()
		s.unregister()
		s.pool.Close()
		return nil
	})
}

// Passed implements [store.Store]. The next report of this replica has the revision.
func (s *Store) Passed(revision uint64) {
	for known := s.passed.Load(); known < revision && !s.passed.CompareAndSwap(known, revision); {
		known = s.passed.Load()
	}
}

// Err implements [store.Store]. The failure of a commit, or of the follower of the log, lasts until the next one
// succeeds.
func (s *Store) Err() error { return s.health.err() }

// Fatal implements [store.Store]. It delivers an error if the database has lost commits that this process has seen,
// by a failover to an asynchronous standby or a restored backup. What the process has derived from them is wrong, so
// each later call returns the error too.
func (s *Store) Fatal() <-chan error { return s.fatal }

// health is the state of the connection to the database, as callers see it.
type health struct {
	mu       sync.Mutex
	lost     error // the database lost commits; it ends all calls
	damaged  error // damage that was read; it ends commits, until the store is opened again
	failed   error // the last commit failed
	unfollow error // the last read of the log failed
}

func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.lost, h.damaged, h.failed, h.unfollow)
}

func (h *health) hasFailed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed != nil
}

// end returns the error that ends all later commits, nil if there is none.
func (h *health) end() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.lost, h.damaged)
}

// loss returns the error that ends all later calls, nil if there is none.
func (h *health) loss() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

// lose sets the error that ends all later calls.
func (h *health) lose(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = err
}

// note records the result of a commit.
func (s *Store) note(err error) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if errors.As(err, new(*store.DamageError)) {
		s.health.damaged = fmt.Errorf("%w: %w", store.ErrReadOnly, err)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, store.ErrClosed) {
		return
	}
	if (err == nil) != (s.health.failed == nil) {
		s.report("commits", err)
	}
	if s.health.failed = err; err == nil {
		s.health.unfollow = nil // a commit also reads the log
	}
}

// noteFollow records the result of a read of the log.
func (s *Store) noteFollow(err error) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if (err == nil) != (s.health.unfollow == nil) {
		s.report("the log", err)
	}
	s.health.unfollow = err
}

// report logs the begin or the end of a failure.
func (s *Store) report(of string, err error) {
	if err != nil {
		s.log.Error("database fails", "part", of, "err", err)
		return
	}
	s.log.Info("database works again", "part", of)
}
