package postgres_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	local "github.com/hawser-io/hawser/internal/local/postgres"
)

func migrate(t *testing.T, s *local.Server, database string, more ...postgres.Step) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }() // the migration is committed or not
	return postgres.Migrate(t.Context(), conn, more...)
}

// TestMigrate_Online: a newer release migrates while a broker of this release runs, and this release can also be
// started again after it.
func TestMigrate_Online(t *testing.T) {
	t.Parallel()
	s, database, r := replicas(t, 1)
	put(t, r[0], 1)
	if err := migrate(t, s, database, postgres.Step{SQL: "ALTER TABLE hawser.record ADD later text; CREATE TABLE hawser.later (a int)", Oldest: 1}); err != nil {
		t.Fatal(err)
	}
	put(t, r[0], 2)
	put(t, open(t, postgres.Options{URL: s.URL(database)}), 3)
	second := postgres.Step{SQL: "SELECT 1", Oldest: 2}
	if err := migrate(t, s, database, second, postgres.Step{SQL: "SELECT 1", Oldest: 3}); err != nil {
		t.Fatal(err)
	}
	var schema *postgres.SchemaError
	if err := migrate(t, s, database); !errors.As(err, &schema) || schema.Version != 3 || schema.Ours != 1 {
		t.Errorf("two releases back: %v", err)
	}
}

// TestMigrate_Concurrently: several replicas that start at once migrate once.
func TestMigrate_Concurrently(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	database := newDatabase(t, s)
	var migrations sync.WaitGroup
	for range 4 {
		migrations.Go(func() {
			if err := migrate(t, s, database, postgres.Step{SQL: "CREATE TABLE hawser.later (a int)", Oldest: 1}); err != nil {
				t.Error(err)
			}
		})
	}
	migrations.Wait()
}

// TestMigrate_FailedStep: a step that fails changes nothing, and is executed again.
func TestMigrate_FailedStep(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	database := newDatabase(t, s)
	if err := migrate(t, s, database, postgres.Step{SQL: "CREATE TABLE hawser.later (a int); SELECT 1/0", Oldest: 1}); err == nil {
		t.Fatal("no error")
	}
	if err := migrate(t, s, database, postgres.Step{SQL: "CREATE TABLE hawser.later (a int)", Oldest: 1}); err != nil {
		t.Error(err)
	}
}
