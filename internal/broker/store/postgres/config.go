package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Options configures a store. Only URL is required.
type Options struct {
	// URL is a connection string of PostgreSQL, as a URL or as keywords with values. It may list several hosts. The
	// defaults differ from those of libpq: sslmode is verify-full, and target_session_attrs is read-write.
	URL string
	// PasswordFile is a file with the password of the user, or with the access token of a cloud's IAM. It is read at
	// each connect, so that a new one needs no restart. "" means the password of URL.
	PasswordFile string
	// Log receives failures and warnings; nil discards them.
	Log *slog.Logger
	// Registry registers the metrics; nil registers none.
	Registry prometheus.Registerer
	// NewID makes store ids and incarnation ids. No two calls may return the same id, and no id may contain "/" or
	// be empty. nil means 26 random characters.
	NewID func() string

	ringSize uint64 // 0 for 4096 changes
}

// Time limits. The server enforces those of statements and locks, so that they also end the transaction of a
// replica that hangs.
const (
	connectTimeout = "5" // seconds
	// lockTimeout limits the wait for the commits of other replicas.
	lockTimeout = 5 * time.Second
	// statementTimeout limits each statement of a commit; the wait for the lock is a part of one. COMMIT has no limit,
	// because a commit that stops waiting for its synchronous standby is visible although a failover may lose it.
	statementTimeout = 10 * time.Second
	// idleTimeout ends the transaction of a replica that hangs while it holds the lock of commits.
	idleTimeout = time.Second
	// commitTimeout limits the wait for the answer to COMMIT. The next commit then finds out its result.
	commitTimeout = 20 * time.Second
	// readTimeout limits each statement of a reader, readIdleTimeout the pauses between them.
	readTimeout     = 30 * time.Second
	readIdleTimeout = 30 * time.Second
)

// maxConns is the number of connections: one commits, one follows the log, the others read.
const maxConns = 8

// withDefaults adds the settings that a connection string does not have.
func withDefaults(url string) string {
	defaults := []string{"sslmode=verify-full", "target_session_attrs=read-write", "connect_timeout=" + connectTimeout}
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return strings.Join(defaults, " ") + " " + url // a later keyword wins
	}
	for _, d := range defaults {
		name, _, _ := strings.Cut(d, "=")
		switch {
		case strings.Contains(url, "?"+name+"=") || strings.Contains(url, "&"+name+"="):
		case strings.Contains(url, "?"):
			url += "&" + d
		default:
			url += "?" + d
		}
	}
	return url
}

var (
	errPasswordFile = errors.New("the password file cannot be used")
	errNoCancel     = errors.New("no cancel request is sent")
)

// errStandby is the error about a server that cannot write.
var errStandby = errors.New("not a server that writes")

// poolConfig returns the configuration of the connections.
func (o *Options) poolConfig() (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(withDefaults(o.URL))
	if err != nil {
		return nil, fmt.Errorf("store: the connection string of PostgreSQL is not valid: %w", err)
	}
	c.MaxConns = max(c.MaxConns, maxConns)
	c.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error { return o.prepare(cc) }
	c.ConnConfig.RuntimeParams["application_name"] = "hawser-broker"
	if c.ConnConfig.ValidateConnect != nil {
		validate := c.ConnConfig.ValidateConnect
		c.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			if err := validate(ctx, conn); err != nil {
				return fmt.Errorf("%w: %w", errStandby, err)
			}
			return nil
		}
	}
	return c, nil
}

// connect opens a connection without a pool, to a server that the store can use.
func (o *Options) connect(ctx context.Context, c *pgx.ConnConfig, t target) (conn *pgx.Conn, facts server, err error) {
	if err := o.prepare(c); err != nil {
		return nil, facts, err
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // it works with any pooler
	if conn, err = pgx.ConnectConfig(ctx, c); err != nil {
		return nil, facts, err
	}
	facts, err = readServer(ctx, conn)
	if d := facts.problem(); err == nil && d != nil {
		err = t.describe(*d, nil)
	}
	if err != nil {
		return nil, facts, errors.Join(err, conn.Close(ctx))
	}
	return conn, facts, nil
}

// prepare prepares one connection: it reads the password, and it prevents cancel requests.
func (o *Options) prepare(c *pgx.ConnConfig) error {
	if o.PasswordFile != "" {
		b, err := os.ReadFile(o.PasswordFile)
		if err != nil {
			return fmt.Errorf("%w: %w", errPasswordFile, err)
		}
		c.Password = strings.TrimRight(string(b), "\r\n")
		if c.Password == "" {
			return fmt.Errorf("%w: %s is empty", errPasswordFile, o.PasswordFile)
		}
	}
	// The client library sends a cancel request when it gives a connection up. It would end the wait of a commit for
	// its synchronous standby, and make data visible that a failover may lose. The server ends statements itself.
	connected := false
	dial := (&net.Dialer{KeepAliveConfig: keepAlive, Control: userTimeout}).DialContext
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if connected {
			return nil, errNoCancel
		}
		return dial(ctx, network, addr)
	}
	c.AfterConnect = func(context.Context, *pgconn.PgConn) error {
		connected = true
		return nil
	}
	c.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			conn.CustomData()[warningKey] = n.Message
		}
	}
	return nil
}

// warningKey is the key of the last warning of the server in the data of a connection.
const warningKey = "warning"

// takeWarning returns the last warning of the server since the call before, "" if there is none.
func takeWarning(conn *pgx.Conn) string {
	data := conn.PgConn().CustomData()
	warning, _ := data[warningKey].(string)
	delete(data, warningKey)
	return warning
}
