package postgres

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

const (
	// pollListening is the time between two reads of the log with LISTEN, whose notifications may be lost;
	// pollAlone is that without LISTEN.
	pollListening = time.Second
	pollAlone     = 100 * time.Millisecond
	// heartbeat is the time between two reports of the position of a replica. A replica without a report counts as
	// gone after replicaExpires, and may find later that the log has been cut.
	heartbeat      = 5 * time.Second
	replicaExpires = "30 s"
)

// follower applies to the memory what other replicas commit.
type follower struct {
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// start starts the goroutines of the follower; stop ends them.
func (f *follower) start(s *Store, c *pgx.ConnConfig, o *Options, pooled bool) {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	hint := taskgroup.NewBell()
	every := pollAlone
	if !pooled {
		every = pollListening
		f.tasks.Go(func() { s.listen(ctx, c, o, hint) })
	}
	f.tasks.Go(func() { s.followLog(ctx, every, hint) })
}

func (f *follower) stop() {
	f.cancel()
	f.tasks.Wait()
}

// listen turns notifications into hints. They are only hints: they do not wait for a replica that connects again.
func (s *Store) listen(ctx context.Context, c *pgx.ConnConfig, o *Options, hint taskgroup.Bell) {
	for ctx.Err() == nil {
		_ = s.listenOnce(ctx, c.Copy(), o, hint) // followLog reports errors of the database
		select {
		case <-time.After(pollListening):
		case <-ctx.Done():
		}
	}
}

func (s *Store) listenOnce(ctx context.Context, c *pgx.ConnConfig, o *Options, hint taskgroup.Bell) error {
	if err := o.prepare(c); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // it has nothing to lose
	if _, err := conn.Exec(ctx, "LISTEN hawser"); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if number, err := strconv.ParseUint(n.Payload, 10, 64); err != nil || !s.gets(ctx, number) {
			hint.Ring()
		}
	}
}

// followLog reads the log after each hint, and now and then.
func (s *Store) followLog(ctx context.Context, every time.Duration, hint taskgroup.Bell) {
	tick, beat := time.NewTicker(every), time.NewTicker(heartbeat)
	defer tick.Stop()
	defer beat.Stop()
	for due := true; ; {
		err := s.followOnce(ctx, due)
		if ctx.Err() != nil {
			return
		}
		s.noteFollow(s.failure(err))
		due = false
		select {
		case <-ctx.Done():
			return
		case <-hint:
		case <-tick.C:
		case <-beat.C:
			due = true
		}
	}
}

// followOnce applies what is new in the log. After a failed commit it starts an empty one, since no client publishes to
// a broker that is not ready; it waits for no commit. due adds the report of the position.
func (s *Store) followOnce(parent context.Context, due bool) error {
	ctx, cancel := context.WithTimeout(parent, readTimeout)
	defer cancel()
	if err := s.advance(ctx); err != nil {
		return err
	}
	if s.health.hasFailed() && s.commit.TryLock() {
		s.follower.tasks.Go(func() {
			defer s.commit.Unlock()
			_ = s.updateLocked(parent, nil, func(*transaction) error { return nil }) // it notes its result
		})
	}
	if due {
		return s.cut(ctx)
	}
	return nil
}

// reach lets the calls of Reach share their reads of the log. A read serves all calls that came before it began.
type reach struct {
	begun   atomic.Int64
	reading chan struct{} // has one element while a call reads
	done    int64         // the last read that succeeded; guarded by reading
}

func newReach() reach { return reach{reading: make(chan struct{}, 1)} }

// Reach implements [store.Store].
func (s *Store) Reach(ctx context.Context) error {
	before := s.reach.begun.Load()
	select {
	case s.reach.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.reach.reading }()
	if s.reach.done > before {
		return nil
	}
	n := s.reach.begun.Add(1)
	err := s.read(ctx, func() error { return s.advance(ctx) })
	if err == nil {
		s.reach.done = n
	}
	return err
}

// register adds this replica to those for which the log and the removals are kept.
func (s *Store) register(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO hawser.replica (id, position, passed, seen)
		SELECT $1, number, head, now() FROM hawser.log ORDER BY number DESC LIMIT 1`, s.id)
	return err
}

// unregister removes this replica. If that fails, the row expires.
func (s *Store) unregister() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := s.pool.Exec(ctx, "DELETE FROM hawser.replica WHERE id = $1", s.id); err != nil {
		s.log.Warn("the replica is still in the database, and expires", "err", err, "after", replicaExpires)
	}
}

// Replicas implements [store.Store].
func (s *Store) Replicas(ctx context.Context) (ids []string, err error) {
	err = s.read(ctx, func() error {
		return s.query(ctx, func(rows pgx.Rows) (err error) {
			ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		}, "SELECT id::text FROM hawser.replica WHERE id <> $1 AND seen >= now() - $2::interval", s.id, 3*heartbeat)
	})
	return append(ids, s.id), err
}

// reportAndCut reports the position of this replica. It deletes the rows of the log that all live replicas have
// applied, except the last one, and the removals that they have passed.
const reportAndCut = `WITH me AS (
	INSERT INTO hawser.replica (id, position, passed, seen) VALUES ($1, $2, $3, now())
	ON CONFLICT (id) DO UPDATE SET position = excluded.position, passed = excluded.passed, seen = excluded.seen
), gone AS (
	DELETE FROM hawser.replica WHERE seen < now() - $4::interval AND id <> $1
), others AS (
	SELECT min(position) AS position, min(passed) AS passed FROM hawser.replica WHERE id <> $1 AND seen >= now() - $4::interval
), removed AS (
	DELETE FROM hawser.removal WHERE revision <= (SELECT least($3, passed) FROM others) RETURNING revision
), compacted AS (
	UPDATE hawser.store SET compacted = greatest(compacted, (SELECT max(revision) FROM removed)) WHERE EXISTS (SELECT FROM removed)
)
DELETE FROM hawser.log WHERE number < (SELECT least($2, position) FROM others)`

// selectDurability reads the settings that tell whether commits wait for a standby. They change while the server runs.
const selectDurability = "SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')"

// cut reports the position, and cuts the log and the removals. It also looks for the synchronous standby. It does not wait
// for it: a failover that loses the report only keeps rows for longer.
func (s *Store) cut(ctx context.Context) error {
	b := begin()
	b.Queue("SELECT set_config('synchronous_commit', 'local', true)")
	b.Queue(reportAndCut, s.id, int64(s.at().number), signedRevision(s.passed.Load()), replicaExpires)
	b.Queue("COMMIT")
	err := s.pool.SendBatch(ctx, b).Close()
	if err == nil {
		err = s.lookAtSettings(ctx)
	}
	return err
}

// lookAtSettings looks whether commits wait for a standby.
func (s *Store) lookAtSettings(ctx context.Context) error {
	var facts server
	if err := s.pool.QueryRow(ctx, selectDurability).Scan(&facts.synchronous, &facts.standbys); err != nil {
		return err
	}
	s.noteStandby(facts)
	return nil
}

// noteStandby sets the metric of the synchronous standby, and logs a change after the start.
func (s *Store) noteStandby(facts server) {
	before := s.loses.Swap(facts.loses())
	s.metrics.standby.Set(1)
	if facts.loses() {
		s.metrics.standby.Set(0)
	}
	switch started := s.followed.Load() != 0; {
	case started && facts.loses() && !before:
		s.log.Warn("setting of the database", "problem", noStandby)
	case started && !facts.loses() && before:
		s.log.Info("commits wait for a synchronous standby again")
	}
}
