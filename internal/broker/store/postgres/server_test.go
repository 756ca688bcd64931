package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/internal/cli"
	local "github.com/hawser-io/hawser/internal/local/postgres"
)

const root = "../../../.."

// shared is the server of all tests that need no server of their own. It does not sync: these tests crash nothing.
var shared = struct {
	sync.Once
	server *local.Server
	dir    string
	err    error
}{}

func TestMain(m *testing.M) {
	if os.Getenv(runAsHawser) != "" {
		os.Exit(cli.Main(context.Background(), cli.Env{Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now}, os.Args[1:]))
	}
	code := m.Run()
	if shared.server != nil {
		if err := errors.Join(shared.server.Stop(), os.RemoveAll(shared.dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func sharedServer(t testing.TB) *local.Server {
	t.Helper()
	shared.Do(func() {
		ctx := context.Background()
		if shared.dir, shared.err = os.MkdirTemp("", "hawser-postgres-*"); shared.err != nil {
			return
		}
		shared.server, shared.err = create(ctx, filepath.Join(shared.dir, "shared"), map[string]string{"fsync": "off", "max_connections": "300"})
		if shared.err == nil {
			shared.err = shared.server.Start(ctx)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

func create(ctx context.Context, dir string, settings map[string]string) (*local.Server, error) {
	programs, err := local.Fetch(ctx, root, nil)
	if err != nil {
		return nil, err
	}
	return local.Create(ctx, local.Config{Programs: programs, Dir: dir, Settings: settings})
}

// start starts a server of its own, which is stopped at the end of the test.
func start(t testing.TB, settings map[string]string) *local.Server {
	t.Helper()
	s, err := create(t.Context(), filepath.Join(t.TempDir(), "primary"), settings)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	return s
}

// run starts a server, and stops it at the end of the test.
func run(t testing.TB, s *local.Server) {
	t.Helper()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func execute(t testing.TB, s *local.Server, database string, statements ...string) {
	t.Helper()
	if err := s.Exec(t.Context(), database, statements...); err != nil {
		t.Fatal(err)
	}
}

var databases atomic.Int64

// newDatabase creates a database and returns its name.
func newDatabase(t testing.TB, s *local.Server) string {
	t.Helper()
	name := fmt.Sprintf("test%d", databases.Add(1))
	execute(t, s, local.Superuser, "CREATE DATABASE "+name+" TEMPLATE template0")
	return name
}

// open opens a store, and closes it at the end of the test.
func open(t testing.TB, o postgres.Options) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
			t.Error(err)
		}
	})
	return s
}

// TestStore runs the contract suite. The suite expects another incarnation at each opening, as after a restart of the
// server. site makes the recorded identity of the database look like that of an earlier start.
func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Site {
		s := sharedServer(t)
		return site(t, s, newDatabase(t, s), s.URL)
	})
}

const restarted = `DO $$ BEGIN
	IF to_regclass('hawser.incarnation') IS NOT NULL THEN
		UPDATE hawser.incarnation SET database = 'before a restart';
	END IF;
END $$`

func site(t *testing.T, s *local.Server, database string, url func(string) string) storetest.Site {
	return storetest.Site{
		Open: func() (store.Store, error) {
			if err := s.Exec(context.Background(), database, restarted); err != nil {
				return nil, err
			}
			st, err := postgres.Open(context.Background(), postgres.Options{URL: url(database)})
			if err != nil {
				return nil, err
			}
			return st, nil
		},
		Copy: func() storetest.Site {
			name := fmt.Sprintf("test%d", databases.Add(1))
			if err := s.Exec(context.Background(), local.Superuser, "CREATE DATABASE "+name+" TEMPLATE "+database); err != nil {
				panic(err)
			}
			return site(t, s, name, url)
		},
	}
}
