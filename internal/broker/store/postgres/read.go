package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// setReadLimits sets the limits of a reader, and asks whether the server is a standby: a standby lags, and may show a
// history that the primary server does not have.
const setReadLimits = `SELECT pg_is_in_recovery(), set_config('statement_timeout', $1, true),
	set_config('idle_in_transaction_session_timeout', $2, true)`

// query executes one statement in one round trip. f reads its rows, and may be called again if it returned an error. A
// connection that broke while it was idle is replaced.
func (s *Store) query(ctx context.Context, f func(pgx.Rows) error, sql string, args ...any) error {
	for attempt := 1; ; attempt++ {
		err := s.queryOnce(ctx, f, sql, args...)
		if err == nil || attempt == attempts || !isConnectionLost(err) || ctx.Err() != nil {
			return err
		}
		s.pool.Reset()
	}
}

func (s *Store) queryOnce(ctx context.Context, f func(pgx.Rows) error, sql string, args ...any) (err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	b := &pgx.Batch{}
	b.Queue("BEGIN READ ONLY")
	b.Queue(setReadLimits, millis(readTimeout), millis(readIdleTimeout))
	b.Queue(sql, args...)
	b.Queue("COMMIT")
	results := conn.SendBatch(ctx, b)
	defer func() { err = cmp.Or(err, results.Close()) }()
	if _, err := results.Exec(); err != nil {
		return err
	}
	var standby bool
	if err := results.QueryRow().Scan(&standby, nil, nil); err != nil {
		return err
	}
	if standby {
		return errStandby
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	return f(rows)
}

// page is the number of records that are read at once.
const page = 512

// each calls f for each record that a statement returns, on one snapshot. Few records are read in one round trip, with
// no transaction left when f is called. More are read again through a cursor, page by page, so that f may take its
// time and may call the store.
func (s *Store) each(ctx context.Context, f func(*store.Meta) error, sql string, args ...any) error {
	var first []*store.Meta
	err := s.query(ctx, func(rows pgx.Rows) (err error) {
		first, err = readMetas(rows)
		return err
	}, sql+fmt.Sprintf(" LIMIT %d", page+1), args...)
	switch {
	case err != nil:
		return err
	case len(first) <= page:
		return forEach(ctx, first, f)
	}
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := limitRead(ctx, tx, readTimeout); err != nil {
			return err
		}
		// The columns of a FETCH are those of its cursor, so it cannot be prepared before that.
		args := append([]any{pgx.QueryExecModeExec}, args...)
		if _, err := tx.Exec(ctx, "DECLARE records NO SCROLL CURSOR FOR "+sql, args...); err != nil {
			return err
		}
		for {
			rows, err := tx.Query(ctx, fmt.Sprintf("FETCH %d FROM records", page), pgx.QueryExecModeExec)
			if err != nil {
				return err
			}
			next, err := readMetas(rows)
			if err != nil {
				return err
			}
			if err := forEach(ctx, next, f); err != nil || len(next) < page {
				return err
			}
		}
	})
}

// forEach calls f for each record, until an error or the end of ctx.
func forEach(ctx context.Context, records []*store.Meta, f func(*store.Meta) error) error {
	for _, m := range records {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(m); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// limitRead sets the limits of a reading transaction; a timeout of 0 is none.
func limitRead(ctx context.Context, tx pgx.Tx, timeout time.Duration) error {
	var standby bool
	err := tx.QueryRow(ctx, setReadLimits, millis(timeout), millis(readIdleTimeout)).Scan(&standby, nil, nil)
	if err == nil && standby {
		return errStandby
	}
	return err
}

func readMetas(rows pgx.Rows) ([]*store.Meta, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*store.Meta, error) {
		m, _, err := scanRecord(row)
		return m, err
	})
}

// read calls f as one call of the store.
func (s *Store) read(ctx context.Context, f func() error) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = s.failure(f())
	if errors.As(err, new(*store.DamageError)) {
		s.note(err)
	}
	return err
}

// recordColumns are the columns that scanRecord reads.
const recordColumns = "r.data_type, r.cluster, r.resource_id, r.meta, NULL::bytea"

const selectRecord = `SELECT r.meta,
	(SELECT event FROM hawser.payload p WHERE p.data_type = r.data_type AND p.cluster = r.cluster AND p.resource_id = r.resource_id AND p.kind = 's' AND $4),
	(SELECT event FROM hawser.payload p WHERE p.data_type = r.data_type AND p.cluster = r.cluster AND p.resource_id = r.resource_id AND p.kind = 't' AND $4)
	FROM hawser.record r WHERE r.data_type = $1 AND r.cluster = $2 AND r.resource_id = $3`

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, k store.Key) (store.Record, error) {
	return s.get(ctx, k, true)
}

// Meta implements [store.Store].
func (s *Store) Meta(ctx context.Context, k store.Key) (store.Meta, error) {
	r, err := s.get(ctx, k, false)
	return r.Meta, err
}

func (s *Store) get(ctx context.Context, k store.Key, payloads bool) (r store.Record, err error) {
	err = s.read(ctx, func() error {
		var found bool
		err := s.query(ctx, func(rows pgx.Rows) error {
			var sealed, spec, status []byte
			if found = rows.Next(); !found {
				return rows.Err()
			}
			if err := rows.Scan(&sealed, &spec, &status); err != nil {
				return err
			}
			m, err := metaOf(k.DataType.String(), k, sealed)
			if err != nil {
				return err
			}
			r.Meta = *m
			return errors.Join(payloadOf(value.Spec, k, spec, &r.Spec), payloadOf(value.Status, k, status, &r.Status))
		}, selectRecord, k.DataType.String(), k.Cluster, k.ResourceID, payloads)
		if err == nil && !found {
			err = store.ErrNotFound
		}
		return err
	})
	if err != nil {
		return store.Record{}, err
	}
	return r, nil
}

// payloadOf sets event to the payload in a sealed value, nil if there is none.
func payloadOf(kind byte, k store.Key, sealed []byte, event *[]byte) (err error) {
	if sealed == nil {
		return nil
	}
	*event, err = value.Unseal(value.Key(kind, k), sealed)
	return err
}

// Scan implements [store.Store].
func (s *Store) Scan(ctx context.Context, scope store.Scope, f func(store.Meta) error) error {
	return s.scan(ctx, scope, "", f)
}

// ScanAfter implements [store.Store].
func (s *Store) ScanAfter(ctx context.Context, scope store.Scope, id string, f func(store.Meta) error) error {
	return s.scan(ctx, scope, id, f)
}

func (s *Store) scan(ctx context.Context, scope store.Scope, after string, f func(store.Meta) error) error {
	sql := "SELECT " + recordColumns + " FROM hawser.record r WHERE r.data_type = $1"
	args := []any{scope.DataType.String()}
	where := func(condition, arg string) {
		args = append(args, arg)
		sql += fmt.Sprintf(" AND %s $%d", condition, len(args))
	}
	if scope.Cluster != "" {
		where("r.cluster =", scope.Cluster)
	}
	if scope.Owner != "" {
		where("r.owner =", scope.Owner)
	}
	if after != "" {
		where("r.resource_id >", after)
	}
	sql += " ORDER BY r.cluster, r.resource_id"
	return s.read(ctx, func() error {
		return s.each(ctx, func(m *store.Meta) error { return f(*m) }, sql, args...)
	})
}

// The changes in a scope have no index of their own, because each commit would have to write it. The memory has
// their revisions, and the change feed leads from each revision to its record.

const selectAt = `SELECT ` + recordColumns + ` FROM unnest($1::bigint[]) WITH ORDINALITY AS at (revision, n)
	JOIN hawser.change c USING (revision) JOIN hawser.record r USING (data_type, cluster, resource_id) ORDER BY at.n`

// eachAt calls f for the records that have one of these revisions. A record that changed after the revisions were
// collected has a higher one, and is left out: its change follows in the feed.
func (s *Store) eachAt(ctx context.Context, look func(*memindex.Summary) []uint64, f func(*store.Meta) error) error {
	return s.read(ctx, func() error {
		revisions := s.revisions(look)
		if len(revisions) == 0 {
			return ctx.Err()
		}
		return s.each(ctx, f, selectAt, revisions)
	})
}

// Since implements [store.Store].
func (s *Store) Since(ctx context.Context, scope store.Scope, part store.Part, after uint64, f func(store.Meta) error) error {
	if err := store.CheckSince(scope, part); err != nil {
		return err
	}
	return s.eachAt(ctx, func(t *memindex.Summary) []uint64 { return t.Since(scope, part, after) }, func(m *store.Meta) error {
		if scope.Cluster != "" && m.Cluster != scope.Cluster || scope.Owner != "" && m.Owner != scope.Owner {
			return nil
		}
		return f(*m)
	})
}

// Tombstones implements [store.Store].
func (s *Store) Tombstones(ctx context.Context, dt codec.DataType, cluster string, f func(store.Meta) error) error {
	look := func(t *memindex.Summary) []uint64 { return t.Tombstones(dt, cluster) }
	return s.eachAt(ctx, look, func(m *store.Meta) error { return f(*m) })
}

// ConfirmedTombstones implements [store.Store].
func (s *Store) ConfirmedTombstones(ctx context.Context, dt codec.DataType, owner string, upTo uint64, limit int) ([]store.Key, error) {
	var keys []store.Key
	look := func(t *memindex.Summary) []uint64 { return t.ConfirmedTombstones(dt, owner, upTo, max(limit, 1)) }
	err := s.eachAt(ctx, look, func(m *store.Meta) error {
		keys = append(keys, m.Key)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// Changes implements [store.Store]. A reader near the head is served from memory. A reader that is behind reads the
// feed in the database until it is near the head.
func (s *Store) Changes(ctx context.Context, after uint64, limit int) (out []store.Change, err error) {
	limit = max(limit, 1)
	for {
		var wait <-chan struct{}
		err := s.read(ctx, func() error {
			var first uint64
			s.mu.RLock()
			first, wait = s.ring.First, s.commits
			out = s.ring.ChangesFrom(max(after+1, first), limit)
			s.mu.RUnlock()
			if after+1 >= first {
				return nil
			}
			earlier, err := s.replay(ctx, after, first, limit)
			out = slices.Concat(earlier, out)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(out) > 0 {
			return out[:min(limit, len(out))], nil
		}
		if err := s.calls.Wait(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// selectChanges reads the entries of the feed between two revisions, both excluded, of records, bookmarks and removals.
// Each row repeats up to where removals were deleted; without entries there is one row.
const selectChanges = `SELECT s.compacted, c.* FROM hawser.store s LEFT JOIN (
	(SELECT revision, part, state, data_type, cluster, resource_id, owner, NULL::bytea AS name, NULL::bytea AS sealed
		FROM hawser.change WHERE revision > $1 AND revision < $2 ORDER BY revision LIMIT $3)
	UNION ALL
	(SELECT revision, 0, 0, '', '', '', '', name, bookmark FROM hawser.bookmark WHERE revision > $1 AND revision < $2 ORDER BY revision LIMIT $3)
	UNION ALL
	(SELECT revision, 0, 0, '', '', '', '', NULL, change FROM hawser.removal WHERE revision > $1 AND revision < $2 ORDER BY revision LIMIT $3)
) c ON true ORDER BY c.revision LIMIT $3`

// replay reads the changes between two revisions, both excluded.
func (s *Store) replay(ctx context.Context, after, before uint64, limit int) (out []store.Change, err error) {
	err = s.query(ctx, func(rows pgx.Rows) error {
		out = nil
		for rows.Next() {
			var r feedRow
			if err := rows.Scan(&r.compacted, &r.revision, &r.part, &r.state, &r.dataType, &r.cluster, &r.id, &r.owner, &r.name, &r.sealed); err != nil {
				return err
			}
			if after != 0 && after < uint64(r.compacted) {
				return store.ErrCompacted
			}
			if r.revision == nil {
				continue
			}
			c, err := r.change()
			if err != nil {
				return err
			}
			out = append(out, c)
		}
		return rows.Err()
	}, selectChanges, signedRevision(after), signedRevision(before), limit)
	return out, err
}

// feedRow is a row of selectChanges. All fields but compacted may be null.
type feedRow struct {
	compacted                    int64
	revision                     *int64
	part, state                  *int16
	dataType, cluster, id, owner *string
	name, sealed                 []byte
}

// change returns the entry of a row that has one.
func (r *feedRow) change() (c store.Change, err error) {
	revision := uint64(*r.revision)
	switch {
	case r.name != nil:
		b, err := bookmarkOf(string(r.name), r.sealed)
		key := store.Key{ResourceID: string(r.name)}
		return store.Change{Revision: revision, Key: key, Part: store.BookmarkPart, State: store.Live, Value: b.Value}, err
	case r.sealed != nil:
		key := value.NumberKey(value.Removal, revision)
		body, err := value.Unseal(key, r.sealed)
		if err != nil {
			return c, err
		}
		return value.DecodeChange(key, body)
	}
	c = store.Change{
		Revision: revision, Key: store.Key{Cluster: *r.cluster, ResourceID: *r.id}, Owner: *r.owner, Part: store.Part(*r.part), State: store.State(*r.state),
	}
	c.Key.DataType, err = dataTypeOf(*r.dataType)
	return c, err
}
