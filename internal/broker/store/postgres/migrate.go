package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/storecopy"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

// Diagnoses of a database that a migration or a check cannot use.
var (
	inUse = diagnosis{Busy, "brokers use it, or another migration", "Stop them. A broker that was killed counts for " + replicaExpires}
	empty = diagnosis{Unsuitable, "it has no store", "Check the name of the database; a broker with --store-engine=postgres creates its store"}
	// half is also the diagnosis of a broker.
	half = diagnosis{
		Unsuitable, "a migration into it has not ended",
		"Run the same hawser store migrate again, or begin again: DROP SCHEMA hawser CASCADE",
	}
	pooled = diagnosis{Unsuitable, "a pooler is between this program and the server", "Name the server itself: a migration holds a lock for its session"}
)

// setUnlimited sets no limit on what a migration reads and writes, in a transaction or in a session. Only its locks must
// not wait.
const setUnlimited = `SELECT set_config('statement_timeout', '0', $1), set_config('idle_in_transaction_session_timeout', '0', $1),
	set_config('lock_timeout', '5s', $1),
	CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', $1) END`

// session is a connection of a migration or a check.
type session struct {
	conn   *pgx.Conn
	target target
}

func openSession(ctx context.Context, o *Options) (s *session, facts server, err error) {
	c, err := o.poolConfig()
	if err != nil {
		return nil, facts, err
	}
	s = &session{target: targetOf(&c.ConnConfig.Config)}
	if s.conn, facts, err = o.connect(ctx, c.ConnConfig, s.target); err != nil {
		return nil, facts, s.target.failure(err)
	}
	return s, facts, nil
}

// lock keeps brokers from committing, until the session is closed. No broker may use the database.
func (s *session) lock(ctx context.Context, facts server) error {
	if facts.isPooled {
		return s.target.describe(pooled, nil)
	}
	if _, err := s.conn.Exec(ctx, setUnlimited, false); err != nil {
		return err
	}
	// The session of a program that was killed keeps its lock for a moment, so this waits.
	if _, err := s.conn.Exec(ctx, "SELECT pg_advisory_lock($1)", commitLock); err != nil {
		if diagnose(err).kind == Busy {
			return s.target.describe(inUse, err)
		}
		return err
	}
	var replicas int
	err := s.conn.QueryRow(ctx, "SELECT count(*) FROM hawser.replica WHERE seen >= now() - $1::interval", replicaExpires).Scan(&replicas)
	if err == nil && replicas > 0 {
		return s.target.describe(inUse, nil)
	}
	return err
}

// close closes the connection after an error, and returns the error as callers get it.
func (s *session) close(err error) error {
	return errors.Join(s.target.failure(err), s.conn.Close(context.Background()))
}

// Close releases the database.
func (s *session) Close() error { return s.close(nil) }

// Source is a store that a migration or a check reads. It implements [storecopy.Source].
type Source struct {
	*session
	tx   pgx.Tx // one snapshot
	head store.Head
}

// OpenSource keeps brokers from committing to the store of a database that none of them uses. Errors are those of [Open].
// The caller must call Close.
func OpenSource(ctx context.Context, o Options) (*Source, error) { return openSource(ctx, &o, true) }

// OpenSnapshot returns the store as of now; brokers may continue. Errors are those of [Open]. The caller must call Close.
func OpenSnapshot(ctx context.Context, o Options) (*Source, error) { return openSource(ctx, &o, false) }

func openSource(ctx context.Context, o *Options, alone bool) (*Source, error) {
	session, facts, err := openSession(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &Source{session: session}
	err = s.checkTables(ctx)
	if err == nil && alone {
		err = s.lock(ctx, facts)
	}
	if err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		return nil, s.close(err)
	}
	return s, nil
}

// checkTables returns an error unless there are tables of this release. A copy of newer ones may be incomplete.
func (s *Source) checkTables(ctx context.Context) error {
	version, oldest, err := schemaVersion(ctx, s.conn)
	switch {
	case err == nil && version == 0:
		return s.target.describe(empty, nil)
	case err == nil && version > len(migrations):
		return &SchemaError{Version: version, Oldest: oldest, Ours: len(migrations)}
	}
	return err
}

// begin takes the snapshot.
func (s *Source) begin(ctx context.Context) (err error) {
	if s.tx, err = s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}); err != nil {
		return err
	}
	if _, err := s.tx.Exec(ctx, setUnlimited, true); err != nil {
		return err
	}
	var revision int64
	err = s.tx.QueryRow(ctx, `SELECT id, (SELECT head FROM hawser.log ORDER BY number DESC LIMIT 1),
		(SELECT id FROM hawser.incarnation ORDER BY number DESC LIMIT 1) FROM hawser.store`).Scan(&s.head.StoreID, &revision, &s.head.Incarnation)
	s.head.Revision = uint64(revision)
	if errors.Is(err, pgx.ErrNoRows) {
		return s.target.describe(half, nil)
	}
	return err
}

// Head implements [storecopy.Source].
func (s *Source) Head() store.Head { return s.head }

// Values implements [storecopy.Reader]. It also compares each record with its columns and with the head.
func (s *Source) Values(ctx context.Context, f func(value.Stored) error) error {
	return s.values(ctx, s.tx, s.head.Revision, f)
}

// Check reads all values, and compares the change feed with the records.
func (s *Source) Check(ctx context.Context) (storecopy.Content, error) {
	c, err := storecopy.ContentOf(ctx, s)
	if err == nil {
		err = s.target.failure(s.checkFeed(ctx))
	}
	return c, err
}

// checkFeed compares the entries of the change feed with the records, in both directions.
func (s *Source) checkFeed(ctx context.Context) error {
	var needed, found []uint64
	err := loadRows(ctx, s.tx, "SELECT "+recordColumns+" FROM hawser.record r", func(row pgx.CollectableRow) error {
		m, _, err := scanRecord(row)
		if err == nil {
			spec, status := store.Entries(m)
			needed = append(needed, spec, status)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = loadRows(ctx, s.tx, "SELECT revision FROM hawser.change ORDER BY revision", func(row pgx.CollectableRow) error {
		var revision int64
		err := row.Scan(&revision)
		found = append(found, uint64(revision))
		return err
	})
	if err != nil {
		return err
	}
	needed = slices.DeleteFunc(needed, func(revision uint64) bool { return revision == 0 })
	slices.Sort(needed)
	for i := range max(len(needed), len(found)) {
		switch {
		case i == len(found) || i < len(needed) && needed[i] < found[i]:
			return value.Damage(value.NumberKey(value.Revision, needed[i]), "it is missing, and a record must have it")
		case i == len(needed) || needed[i] > found[i]:
			return value.Damage(value.NumberKey(value.Revision, found[i]), "it belongs to no record")
		}
	}
	return nil
}

// values calls f for each value that a migration copies. No revision may be above the head.
func (s *session) values(ctx context.Context, tx pgx.Tx, head uint64, f func(value.Stored) error) error {
	var failed error // of f, which may be about another store
	call := func(v value.Stored) error {
		failed = f(v)
		return failed
	}
	reads := []struct {
		sql  string
		read func(pgx.CollectableRow) (value.Stored, error)
	}{
		{"SELECT number, id, first FROM hawser.incarnation ORDER BY number", readIncarnation},
		{"SELECT name, bookmark FROM hawser.bookmark ORDER BY name", readBookmark},
		{"SELECT data_type, cluster, resource_id, owner, name, queued_id, queued_name, meta FROM hawser.record ORDER BY data_type, cluster, resource_id",
			func(row pgx.CollectableRow) (value.Stored, error) { return readRecord(row, head) }},
		{"SELECT data_type, cluster, resource_id, kind, event FROM hawser.payload ORDER BY data_type, cluster, resource_id, kind", readPayload},
	}
	for _, r := range reads {
		err := loadRows(ctx, tx, r.sql, func(row pgx.CollectableRow) error {
			v, err := r.read(row)
			if err != nil {
				return err
			}
			return call(v)
		})
		if err != nil {
			return cmp.Or(failed, s.target.failure(err))
		}
	}
	return nil
}

func readIncarnation(row pgx.CollectableRow) (v value.Stored, err error) {
	var number, first int64
	var i memindex.Incarnation
	err = row.Scan(&number, &i.ID, &first)
	i.First = uint64(first)
	v.Key = value.NumberKey(value.Incarnation, uint64(number))
	v.Value = value.Seal(v.Key, value.EncodeIncarnation(i))
	return v, err
}

func readBookmark(row pgx.CollectableRow) (v value.Stored, err error) {
	var name []byte
	err = row.Scan(&name, &v.Value)
	v.Key = value.BookmarkKey(string(name))
	return v, err
}

func readRecord(row pgx.CollectableRow, head uint64) (v value.Stored, err error) {
	var dataType string
	var k store.Key
	var is recordIndex
	if err := row.Scan(&dataType, &k.Cluster, &k.ResourceID, &is.owner, &is.name, &is.queuedID, &is.queuedName, &v.Value); err != nil {
		return v, err
	}
	m, err := metaOf(dataType, k, v.Value)
	if err != nil {
		return v, err
	}
	v.Key = value.Key(value.Meta, m.Key)
	switch highest := max(m.SpecRevision, m.StatusRevision); {
	case highest > head:
		err = value.Damage(v.Key, fmt.Sprintf("its revision %d is above the head %d", highest, head))
	case !is.equal(indexOf(m)):
		err = value.Damage(v.Key, "its row has another owner, or other names, than the record")
	}
	return v, err
}

func readPayload(row pgx.CollectableRow) (v value.Stored, err error) {
	var dataType, kind string
	var k store.Key
	if err = row.Scan(&dataType, &k.Cluster, &k.ResourceID, &kind, &v.Value); err != nil {
		return v, err
	}
	k.DataType, err = dataTypeOf(dataType)
	v.Key = value.Key(kind[0], k)
	return v, err
}

// recordIndex has the columns by which a record is found; nil is null.
type recordIndex struct {
	owner                      string
	name, queuedID, queuedName *string
}

func indexOf(m *store.Meta) recordIndex {
	text := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	names := append(store.ReservedNames(m), "", "")
	return recordIndex{owner: m.Owner, name: text(names[0]), queuedID: text(store.QueuedID(m)), queuedName: text(names[1])}
}

func (i recordIndex) equal(o recordIndex) bool {
	same := func(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
	return i.owner == o.owner && same(i.name, o.name) && same(i.queuedID, o.queuedID) && same(i.queuedName, o.queuedName)
}

// Target is a database that a migration fills. It implements [storecopy.Target].
type Target struct{ *session }

// OpenTarget creates the tables in a database, and keeps brokers from committing to it. Errors are those of [Open]. The
// caller must call Close.
func OpenTarget(ctx context.Context, o Options) (*Target, error) {
	session, facts, err := openSession(ctx, &o)
	if err != nil {
		return nil, err
	}
	if err = migrate(ctx, session.conn, migrations); err == nil {
		err = session.lock(ctx, facts)
	}
	if err != nil {
		return nil, session.close(err)
	}
	return &Target{session}, nil
}

// Begin implements [storecopy.Target]. The table hawser.migration exists while the copy is incomplete.
func (t *Target) Begin(ctx context.Context, of store.Head) (last []byte, err error) {
	last, err = t.begin(ctx, storecopy.Mark(of))
	return last, t.target.failure(err)
}

func (t *Target) begin(ctx context.Context, mark string) (last []byte, err error) {
	var id string
	switch err := t.conn.QueryRow(ctx, "SELECT id FROM hawser.store").Scan(&id); {
	case err == nil:
		return nil, fmt.Errorf("%w: database %q has the store %s", storecopy.ErrNotEmpty, t.target.database, id)
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, err
	}
	isHalf, err := hasMigration(ctx, t.conn)
	if err != nil {
		return nil, err
	}
	if !isHalf {
		return nil, pgx.BeginFunc(ctx, t.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "CREATE TABLE hawser.migration (mark text NOT NULL, last bytea)"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO hawser.migration (mark) VALUES ($1)", mark)
			return err
		})
	}
	var of string
	if err := t.conn.QueryRow(ctx, "SELECT mark, last FROM hawser.migration").Scan(&of, &last); err != nil {
		return nil, err
	}
	if of != mark {
		return nil, fmt.Errorf("%w: begin again with DROP SCHEMA hawser CASCADE in database %q", storecopy.ErrOther, t.target.database)
	}
	return last, nil
}

// hasMigration reports whether the database has an incomplete copy.
func hasMigration(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (is bool, err error) {
	err = q.QueryRow(ctx, "SELECT to_regclass('hawser.migration') IS NOT NULL").Scan(&is)
	return is, err
}

// Values implements [storecopy.Reader].
func (t *Target) Values(ctx context.Context, f func(value.Stored) error) error {
	tx, err := t.conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return t.target.failure(err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // it has read only
	return t.values(ctx, tx, 1<<63, f)
}

// Write implements [storecopy.Target].
func (t *Target) Write(ctx context.Context, list []value.Stored) error {
	tables, err := tablesOf(list)
	if err != nil {
		return err
	}
	return t.target.failure(pgx.BeginFunc(ctx, t.conn, func(tx pgx.Tx) error {
		for i, rows := range tables {
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{"hawser", copied[i].table}, copied[i].columns, pgx.CopyFromRows(rows)); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "UPDATE hawser.migration SET last = $1", list[len(list)-1].Key)
		return err
	}))
}

// copied lists the tables that a migration fills.
var copied = [...]struct {
	table   string
	columns []string
}{
	{"incarnation", []string{"number", "id", "first", "database"}},
	{"bookmark", []string{"name", "revision", "bookmark"}},
	{"record", []string{"data_type", "cluster", "resource_id", "owner", "name", "queued_id", "queued_name", "meta"}},
	{"change", []string{"revision", "part", "state", "data_type", "cluster", "resource_id", "owner"}},
	{"payload", []string{"data_type", "cluster", "resource_id", "kind", "event"}},
}

// tablesOf returns the rows of values, one list per table of copied.
func tablesOf(list []value.Stored) (rows [len(copied)][][]any, err error) {
	add := func(table int, row ...any) { rows[table] = append(rows[table], row) }
	for _, v := range list {
		body, err := value.Unseal(v.Key, v.Value)
		if err != nil {
			return rows, err
		}
		switch v.Key[0] {
		case value.Incarnation:
			err = addIncarnation(v.Key, body, add)
		case value.Bookmark:
			var b store.Bookmark
			if b, err = value.DecodeBookmark(v.Key, body); err == nil {
				add(1, v.Key[1:], int64(b.Revision), v.Value)
			}
		case value.Meta:
			err = addRecord(v, body, add)
		default:
			var k store.Key
			if k, err = value.ParseKey(v.Key); err == nil {
				add(4, k.DataType.String(), k.Cluster, k.ResourceID, string(v.Key[:1]), v.Value)
			}
		}
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// addIncarnation adds an incarnation of no database, so that the first commit of a broker begins the next one.
func addIncarnation(key, body []byte, add func(int, ...any)) error {
	number, err := value.ParseNumberKey(key)
	if err != nil {
		return err
	}
	i, err := value.DecodeIncarnation(key, body)
	if err == nil {
		add(0, int64(number), i.ID, int64(i.First), "")
	}
	return err
}

// addRecord adds a record and its entries in the change feed.
func addRecord(v value.Stored, body []byte, add func(int, ...any)) error {
	m, err := value.ParseMeta(v.Key, body)
	if err != nil {
		return err
	}
	i, dataType := indexOf(m), m.DataType.String()
	add(2, dataType, m.Cluster, m.ResourceID, i.owner, i.name, i.queuedID, i.queuedName, v.Value)
	spec, status := store.Entries(m)
	for part, revision := range map[store.Part]uint64{store.SpecPart: spec, store.StatusPart: status} {
		if revision != 0 {
			add(3, int64(revision), int16(part), int16(m.State), dataType, m.Cluster, m.ResourceID, m.Owner)
		}
	}
	return nil
}

// Finish implements [storecopy.Target]. The log begins at the head, with a token of its own: a broker that hangs since
// before another migration into the same database must find another history.
func (t *Target) Finish(ctx context.Context, of store.Head) error {
	err := pgx.BeginFunc(ctx, t.conn, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue("INSERT INTO hawser.store (id, compacted) VALUES ($1, $2)", of.StoreID, int64(of.Revision))
		b.Queue("INSERT INTO hawser.log (number, token, head, entries) VALUES (0, $1, $2, $3)",
			int64(1+rand.Uint64()>>2), int64(of.Revision), value.Seal(logKey(0), nil))
		b.Queue("DROP TABLE hawser.migration")
		b.Queue("ANALYZE hawser.record, hawser.change, hawser.payload, hawser.bookmark")
		return tx.SendBatch(ctx, b).Close()
	})
	return t.target.failure(err)
}
