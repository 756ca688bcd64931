// Package postgres runs PostgreSQL servers on this machine, for the demo and for tests: a server with a data
// directory, its standbys, and PgBouncer in front of it. The programs are Debian packages, unpacked and not
// installed. No server outlives this process.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/thirdparty"
)

// Fetch fetches PostgreSQL as [thirdparty.FetchPackage] does, and returns the directory with its programs.
func Fetch(ctx context.Context, root string, progress io.Writer) (string, error) {
	return thirdparty.FetchPackage(ctx, root, "postgresql", progress)
}

// Superuser is the user that owns each server.
const Superuser = "postgres"

// Config configures a server.
type Config struct {
	// Programs is the result of Fetch.
	Programs string
	// Dir holds the data directory, the log and the password of one server. Its state outlives the server.
	Dir string
	// Settings are lines of postgresql.conf. Values are quoted by the caller where PostgreSQL needs it.
	Settings map[string]string
	// Encoding of new databases, "" for UTF8.
	Encoding string
	// NoChecksums creates a data directory without data checksums.
	NoChecksums bool
}

// Server is one PostgreSQL server. Its methods are not safe for concurrent use.
type Server struct {
	config   Config
	password string
	port     int // 0 before the first start
	process  *childproc.Process
}

// Create creates a data directory. The server does not run yet.
func Create(ctx context.Context, c Config) (*Server, error) {
	s := &Server{config: c, password: fmt.Sprintf("%016x", rand.Uint64())}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("postgresql: %w", err)
	}
	if err := os.WriteFile(s.passwordFile(), []byte(s.password), 0o600); err != nil {
		return nil, fmt.Errorf("postgresql: %w", err)
	}
	args := []string{
		"--pgdata", s.data(), "--username", Superuser, "--pwfile", s.passwordFile(), "--auth", "scram-sha-256",
		"--encoding", cmp.Or(c.Encoding, "UTF8"), "--locale", "C", "--no-sync", "--no-instructions",
	}
	if !c.NoChecksums {
		args = append(args, "--data-checksums")
	}
	if err := s.run(ctx, "initdb", args...); err != nil {
		return nil, err
	}
	return s, s.configure()
}

// data is the data directory.
func (s *Server) data() string { return filepath.Join(s.config.Dir, "data") }

func (s *Server) lockFile() string { return filepath.Join(s.data(), "postmaster.pid") }

func (s *Server) passwordFile() string { return filepath.Join(s.config.Dir, "password") }

// configure writes the settings of the server. Later files win, so the settings of the caller do.
func (s *Server) configure() error {
	settings := map[string]string{
		"listen_addresses": "'127.0.0.1'", "unix_socket_directories": "''",
		// Files, and no shared memory objects that would outlive a killed server.
		"dynamic_shared_memory_type": "mmap",
		"log_line_prefix":            "'%m [%p] %q%u@%d '",
		"max_wal_senders":            "4",
		"hot_standby":                "on",
	}
	maps.Copy(settings, s.config.Settings)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = %s\n", name, settings[name])
	}
	dir := filepath.Join(s.data(), "conf.d")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("postgresql: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "local.conf"), []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("postgresql: %w", err)
	}
	conf := filepath.Join(s.data(), "postgresql.conf")
	b, err := os.ReadFile(conf)
	if err != nil {
		return fmt.Errorf("postgresql: %w", err)
	}
	const include = "\ninclude_dir = 'conf.d'\n"
	if strings.Contains(string(b), include) {
		return nil // a standby has the file of its primary
	}
	if err := os.WriteFile(conf, append(b, include...), 0o600); err != nil {
		return fmt.Errorf("postgresql: %w", err)
	}
	return nil
}

// unprivileged returns the command line of a program that refuses to run as root. A user namespace makes it
// another user that owns the same files, also below a directory that only root may read.
func unprivileged(program string, args ...string) (path string, arguments []string, err error) {
	if os.Geteuid() != 0 {
		return program, args, nil
	}
	path, err = exec.LookPath("unshare")
	if err != nil {
		return "", nil, fmt.Errorf("postgresql: it refuses to run as root, and a user namespace needs unshare of util-linux: %w", err)
	}
	return path, append([]string{"--user", "--map-user=1000", "--map-group=1000", "--", program}, args...), nil
}

func (s *Server) run(ctx context.Context, program string, args ...string) error {
	path, args, err := unprivileged(filepath.Join(s.config.Programs, program), args...)
	if err != nil {
		return err
	}
	if _, err := childproc.Run(ctx, path, args...); err != nil {
		return fmt.Errorf("postgresql: %w", err)
	}
	return nil
}

const firstPort, lastPort = 12000, 19999

// stopWithin bounds the wait for a shutdown.
const stopWithin = 20 * time.Second

// Start starts the server, at a free port the first time and at the same port later. It returns when the
// server, or the standby, accepts connections.
func (s *Server) Start(ctx context.Context) error {
	chosen := s.port
	for range 10 {
		if chosen == 0 {
			// Below the ephemeral ports of the system, so that no connection takes the port while the server restarts.
			s.port = firstPort + rand.IntN(lastPort-firstPort)
		}
		path, args, err := unprivileged(filepath.Join(s.config.Programs, "postgres"), "-D", s.data(), "-p", strconv.Itoa(s.port))
		if err != nil {
			return err
		}
		s.process, err = childproc.Start(ctx, childproc.Spec{
			Name: "postgresql", Path: path, Args: args, LogFile: filepath.Join(s.config.Dir, "log"), Ready: s.ready,
		})
		if err == nil {
			return nil
		}
		if chosen != 0 || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
	}
	return errors.New("postgresql: found no free port")
}

// ready reads the state that the server writes into its lock file.
func (s *Server) ready(context.Context) error {
	b, err := os.ReadFile(s.lockFile())
	if err != nil {
		return err
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) < 8 || lines[3] != strconv.Itoa(s.port) {
		return errors.New("the server has not written its lock file yet")
	}
	if state := strings.TrimSpace(lines[7]); state != "ready" && state != "standby" {
		return fmt.Errorf("the server is %s", state)
	}
	return nil
}

// Running reports whether the server was started and not ended by Stop or Kill.
func (s *Server) Running() bool { return s.process != nil }

// Stop ends the server in order. Open connections end.
func (s *Server) Stop() error {
	if s.process == nil {
		return nil
	}
	// A fast shutdown; SIGTERM would wait for clients. It fails only when the server has ended.
	_ = s.process.Signal(syscall.SIGINT)
	select {
	case <-s.process.Done():
		s.process = nil
		return nil
	case <-time.After(stopWithin):
		return errors.Join(fmt.Errorf("postgresql: it did not stop within %s and was killed", stopWithin), s.Kill())
	}
}

// Kill kills the server and all its processes, as a power loss of the machine would, except that the page
// cache stays.
func (s *Server) Kill() error {
	if s.process == nil {
		return nil
	}
	// A stopped postmaster starts no further process.
	stopped := s.process.Signal(syscall.SIGSTOP)
	children := s.children()
	s.process.Kill()
	s.process = nil
	// The lock file would say that the next server is ready before it is.
	return errors.Join(stopped, killAll(children), os.Remove(s.lockFile()))
}

// Pause stops all processes of the server, as a hung machine would. Connections stay open.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume continues a paused server.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) error {
	if err := s.process.Signal(sig); err != nil {
		return err
	}
	for _, pid := range s.children() {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("postgresql: signal process %d: %w", pid, err)
		}
	}
	return nil
}

// children returns the process ids of the children of the postmaster.
func (s *Server) children() []int {
	pid := s.process.PID()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil // it has ended
	}
	var pids []int
	for field := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// PIDs returns the process ids of the running server.
func (s *Server) PIDs() []int { return append(s.children(), s.process.PID()) }

// killAll kills processes and waits until none is left.
func killAll(pids []int) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("postgresql: kill process %d: %w", pid, err)
		}
	}
	for _, pid := range pids {
		if err := waitGone(pid); err != nil {
			return err
		}
	}
	return nil
}

// Addr is the host:port of the server.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Password is the password of the superuser.
func (s *Server) Password() string { return s.password }

// URL is the connection string of the superuser for a database, without TLS.
func (s *Server) URL(database string) string { return URL(s.Addr(), Superuser, s.password, database) }

// URL returns a connection string without TLS. addr may list several hosts, separated by commas.
func URL(addr, user, password, database string) string {
	return "postgres://" + url.UserPassword(user, password).String() + "@" + addr + "/" + url.PathEscape(database) + "?sslmode=disable"
}

// Exec executes statements as the superuser, in a database.
func (s *Server) Exec(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		return fmt.Errorf("postgresql: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }() // each statement was answered
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("postgresql: %s: %w", sql, err)
		}
	}
	return nil
}

// WarmUp fills the log of the server, which has min_wal_size = 1 GB, and makes it recycle the files, as a server does
// that has run for a while. A new file is filled with zeros and synced before its first use, which takes longer than
// many commits.
func (s *Server) WarmUp(ctx context.Context) error {
	return s.Exec(ctx, Superuser, "SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1048576)) FROM generate_series(1, 1024)", "CHECKPOINT")
}

// Standby copies the running server s to a hot standby in dir. The standby does not run yet. Its name in
// synchronous_standby_names is the last element of dir.
func (s *Server) Standby(ctx context.Context, dir string) (*Server, error) {
	c := s.config
	c.Dir = dir
	standby := &Server{config: c, password: s.password}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("postgresql: %w", err)
	}
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s sslmode=disable application_name=%s", s.port, Superuser, s.password, filepath.Base(dir))
	err := standby.run(ctx, "pg_basebackup", "--pgdata", standby.data(), "--dbname", from, "--write-recovery-conf", "--checkpoint", "fast", "--no-sync")
	if err != nil {
		return nil, err
	}
	return standby, standby.configure()
}

// Synchronous makes each later commit of s wait for the standbys with these names; without names it waits for none.
func (s *Server) Synchronous(ctx context.Context, names ...string) error {
	list := strings.Join(names, ", ")
	if err := s.Exec(ctx, Superuser, "ALTER SYSTEM SET synchronous_standby_names = '"+list+"'", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	// A connection that has the setting was made after the server sent it to all its processes.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL(Superuser))
		if err != nil {
			return fmt.Errorf("postgresql: %w", err)
		}
		var now string
		err = conn.QueryRow(ctx, "SHOW synchronous_standby_names").Scan(&now)
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return fmt.Errorf("postgresql: %w", err)
		}
		if now == list {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// The checkpointer switches the wait on or off. It does so before its next checkpoint.
	return s.Exec(ctx, Superuser, "CHECKPOINT")
}

// Promote makes a standby the primary server of a new timeline, and waits until it is.
func (s *Server) Promote(ctx context.Context) error {
	return s.Exec(ctx, Superuser, "SELECT pg_promote()")
}
