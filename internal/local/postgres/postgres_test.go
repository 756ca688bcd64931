package postgres

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

const root = "../../.."

func create(t *testing.T, settings map[string]string) *Server {
	t.Helper()
	programs, err := Fetch(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Create(t.Context(), Config{Programs: programs, Dir: filepath.Join(t.TempDir(), "a"), Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func run(t *testing.T, s *Server) {
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

func execute(t *testing.T, s *Server, statements ...string) {
	t.Helper()
	if err := s.Exec(t.Context(), Superuser, statements...); err != nil {
		t.Fatal(err)
	}
}

func value(t *testing.T, s *Server, sql string) (v string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }() // the value was read
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestServer_KillPauseStop: a server survives a kill, answers again after a pause, and starts at its former address.
func TestServer_KillPauseStop(t *testing.T) {
	t.Parallel()
	s := create(t, map[string]string{"work_mem": "'7MB'"})
	run(t, s)
	addr := s.Addr()
	execute(t, s, "CREATE TABLE t (v text)", "INSERT INTO t VALUES ('kept')")
	if got := value(t, s, "SHOW work_mem"); got != "7MB" {
		t.Errorf("setting %s", got)
	}
	if got := value(t, s, "SHOW data_checksums"); got != "on" {
		t.Errorf("checksums %s", got)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := value(t, s, "SELECT v FROM t"); got != "kept" || s.Addr() != addr {
		t.Errorf("%q at %s after a kill, before at %s", got, s.Addr(), addr)
	}
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() { answer <- s.Exec(context.WithoutCancel(t.Context()), Superuser, "SELECT 1") }()
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

// TestServer_Standby: a standby follows, and becomes the primary server of another timeline.
func TestServer_Standby(t *testing.T) {
	t.Parallel()
	primary := create(t, nil)
	run(t, primary)
	standby, err := primary.Standby(t.Context(), filepath.Join(t.TempDir(), "b"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, standby)
	if err := primary.Synchronous(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	execute(t, primary, "SET synchronous_commit = remote_apply", "CREATE TABLE t (v text)")
	if got := value(t, primary, "SELECT sync_state FROM pg_stat_replication"); got != "sync" {
		t.Errorf("the standby is %s", got)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, standby, "INSERT INTO t VALUES ('x')")
	if got := value(t, standby, "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"); got != "00000002" {
		t.Errorf("timeline %s", got)
	}
}

// TestServer_Pool: PgBouncer shares few sessions.
func TestServer_Pool(t *testing.T) {
	t.Parallel()
	s := create(t, nil)
	run(t, s)
	program, err := FetchPgBouncer(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, addr, err := s.Pool(t.Context(), program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	conn, err := pgx.Connect(t.Context(), URL(addr, Superuser, s.Password(), Superuser)+"&default_query_exec_mode=exec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // nothing is pending
	var pid uint32
	if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil || pid == conn.PgConn().PID() {
		t.Errorf("session %d, connection %d, %v", pid, conn.PgConn().PID(), err)
	}
}

func TestStart_BadSetting_ErrorHasTheReason(t *testing.T) {
	t.Parallel()
	s := create(t, map[string]string{"no_such_setting": "1"})
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("got %v", err)
	}
}
