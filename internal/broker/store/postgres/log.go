package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

var (
	// errBehind: there are more rows of the log than one page.
	errBehind = errors.New("this replica is behind the log")
	// errHistory: the log has another history than this replica, or no longer the row at its position.
	errHistory = errors.New("the log does not continue from the position of this replica")
)

// logRow is one row of the log.
type logRow struct {
	position
	head    uint64
	entries []byte
}

// logRows are rows of the log, of which the first one is expected to be at the position of the replica.
type logRows []logRow

func (l logRows) has(p position) bool {
	return slices.ContainsFunc(l, func(r logRow) bool { return r.position == p })
}

// readLog reads the result of selectLog.
func readLog(rows pgx.Rows) (logRows, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r logRow, err error) {
		err = row.Scan(&r.number, &r.token, &r.head, &r.entries)
		return r, err
	})
}

// follow applies rows of the log to the memory.
func (s *Store) follow(l logRows) error {
	at := s.at()
	if len(l) == 0 || l[0].number > at.number {
		return errHistory
	}
	for _, r := range l {
		switch {
		case r.number == at.number && r.token != at.token:
			return errHistory
		case r.number <= s.at().number:
			continue
		}
		key := logKey(r.number)
		body, err := value.Unseal(key, r.entries)
		if err != nil {
			return err
		}
		e, err := decodeEntries(key, body)
		if err != nil {
			return err
		}
		s.applyNext(r.position, r.head, e)
	}
	if len(l) == logPage {
		return errBehind
	}
	return nil
}

// catchUp applies all rows of the log that there are.
func (s *Store) catchUp(ctx context.Context) error {
	began := time.Now().UnixNano()
	for {
		var page logRows
		err := s.query(ctx, func(rows pgx.Rows) (err error) {
			page, err = readLog(rows)
			return err
		}, selectLog, int64(s.at().number), logPage)
		if err != nil {
			return err
		}
		if err := s.follow(page); err == nil {
			s.followed.Store(began)
			return nil
		} else if !errors.Is(err, errBehind) {
			return err
		}
	}
}

// advance brings the memory to the end of the log.
func (s *Store) advance(ctx context.Context) error {
	err := s.catchUp(ctx)
	if errors.Is(err, errHistory) {
		s.commit.Lock()
		defer s.commit.Unlock()
		return s.reload(ctx)
	}
	return err
}

// reload replaces the memory by a snapshot, because the log was cut while this replica hung. If the database lost
// commits that this replica has seen, the replica ends instead. The caller holds the commit lock of this store, but not
// that of the database.
func (s *Store) reload(ctx context.Context) error {
	if err := s.health.loss(); err != nil {
		return err
	}
	at := s.at()
	n, diverged, err := s.snapshot(ctx, at)
	if err != nil {
		return err
	}
	if diverged {
		return s.lose(ctx, at, n)
	}
	s.replace(n)
	return nil
}

// lose ends this replica after a loss of commits that it has seen, up to at; n is what the database has now. Readers may have
// acted on what was lost, so this process must not see the other history: it keeps its memory, and each later call
// returns the error. Before that, lose begins an incarnation behind the head that survived.
//
// Scenario without the new incarnation:
//
//	t1: an agent has the cursor 5; the database is replaced by a copy whose head is 3, on the same server.
//	t2: the broker starts again; the identity of the database is the same.
//	t3: sources publish the revisions 4 and 5, and the agent continues behind 5.
//
// Result: the agent never gets the two specs.
func (s *Store) lose(ctx context.Context, at place, n memIndex) error {
	survivor := &Store{
		memory: newMemory(n), pool: s.pool, target: s.target, log: s.log, newID: s.newID,
		ringSize: s.ringSize, id: s.id, calls: s.calls, metrics: s.metrics, fatal: make(chan error, 1), lost: true,
	}
	if err := survivor.update(ctx, nil, func(*transaction) error { return nil }); err != nil {
		return err
	}
	err := s.target.describe(lossDiagnosis(n.state.At.Revision, at.head.Revision), nil)
	s.health.lose(err)
	s.wakeReaders() // of the feed, which get the error
	s.fatal <- err  // once: reload returns the error from here on
	return err
}

// lossDiagnosis is the diagnosis of a database that has lost commits.
func lossDiagnosis(head, seen uint64) diagnosis {
	return diagnosis{
		Lost, fmt.Sprintf("it lost commits: its head is %d, and this broker has seen %d", head, seen),
		"The broker starts again, and its clients compare everything. Use a synchronous standby to prevent this",
	}
}

// snapshot reads what a replica keeps in memory, at one position of the log. diverged reports that the database lost
// commits that this replica has seen, up to before. A new replica has seen none.
func (s *Store) snapshot(ctx context.Context, before place) (m memIndex, diverged bool, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := limitRead(ctx, tx, 0); err != nil {
			return err
		}
		m, diverged, err = s.load(ctx, tx, before)
		return err
	})
	return m, diverged, err
}

func (s *Store) load(ctx context.Context, tx pgx.Tx, before place) (m memIndex, diverged bool, err error) {
	m = memIndex{state: memindex.NewState()}
	if err := tx.QueryRow(ctx, "SELECT id FROM hawser.store").Scan(&m.state.At.StoreID); err != nil {
		return m, false, err
	}
	rows, err := tx.Query(ctx, "SELECT number, token, head, ''::bytea FROM hawser.log WHERE number = $1 OR number = (SELECT max(number) FROM hawser.log) ORDER BY number", int64(before.number))
	if err != nil {
		return m, false, err
	}
	l, err := readLog(rows)
	if err != nil {
		return m, false, err
	}
	if len(l) == 0 {
		return m, false, value.Damage(logKey(0), "the log has no row")
	}
	last := l[len(l)-1]
	m.position, m.state.At.Revision = last.position, last.head
	m.ring = memindex.NewRing(s.ringSize, last.head+1)
	for _, load := range []func(context.Context, pgx.Tx, *memIndex) error{loadIncarnations, loadBookmarks, loadRecords} {
		if err := load(ctx, tx, &m); err != nil {
			return m, false, err
		}
	}
	m.state.Tally.Sort()
	if before == (place{}) {
		return m, false, nil
	}
	// The row may be cut already. Then the incarnations tell whether another replica has found a loss.
	seen := store.Cursor{StoreID: before.head.StoreID, Incarnation: before.head.Incarnation, Revision: before.head.Revision}
	diverged = last.number < before.number || l[0].number == before.number && l[0].token != before.token || !m.state.Incarnations.Valid(m.state.At, seen)
	return m, diverged, nil
}

// loadRows calls scan for each row of a statement.
func loadRows(ctx context.Context, tx pgx.Tx, sql string, scan func(pgx.CollectableRow) error) error {
	rows, _ := tx.Query(ctx, sql) // rows has the error
	_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) { return struct{}{}, scan(row) })
	return err
}

func loadIncarnations(ctx context.Context, tx pgx.Tx, m *memIndex) error {
	return loadRows(ctx, tx, "SELECT number, id, first, database FROM hawser.incarnation ORDER BY number", func(row pgx.CollectableRow) error {
		var i incarnation
		if err := row.Scan(&i.number, &i.ID, &i.First, &i.database); err != nil {
			return err
		}
		m.begin(i)
		return nil
	})
}

func loadBookmarks(ctx context.Context, tx pgx.Tx, m *memIndex) error {
	return loadRows(ctx, tx, "SELECT name, bookmark FROM hawser.bookmark", func(row pgx.CollectableRow) error {
		var name, sealed []byte
		if err := row.Scan(&name, &sealed); err != nil {
			return err
		}
		b, err := bookmarkOf(string(name), sealed)
		if err == nil {
			m.state.Bookmarks.Set(string(name), &b)
		}
		return err
	})
}

// bookmarkOf returns the bookmark of a row.
func bookmarkOf(name string, sealed []byte) (store.Bookmark, error) {
	key := value.BookmarkKey(name)
	body, err := value.Unseal(key, sealed)
	if err != nil {
		return store.Bookmark{}, err
	}
	return value.DecodeBookmark(key, body)
}

func loadRecords(ctx context.Context, tx pgx.Tx, m *memIndex) error {
	return loadRows(ctx, tx, "SELECT data_type, cluster, resource_id, meta, NULL::bytea FROM hawser.record", func(row pgx.CollectableRow) error {
		r, _, err := scanRecord(row)
		if err != nil {
			return err
		}
		if highest := max(r.SpecRevision, r.StatusRevision); highest > m.state.At.Revision {
			return value.Damage(value.Key(value.Meta, r.Key), fmt.Sprintf("its revision %d is above the head %d", highest, m.state.At.Revision))
		}
		m.state.Load(r)
		return nil
	})
}
