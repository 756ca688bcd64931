package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/thirdparty"
)

// FetchPgBouncer fetches PgBouncer as [thirdparty.FetchPackage] does, and returns the path of the program.
func FetchPgBouncer(ctx context.Context, root string, progress io.Writer) (string, error) {
	dir, err := thirdparty.FetchPackage(ctx, root, "pgbouncer", progress)
	return filepath.Join(dir, "pgbouncer"), err
}

// Pool starts a PgBouncer with its files in dir, in transaction mode in front of s. It returns the process and
// its host:port. Its users are those of s.
func (s *Server) Pool(ctx context.Context, program, dir string) (*childproc.Process, string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", fmt.Errorf("pgbouncer: %w", err)
	}
	users := filepath.Join(dir, "users.txt")
	if err := os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", Superuser, s.password), 0o600); err != nil {
		return nil, "", fmt.Errorf("pgbouncer: %w", err)
	}
	for range 10 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		conf, log := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "pgbouncer.log")
		text := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
max_client_conn = 500
server_idle_timeout = 1
`, s.port, port, users)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return nil, "", fmt.Errorf("pgbouncer: %w", err)
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		path, args, err := unprivileged(program, conf)
		if err != nil {
			return nil, "", err
		}
		p, err := childproc.Start(ctx, childproc.Spec{
			Name: "pgbouncer", Path: path, Args: args, LogFile: log, Ready: func(ctx context.Context) error {
				var d net.Dialer
				conn, err := d.DialContext(ctx, "tcp", addr)
				if err != nil {
					return err
				}
				return conn.Close()
			},
		})
		if err == nil || !strings.Contains(err.Error(), "Address already in use") {
			return p, addr, err
		}
	}
	return nil, "", errors.New("pgbouncer: found no free port")
}
