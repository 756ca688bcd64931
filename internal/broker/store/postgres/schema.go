package postgres

import (
	"context"
	_ "embed" // the migrations
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A migration changes the tables from the version before to its own. Brokers of the version before run while it is
// executed, and after it until all are upgraded. So it adds what they ignore, and removes nothing that they need.
type migration struct {
	sql string
	// oldest is the lowest version of a broker that can use the tables after the migration.
	oldest int
}

//go:embed schema1.sql
var schema1 string

// migrations are in order; the first one makes version 1.
var migrations = []migration{{sql: schema1, oldest: 1}}

// versions creates the table of versions. CREATE SCHEMA needs a right on the database even if the schema exists,
// and an administrator may have created it for a user without that right.
const versions = `DO $$ BEGIN
	IF to_regnamespace('hawser') IS NULL THEN
		CREATE SCHEMA hawser;
	END IF;
END $$;
CREATE TABLE IF NOT EXISTS hawser.schema (version int PRIMARY KEY, oldest int NOT NULL);`

// SchemaError is the error about tables that a newer release has migrated.
type SchemaError struct {
	Version int // of the tables
	Oldest  int // version of the oldest release that can use them
	Ours    int // version of this release
}

// Error names the versions and the remedy.
func (e *SchemaError) Error() string {
	return fmt.Sprintf("store: the tables have version %d, which releases from version %d on can use; this release has version %d. "+
		"Run a newer release, or restore a backup from before the upgrade", e.Version, e.Oldest, e.Ours)
}

// schemaLock is the advisory lock of migrations, commitLock that of commits. Advisory locks belong to one database.
const (
	commitLock int64 = 0x6861777365720001 // "hawser", 1
	schemaLock int64 = 0x6861777365720002
)

// migrate brings the tables to the version of steps, each step in a transaction of its own. Tables of a newer
// release stay as they are, if that release allows it.
func migrate(ctx context.Context, conn *pgx.Conn, steps []migration) error {
	for {
		done, err := migrateOnce(ctx, conn, steps)
		if err != nil || done {
			return err
		}
	}
}

// readCommitted is the level of a transaction in which a statement after a lock must see what was committed before it.
// The default of a database can be another one.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// migrateOnce executes the next step. It returns true if there is none.
func migrateOnce(ctx context.Context, conn *pgx.Conn, steps []migration) (done bool, err error) {
	version, oldest, err := schemaVersion(ctx, conn)
	switch {
	case err != nil:
		return false, err
	case version > len(steps) && oldest > len(steps):
		return false, &SchemaError{Version: version, Oldest: oldest, Ours: len(steps)}
	case version >= len(steps):
		return true, nil
	}
	tx, err := conn.BeginTx(ctx, readCommitted)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit it does nothing
	// A waiting ALTER TABLE makes all later statements on the table wait, so it does not wait for long.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1), set_config('lock_timeout', '5s', true)", schemaLock); err != nil {
		return false, err
	}
	// Another replica may have migrated in between, and then this statement does nothing.
	if _, err := conn.PgConn().Exec(ctx, versions).ReadAll(); err != nil {
		return false, err
	}
	next := steps[version]
	tag, err := tx.Exec(ctx, "INSERT INTO hawser.schema VALUES ($1, $2) ON CONFLICT DO NOTHING", version+1, next.oldest)
	if err != nil {
		return false, err
	}
	if tag.RowsAffected() == 1 {
		if _, err := conn.PgConn().Exec(ctx, next.sql).ReadAll(); err != nil {
			return false, fmt.Errorf("migrate the tables to version %d: %w", version+1, err)
		}
	}
	return false, tx.Commit(ctx)
}

// schemaVersion returns the version of the tables, 0 if there are none.
func schemaVersion(ctx context.Context, conn *pgx.Conn) (version, oldest int, err error) {
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('hawser.schema') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return 0, 0, err
	}
	err = conn.QueryRow(ctx, "SELECT version, oldest FROM hawser.schema ORDER BY version DESC LIMIT 1").Scan(&version, &oldest)
	return version, oldest, err
}
