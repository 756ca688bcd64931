package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// CommitBegin are the first statements of a commit.
var CommitBegin = []string{
	"BEGIN ISOLATION LEVEL READ COMMITTED",
	fmt.Sprintf("SELECT set_config('idle_in_transaction_session_timeout', '%s', true)", millis(idleTimeout)),
	fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", commitLock),
}

// Cut reports the position of a replica and cuts the log, as each heartbeat does.
func (s *Store) Cut(ctx context.Context) error { return s.cut(ctx) }

// Look looks at the settings of the server, as each heartbeat does.
func (s *Store) Look(ctx context.Context) error { return s.lookAtSettings(ctx) }

// Migrate migrates to the tables of this release and, after them, by more steps: statements, each with the oldest
// version that can use the tables after it.
func Migrate(ctx context.Context, conn *pgx.Conn, more ...Step) error {
	steps := slices.Clone(migrations)
	for _, m := range more {
		steps = append(steps, migration{sql: m.SQL, oldest: m.Oldest})
	}
	return migrate(ctx, conn, steps)
}

// Step is a later migration.
type Step struct {
	SQL    string
	Oldest int
}

// HangCommits lets commits of the replica hang until the returned function is called, maybe several times.
func (s *Store) HangCommits() func() {
	s.commit.Lock()
	return sync.OnceFunc(s.commit.Unlock)
}

// CommitLocked is Commit for a caller that holds the lock of commits.
func (s *Store) CommitLocked(ctx context.Context, op store.Op) error {
	return s.updateLocked(ctx, []store.Op{op}, func(t *transaction) error {
		_, err := t.do(&op)
		return err
	})
}
