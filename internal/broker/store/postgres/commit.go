package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

// A commit is one transaction in READ COMMITTED, and takes two round trips:
//
//	1. BEGIN; time limits; the lock of commits; the end of the log; the identity of the database; the records
//	2. the writes; COMMIT
//
// Between them it applies what other replicas have committed to the memory, and decides. The records are read by
// a statement after the lock: a statement has the snapshot of its beginning.
//
// Scenario with one statement that locks and reads:
//
//	t1: replica A holds the lock and writes version 2 of a work.
//	t2: the statement of replica B takes its snapshot, with version 1, and waits for the lock.
//	t3: A commits; B gets the lock, and reads version 1 in its snapshot.
//
// Result: B decides on a record that no longer exists, and its write overwrites version 2.
//
// A replica that commits alone remembers the records that it wrote. It needs no reads for them, so its commit takes one
// round trip. A statement after the lock confirms that no other replica has committed meanwhile; otherwise it fails, the
// transaction ends, and the commit takes the two round trips.

// setCommitLimits sets the limits of a commit. They are set in each transaction, because a pooler in transaction mode
// gives each transaction another session. A scan of a whole table is never right here, but the planner would choose
// one for a table that was small when it last looked. It would also plan each execution again: it expects more keys
// of a plan for any batch than a batch of one has.
const setCommitLimits = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
	set_config('idle_in_transaction_session_timeout', $3, true), set_config('enable_seqscan', 'off', true),
	set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true),
	CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END`

// selectIdentity reads whether the server is a standby, and otherwise the identity of the database: what differs
// after a restore, a failover, and a restart. None of it needs a right.
const selectIdentity = `SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE concat_ws('/',
	(SELECT system_identifier FROM pg_control_system()), left(pg_walfile_name(pg_current_wal_lsn()), 8),
	(SELECT oid FROM pg_database WHERE datname = current_database()),
	extract(epoch FROM pg_postmaster_start_time())) END`

// selectLog reads the row of the log at a position, and those after it.
const selectLog = `SELECT number, token, head, entries FROM hawser.log WHERE number >= $1 ORDER BY number LIMIT $2`

// confirmPlace fails with the SQLSTATE notConfirmed unless the log ends at the position of this replica, in the database
// of the last incarnation. The text of the error is in the log of the server.
const confirmPlace = `SELECT CASE count(*) WHEN 1 THEN 1 ELSE ('another broker committed, or the server restarted; this commit starts again' || count(*))::integer END
	FROM hawser.log WHERE number = $1 AND token = $2 AND number = (SELECT max(number) FROM hawser.log) AND $3::text = (` + selectIdentity + `)`

// aloneAfter is the number of commits in succession after which a replica counts as one that commits alone. Between
// replicas that all commit, the lock alternates, and confirmPlace would always fail.
const aloneAfter = 4

// logPage is the highest number of rows of the log that one statement reads.
const logPage = 256

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	outcomes := make([]store.Outcome, len(ops))
	err := s.update(ctx, ops, func(t *transaction) (err error) {
		for i := range ops {
			if outcomes[i], err = t.do(&ops[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

// attempts is how often a commit is tried when its connection breaks, or when its replica is far behind.
const attempts = 5

// update executes one commit. f fills the transaction, which has read what ops need; it may be called again after a
// connection broke. The next attempt finds a commit whose result is unknown in the log, or in the memory if the
// follower has applied it. Otherwise it never happened: that attempt has the lock.
func (s *Store) update(ctx context.Context, ops []store.Op, f func(*transaction) error) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.commit.Lock()
	defer s.commit.Unlock()
	return s.updateLocked(ctx, ops, f)
}

// updateLocked is update for a caller that holds the lock of commits.
func (s *Store) updateLocked(ctx context.Context, ops []store.Op, f func(*transaction) error) error {
	err := s.health.end()
	if err != nil {
		return err
	}
	u := &update{store: s, ops: ops, f: f}
	for range attempts {
		if err = u.try(ctx); err == nil || ctx.Err() != nil || s.calls.AreClosing() {
			break
		}
		if retry := u.beforeRetry(ctx, err); retry != nil {
			err = retry
			break
		}
	}
	err = s.failure(err)
	s.note(err)
	return err
}

// update is one commit, with what its attempts share.
type update struct {
	store *Store
	ops   []store.Op
	f     func(*transaction) error
	// sent is the position of the attempt whose result is unknown; its token is 0 if there is none. done: it is in the log.
	sent position
	done bool
}

// beforeRetry prepares another attempt after an error. It returns the error that ends the commit, if there is no point in
// another attempt.
func (u *update) beforeRetry(ctx context.Context, err error) error {
	s := u.store
	switch {
	case errors.Is(err, errBehind):
		return s.catchUp(ctx)
	case errors.Is(err, errHistory):
		if err := s.reload(ctx); err != nil || u.sent.token == 0 {
			return err
		}
		return s.target.describe(unknown, nil)
	case isConnectionLost(err):
		s.pool.Reset() // its other connections are probably lost too
		return nil
	}
	return err
}

// unknown is the diagnosis of a commit whose row may be one of those that were cut.
var unknown = diagnosis{Unconfirmed, "the connection broke during a commit, and its row is no longer in the log", "Its clients publish again"}

// try is one attempt. An error before COMMIT was sent rolls the transaction back: the connection is closed with it.
func (u *update) try(ctx context.Context) error {
	s := u.store
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if t, b, number := u.foresee(); t != nil {
		err := u.write(ctx, conn, b, t, number)
		if !hasCode(err, notConfirmed) {
			return err
		}
		u.sent = position{} // it was rolled back
		if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
	}
	r, err := u.read(ctx, conn)
	if err != nil {
		return err
	}
	t, err := u.decide(r)
	if err != nil {
		return err
	}
	if !u.done && t.isEmpty() {
		_, err := conn.Exec(ctx, "ROLLBACK")
		return err
	}
	// If the sent attempt is in the log, this commit is empty. Its COMMIT waits for the synchronous standby, and so
	// for all that was written before.
	return u.write(ctx, conn, &pgx.Batch{}, t, s.at().number+1)
}

// foresee decides with the records that this replica remembers. It returns the transaction, with the statements that come
// before its writes, and the number of its row in the log. The transaction is nil if the records must be read, or if it
// has no writes that could be confirmed.
func (u *update) foresee() (t *transaction, b *pgx.Batch, number uint64) {
	s := u.store
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.alone < aloneAfter || s.lost || u.sent.token != 0 {
		return nil, nil, 0
	}
	r := &reads{metas: make(map[store.Key]*store.Meta, len(u.ops))}
	for i := range u.ops {
		if !isOfRecord(&u.ops[i]) {
			continue
		}
		m := s.recent.get(&u.ops[i])
		if m == nil {
			return nil, nil, 0
		}
		r.metas[m.Key] = m
	}
	t = newTransaction(&s.memIndex, r)
	if err := u.f(t); err != nil || t.isEmpty() {
		return nil, nil, 0
	}
	b = beginCommit()
	b.Queue(confirmPlace, int64(s.position.number), int64(s.position.token), s.database)
	return t, b, s.position.number + 1
}

// begin returns the statements that begin a transaction that writes.
func begin() *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(setCommitLimits, millis(statementTimeout), millis(lockTimeout), millis(idleTimeout))
	return b
}

// beginCommit returns the statements that begin a commit and take the lock.
func beginCommit() *pgx.Batch {
	b := begin()
	b.Queue("SELECT pg_advisory_xact_lock($1)", commitLock)
	return b
}

// decide fills the transaction, with the memory at the locked head. It holds the lock of the memory.
//
// Scenario without that lock:
//
//	t1: this process hangs in a commit; the server ends the transaction, and other replicas commit.
//	t2: it runs again, and its follower applies their rows of the log.
//	t3: the commit still decides, on the same maps.
//
// Result: a concurrent read and write of a map ends the process.
func (u *update) decide(r firstReads) (*transaction, error) {
	s := u.store
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := newTransaction(&s.memIndex, r.reads)
	s.checkIdentity(t, r.identity)
	if u.done {
		return t, nil
	}
	return t, u.f(t)
}

// firstReads are the results of the first round trip.
type firstReads struct {
	reads    *reads
	identity string
}

// read makes the first round trip, and brings the memory to the locked head.
func (u *update) read(ctx context.Context, conn *pgxpool.Conn) (r firstReads, err error) {
	s := u.store
	keys, args := opColumns(u.ops)
	b := beginCommit()
	b.Queue(selectIdentity)
	b.Queue(selectLog, int64(s.at().number), logPage)
	b.Queue(selectRecords, args...)
	results := conn.SendBatch(ctx, b)
	defer func() { err = cmp.Or(err, results.Close()) }()
	for range 3 {
		if _, err := results.Exec(); err != nil {
			return r, err
		}
	}
	if err := results.QueryRow().Scan(&r.identity); err != nil {
		return r, err
	}
	if r.identity == "" {
		return r, errStandby
	}
	rows, err := results.Query()
	if err != nil {
		return r, err
	}
	page, err := readLog(rows)
	if err != nil {
		return r, err
	}
	if err := s.follow(page); err != nil {
		return r, err
	}
	if rows, err = results.Query(); err != nil {
		return r, err
	}
	if r.reads, err = readRecords(rows, keys); err != nil {
		return r, err
	}
	u.done = u.done || u.sent.token != 0 && (page.has(u.sent) || s.has(u.sent))
	return r, nil
}

// millis returns a duration as a setting of PostgreSQL.
func millis(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// checkIdentity begins an incarnation if the database is another one than that of the last incarnation, or if its
// history is shorter than what this replica has seen. The incarnation begins behind the head that survived.
func (s *Store) checkIdentity(t *transaction, identity string) {
	if identity == s.database && !s.lost {
		return
	}
	t.incarnations = []incarnation{{
		Incarnation: memindex.Incarnation{ID: s.newID(), First: s.state.At.Revision + 1}, number: s.numbered + 1, database: identity,
	}}
}

// write sends the statements of b, the writes, and COMMIT, and applies the transaction to the memory.
func (u *update) write(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch, t *transaction, number uint64) (err error) {
	p := position{number: number, token: 1 + rand.Uint64()>>2}
	if !u.done {
		u.sent = p
	}
	u.store.writes(p)
	if err := u.send(ctx, conn, b, t, p); err != nil {
		return err
	}
	u.store.wrote(p, t, u.ops)
	return nil
}

func (u *update) send(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch, t *transaction, p position) (err error) {
	// Once COMMIT is sent, its answer is worth more than the caller's time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	takeWarning(conn.Conn())
	key := logKey(p.number)
	b.Queue("INSERT INTO hawser.log (number, token, head, entries) VALUES ($1, $2, $3, $4)",
		int64(p.number), int64(p.token), int64(t.head), value.Seal(key, encode(&t.entries)))
	t.queue(b)
	b.Queue("SELECT pg_notify('hawser', $1), set_config('statement_timeout', '0', true)", fmt.Sprint(p.number))
	b.Queue("COMMIT")
	results := conn.SendBatch(ctx, b)
	defer func() { err = cmp.Or(err, results.Close()) }()
	for range b.Len() - 1 {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	tag, err := results.Exec()
	switch warning := takeWarning(conn.Conn()); {
	case err != nil:
		return err
	case tag.String() != "COMMIT":
		return fmt.Errorf("store: the transaction ended with %s", tag)
	case warning != "":
		return u.store.target.describe(unconfirmed, errors.New(warning))
	}
	return nil
}

// unconfirmed is the diagnosis of a commit that stopped waiting for its synchronous standby.
var unconfirmed = diagnosis{Unconfirmed, "the commit is not confirmed by a synchronous standby", "Nothing of it was acknowledged. Check that the standby is connected: pg_stat_replication"}

// queue adds the writes of the transaction to a batch. The large ones are last: the buffer of the driver grows once.
func (t *transaction) queue(b *pgx.Batch) {
	t.queueRecords(b)
	t.queueChanges(b)
	t.queueBookmarks(b)
	t.queueRemovals(b)
	for _, i := range t.incarnations {
		b.Queue("INSERT INTO hawser.incarnation (number, id, first, database) VALUES ($1, $2, $3, $4)", int64(i.number), i.ID, int64(i.First), i.database)
		b.Queue("DELETE FROM hawser.incarnation WHERE number <= $1", int64(i.number)-store.MaxIncarnations)
	}
	t.queuePayloads(b)
}

// queueRecords writes the records.
func (t *transaction) queueRecords(b *pgx.Batch) {
	var removed, kept []store.Key
	var owners, names, ids, queuedNames []string
	var metas [][]byte
	for _, k := range t.touched {
		m := t.metas[k]
		if m == nil {
			removed = append(removed, k)
			continue
		}
		kept, owners, ids = append(kept, k), append(owners, m.Owner), append(ids, store.QueuedID(m))
		reserved := append(store.ReservedNames(m), "", "")
		names, queuedNames = append(names, reserved[0]), append(queuedNames, reserved[1])
		metas = append(metas, value.Seal(value.Key(value.Meta, k), value.AppendMeta(nil, m)))
	}
	if len(removed) > 0 {
		b.Queue(`DELETE FROM hawser.record r USING unnest($1::text[], $2::text[], $3::text[]) AS k (data_type, cluster, resource_id)
			WHERE r.data_type = k.data_type AND r.cluster = k.cluster AND r.resource_id = k.resource_id`, keyColumns(removed)...)
	}
	if len(kept) > 0 {
		b.Queue(`INSERT INTO hawser.record AS r (data_type, cluster, resource_id, owner, name, queued_id, queued_name, meta)
			SELECT data_type, cluster, resource_id, owner, nullif(name, ''), nullif(queued_id, ''), nullif(queued_name, ''), meta
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[])
				AS n (data_type, cluster, resource_id, owner, name, queued_id, queued_name, meta)
			ON CONFLICT (data_type, cluster, resource_id) DO UPDATE SET
				owner = excluded.owner, name = excluded.name, queued_id = excluded.queued_id, queued_name = excluded.queued_name, meta = excluded.meta`,
			append(keyColumns(kept), owners, names, ids, queuedNames, metas)...)
	}
}

// queuePayloads writes the payloads. All are one parameter, because an array of them would be copied several times while
// it grows.
func (t *transaction) queuePayloads(b *pgx.Batch) {
	var removed, kept []store.Key
	var removedKinds, kinds []string
	var firsts, sizes []int32 // positions from 1, and lengths, in events
	size := 0
	for _, event := range t.payloads {
		size += value.Len(event)
	}
	events := make([]byte, 0, size)
	for k, event := range t.payloads {
		switch {
		case event == nil && t.stored[k.Key] == nil: // there is none
			continue
		case event == nil:
			removed, removedKinds = append(removed, k.Key), append(removedKinds, string(k.kind))
		default:
			kept, kinds = append(kept, k.Key), append(kinds, string(k.kind))
			firsts, sizes = append(firsts, int32(len(events)+1)), append(sizes, int32(value.Len(event)))
			events = events[:len(events)+value.Len(event)]
			value.SealTo(events[len(events)-value.Len(event):], value.Key(k.kind, k.Key), event)
		}
	}
	if len(removed) > 0 {
		b.Queue(`DELETE FROM hawser.payload p USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k (data_type, cluster, resource_id, kind)
			WHERE p.data_type = k.data_type AND p.cluster = k.cluster AND p.resource_id = k.resource_id AND p.kind = k.kind`,
			append(keyColumns(removed), removedKinds)...)
	}
	if len(kept) > 0 {
		b.Queue(`INSERT INTO hawser.payload (data_type, cluster, resource_id, kind, event)
			SELECT data_type, cluster, resource_id, kind, substring($7::bytea FROM first FOR size)
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::integer[])
				AS n (data_type, cluster, resource_id, kind, first, size)
			ON CONFLICT (data_type, cluster, resource_id, kind) DO UPDATE SET event = excluded.event`,
			append(keyColumns(kept), kinds, firsts, sizes, events)...)
	}
}

// queueChanges writes the difference between the feed entries of the records before and after.
func (t *transaction) queueChanges(b *pgx.Batch) {
	last := make(map[uint64]*store.Change, len(t.changes))
	for i := range t.changes {
		last[t.changes[i].Revision] = &t.changes[i]
	}
	var obsolete, revisions []int64
	var parts, states []int16
	var keys []store.Key
	var owners []string
	for _, k := range t.touched {
		oldSpec, oldStatus := store.Entries(t.stored[k])
		spec, status := store.Entries(t.metas[k])
		for _, e := range [...][2]uint64{{oldSpec, spec}, {oldStatus, status}} {
			before, now := e[0], e[1]
			if before == now {
				continue
			}
			if before != 0 {
				obsolete = append(obsolete, int64(before))
			}
			if c := last[now]; c != nil {
				revisions, parts, states = append(revisions, int64(now)), append(parts, int16(c.Part)), append(states, int16(c.State))
				keys, owners = append(keys, c.Key), append(owners, c.Owner)
			}
		}
	}
	if len(obsolete) > 0 {
		b.Queue("DELETE FROM hawser.change WHERE revision = ANY ($1::bigint[])", obsolete)
	}
	if len(revisions) > 0 {
		b.Queue(`INSERT INTO hawser.change (data_type, cluster, resource_id, revision, part, state, owner)
			SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::smallint[], $6::smallint[], $7::text[])`,
			append(keyColumns(keys), revisions, parts, states, owners)...)
	}
}

// queueBookmarks writes the changed bookmarks.
func (t *transaction) queueBookmarks(b *pgx.Batch) {
	var removed, kept, bookmarks [][]byte
	var revisions []int64
	for name, v := range t.bookmarks {
		if v == nil {
			removed = append(removed, []byte(name))
			continue
		}
		kept, revisions = append(kept, []byte(name)), append(revisions, int64(v.Revision))
		bookmarks = append(bookmarks, value.Seal(value.BookmarkKey(name), value.AppendBookmark(nil, *v)))
	}
	if len(removed) > 0 {
		b.Queue("DELETE FROM hawser.bookmark WHERE name = ANY ($1::bytea[])", removed)
	}
	if len(kept) > 0 {
		b.Queue(`INSERT INTO hawser.bookmark (name, revision, bookmark) SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[])
			ON CONFLICT (name) DO UPDATE SET revision = excluded.revision, bookmark = excluded.bookmark`, kept, revisions, bookmarks)
	}
}

// queueRemovals writes the removals of the feed.
func (t *transaction) queueRemovals(b *pgx.Batch) {
	var revisions []int64
	var changes [][]byte
	for i := range t.changes {
		if c := &t.changes[i]; c.Gone {
			revisions = append(revisions, int64(c.Revision))
			changes = append(changes, value.Seal(value.NumberKey(value.Removal, c.Revision), value.AppendChange(nil, c)))
		}
	}
	if len(revisions) > 0 {
		b.Queue("INSERT INTO hawser.removal (revision, change) SELECT * FROM unnest($1::bigint[], $2::bytea[])", revisions, changes)
	}
}
