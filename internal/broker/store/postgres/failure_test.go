package postgres_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	local "github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/internal/pki"
)

// fails opens a store, which must fail, and returns the failure. Its text names the target and the remedy.
func fails(t *testing.T, o postgres.Options, kind postgres.Kind, texts ...string) {
	t.Helper()
	s, err := postgres.Open(t.Context(), o)
	if err == nil {
		t.Fatal(s.Close(), "the store was opened")
	}
	wantFailure(t, err, kind, texts...)
}

func wantFailure(t *testing.T, err error, kind postgres.Kind, texts ...string) {
	t.Helper()
	var f *postgres.DatabaseError
	if !errors.As(err, &f) {
		t.Fatalf("not a failure: %v", err)
	}
	if f.Kind != kind || f.Remedy == "" || f.Host == "" || f.User == "" || f.Database == "" {
		t.Errorf("kind %q and remedy %q, want kind %q: %v", f.Kind, f.Remedy, kind, err)
	}
	for _, text := range append(texts, f.Host, f.Database, f.User) {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q lacks %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has several lines", err)
	}
}

// TestOpen_Failures: each failure names the target, the problem and the remedy.
func TestOpen_Failures(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	database := newDatabase(t, s)
	execute(t, s, local.Superuser, "CREATE ROLE weak LOGIN PASSWORD 'weak'", "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
		"CREATE DATABASE readonly TEMPLATE template0", "ALTER DATABASE readonly SET default_transaction_read_only = on")
	t.Run("unreachable", func(t *testing.T) {
		fails(t, postgres.Options{URL: local.URL("127.0.0.1:1", "u", "p", "d")}, postgres.Unreachable, "cannot be reached", "network")
	})
	t.Run("wrong password", func(t *testing.T) {
		fails(t, postgres.Options{URL: local.URL(s.Addr(), "weak", "wrong", database)}, postgres.Rejected, "password is wrong", `ALTER ROLE "weak"`)
	})
	t.Run("no password file", func(t *testing.T) {
		fails(t, postgres.Options{URL: s.URL(database), PasswordFile: filepath.Join(t.TempDir(), "none")}, postgres.Rejected, "password file", "none")
	})
	t.Run("no database", func(t *testing.T) {
		fails(t, postgres.Options{URL: s.URL("none")}, postgres.Rejected, "does not exist", `CREATE DATABASE "none"`)
	})
	t.Run("no right", func(t *testing.T) {
		fails(t, postgres.Options{URL: local.URL(s.Addr(), "weak", "weak", database)}, postgres.Forbidden, `CREATE SCHEMA hawser AUTHORIZATION "weak"`)
	})
	t.Run("wrong encoding", func(t *testing.T) {
		fails(t, postgres.Options{URL: s.URL("latin")}, postgres.Unsuitable, "LATIN1", `CREATE DATABASE "latin"`)
	})
	t.Run("read-only transactions", func(t *testing.T) {
		fails(t, postgres.Options{URL: s.URL("readonly")}, postgres.ReadOnly, "default_transaction_read_only")
	})
	t.Run("no TLS", func(t *testing.T) {
		fails(t, postgres.Options{URL: strings.TrimSuffix(s.URL(database), "?sslmode=disable")}, postgres.Untrusted, "no TLS", "sslmode")
	})
	t.Run("newer tables", func(t *testing.T) {
		newer := newDatabase(t, s)
		if err := open(t, postgres.Options{URL: s.URL(newer)}).Close(); err != nil {
			t.Fatal(err)
		}
		execute(t, s, newer, "INSERT INTO hawser.schema VALUES (98, 1)")
		if err := open(t, postgres.Options{URL: s.URL(newer)}).Close(); err != nil {
			t.Fatal(err)
		}
		execute(t, s, newer, "INSERT INTO hawser.schema VALUES (99, 98)")
		var schema *postgres.SchemaError
		if _, err := postgres.Open(t.Context(), postgres.Options{URL: s.URL(newer)}); !errors.As(err, &schema) || schema.Version != 99 || schema.Oldest != 98 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("not a connection string", func(t *testing.T) {
		if _, err := postgres.Open(t.Context(), postgres.Options{URL: "postgres://u:secret@h:port/d"}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v", err)
		}
	})
}

// TestOpen_PreparedSchema: a user without rights on the database can use a schema that was created for it.
func TestOpen_PreparedSchema(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	database := newDatabase(t, s)
	execute(t, s, database, "CREATE ROLE owner LOGIN PASSWORD 'owner'", "CREATE SCHEMA hawser AUTHORIZATION owner")
	put(t, open(t, postgres.Options{URL: local.URL(s.Addr(), "owner", "owner", database)}), 1, 2)
}

// TestPasswordFile_IsReadAtEachConnect: a new password needs no restart of the broker.
func TestPasswordFile_IsReadAtEachConnect(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	database := newDatabase(t, s)
	execute(t, s, database, "CREATE ROLE rotating LOGIN PASSWORD 'first'", "CREATE SCHEMA hawser AUTHORIZATION rotating")
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	st := open(t, postgres.Options{URL: local.URL(s.Addr(), "rotating", "", database), PasswordFile: file})
	put(t, st, 1)
	write("second")
	execute(t, s, database, "ALTER ROLE rotating PASSWORD 'second'",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotating'")
	put(t, st, 2)
}

// TestOpen_TLS: the certificate of the server is verified.
func TestOpen_TLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys, others := pki.Dir(filepath.Join(dir, "pki")), pki.Dir(filepath.Join(dir, "others"))
	for _, d := range []pki.Dir{keys, others} {
		if _, err := d.Init("test", pki.Starting(time.Now(), time.Hour), false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := keys.Issue(pki.Request{Role: pki.Broker, Name: "pg", Hosts: []string{"localhost"}, Valid: pki.Starting(time.Now(), time.Hour)}, false); err != nil {
		t.Fatal(err)
	}
	s := start(t, map[string]string{
		"ssl": "on", "ssl_cert_file": "'" + keys.Cert(pki.Broker, "pg") + "'", "ssl_key_file": "'" + keys.Key(pki.Broker, "pg") + "'",
	})
	verified := func(host, ca string) string {
		u := strings.Replace(s.URL(local.Superuser), "127.0.0.1", host, 1)
		return strings.Replace(u, "sslmode=disable", "sslrootcert="+url.QueryEscape(ca), 1)
	}
	put(t, open(t, postgres.Options{URL: verified("localhost", keys.CACert())}), 1)
	fails(t, postgres.Options{URL: verified("127.0.0.1", keys.CACert())}, postgres.Untrusted, "other host names")
	fails(t, postgres.Options{URL: verified("localhost", others.CACert())}, postgres.Untrusted, "unknown authority", "sslrootcert")
}

// TestOpen_Warnings: what can be lost is in the log.
func TestOpen_Warnings(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	database := newDatabase(t, s)
	execute(t, s, local.Superuser, "ALTER DATABASE "+database+" SET synchronous_commit = off")
	var log bytes.Buffer
	put(t, open(t, postgres.Options{URL: s.URL(database), Log: slog.New(slog.NewTextHandler(&log, nil))}), 1)
	for _, text := range []string{"fsync is off", "no standby is synchronous", "synchronous_commit is off"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("the log lacks %q:\n%s", text, &log)
		}
	}
	if strings.Contains(log.String(), "pooler") || strings.Contains(log.String(), "checksums") {
		t.Errorf("the log has needless warnings:\n%s", &log)
	}
}

// TestPooler: behind PgBouncer in transaction mode the store works without prepared statements and
// notifications.
func TestPooler(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	program, err := local.FetchPgBouncer(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, addr, err := s.Pool(t.Context(), program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Site {
			return site(t, s, newDatabase(t, s), func(database string) string { return local.URL(addr, local.Superuser, s.Password(), database) })
		})
	})
	database := newDatabase(t, s)
	_, err = postgres.OpenTarget(t.Context(), postgres.Options{URL: local.URL(addr, local.Superuser, s.Password(), database)})
	wantFailure(t, err, postgres.Unsuitable, "a pooler is between")
	var log bytes.Buffer
	o := postgres.Options{URL: local.URL(addr, local.Superuser, s.Password(), database), Log: slog.New(slog.NewTextHandler(&log, nil))}
	a, b := open(t, o), open(t, postgres.Options{URL: o.URL})
	if !strings.Contains(log.String(), "pooler") {
		t.Errorf("the log does not mention the pooler:\n%s", &log)
	}
	await(t, b, put(t, a, 1, 2).Revision)
	await(t, a, put(t, b, 3).Revision)
	r, err := a.Get(t.Context(), work(1, 1, nil).Key)
	if err != nil || string(r.Spec) != "version 3" {
		t.Errorf("got %q, %v", r.Spec, err)
	}
}

// TestErr_WhileServerIsDown: a store whose server is down reports it, and works again without a restart.
func TestErr_WhileServerIsDown(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	st := open(t, postgres.Options{URL: s.URL(local.Superuser)})
	put(t, st, 1)
	before := st.Head()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	_, err := st.Commit(t.Context(), []store.Op{work(1, 2, []byte("x"))})
	wantFailure(t, err, postgres.Unreachable)
	wantFailure(t, st.Err(), postgres.Unreachable)
	if _, err := st.Get(t.Context(), work(1, 1, nil).Key); err == nil {
		t.Error("a read succeeds without the server")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, st, 3)
	// The follower may still end a read that it began before the restart.
	healthy := time.NewTicker(10 * time.Millisecond)
	defer healthy.Stop()
	for deadline := time.Now().Add(30 * time.Second); st.Err() != nil; <-healthy.C {
		if time.Now().After(deadline) {
			t.Fatalf("after the restart: %v", st.Err())
		}
	}
	after := st.Head()
	if after.Incarnation == before.Incarnation || after.FirstRevision != 2 || !st.ValidCursor(cursor(before)) {
		t.Errorf("head %+v after a restart, before %+v", after, before)
	}
}
