package postgres

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storecopy"
)

// Kind is the kind of a failure, for metrics.
type Kind string

// The kinds.
const (
	Unreachable Kind = "unreachable"
	Untrusted   Kind = "untrusted" // TLS
	Rejected    Kind = "rejected"  // authentication, or a missing database
	Forbidden   Kind = "forbidden" // a missing right
	Unsuitable  Kind = "unsuitable"
	ReadOnly    Kind = "readonly"
	Busy        Kind = "busy" // a time limit of the server
	NoSpace     Kind = "nospace"
	Damaged     Kind = "damaged"
	Unconfirmed Kind = "unconfirmed" // by a synchronous standby
	Lost        Kind = "lost"        // commits, by a failover or a restored backup
	Other       Kind = "other"
)

// DatabaseError is an error of the database: the target, the problem, and the remedy.
type DatabaseError struct {
	Kind                 Kind
	Host, User, Database string
	Problem, Remedy      string
	Err                  error // the cause, may be nil
}

// Error names the target, the problem, the remedy and the cause.
func (f *DatabaseError) Error() string {
	text := fmt.Sprintf("store: PostgreSQL at %s, database %q, user %q: %s. %s", f.Host, f.Database, f.User, f.Problem, f.Remedy)
	if f.Err != nil {
		text += ": " + oneLine(f.Err)
	}
	return text
}

// Unwrap returns the cause.
func (f *DatabaseError) Unwrap() error { return f.Err }

// Is implements the interface of package errors: a later call may succeed, unless data is damaged or lost.
func (f *DatabaseError) Is(target error) bool {
	if f.Kind == Damaged || f.Kind == Lost {
		return target == store.ErrReadOnly
	}
	return target == store.ErrUnavailable
}

// oneLine returns the text of an error without line breaks, and without the prefix that repeats user and database.
func oneLine(err error) string {
	if c := (*pgconn.ConnectError)(nil); errors.As(err, &c) {
		err = c.Unwrap()
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// target is the part of the configuration that failures name.
type target struct{ host, user, database string }

func targetOf(c *pgconn.Config) target {
	hosts := []string{net.JoinHostPort(c.Host, fmt.Sprint(c.Port))}
	for _, f := range c.Fallbacks {
		if h := net.JoinHostPort(f.Host, fmt.Sprint(f.Port)); h != hosts[len(hosts)-1] {
			hosts = append(hosts, h)
		}
	}
	return target{host: strings.Join(hosts, ","), user: c.User, database: cmp.Or(c.Database, c.User)}
}

// failure returns the failure for an error, or the error itself if the database is not the cause.
func (t target) failure(err error) error {
	switch {
	case err == nil, errors.As(err, new(*DatabaseError)), errors.As(err, new(*store.DamageError)), errors.Is(err, context.Canceled),
		errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrCompacted), errors.Is(err, storecopy.ErrNotEmpty), errors.Is(err, storecopy.ErrOther):
		return err
	}
	d := diagnose(err)
	return t.describe(d, err)
}

func (t target) describe(d diagnosis, err error) error {
	fill := strings.NewReplacer("$user", t.user, "$database", t.database)
	return &DatabaseError{
		Kind: d.kind, Host: t.host, User: t.user, Database: t.database,
		Problem: d.problem, Remedy: fill.Replace(d.remedy), Err: err,
	}
}

// diagnosis is a kind of failure with its problem and its remedy, in which $user and $database stand for names.
type diagnosis struct {
	kind            Kind
	problem, remedy string
}

var readOnly = diagnosis{
	ReadOnly, "the server is a read-only standby, or its transactions are read-only",
	"Name the primary server, or all servers (host1,host2); check default_transaction_read_only",
}

// notConfirmed is the SQLSTATE of a text that is no number.
const notConfirmed = "22P02"

// hasCode reports whether the server answered with an SQLSTATE.
func hasCode(err error, code string) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == code
}

// bySQLState has the diagnoses of errors of the server.
var bySQLState = map[string]diagnosis{
	"28P01": {Rejected, "the password is wrong", "Check the password file, or the password of the user: ALTER ROLE \"$user\" PASSWORD '…'"},
	"28000": {Rejected, "the server does not let this user in", "Create the role, or add a line for it to pg_hba.conf of the server"},
	"3D000": {Rejected, "the database does not exist", "Create it: CREATE DATABASE \"$database\" OWNER \"$user\" ENCODING 'UTF8' TEMPLATE template0"},
	"42501": {Forbidden, "the user lacks a right", "Make it the owner: ALTER DATABASE \"$database\" OWNER TO \"$user\". Or create the schema for it: CREATE SCHEMA hawser AUTHORIZATION \"$user\""},
	"25006": readOnly,
	"55P03": {Busy, "another commit holds the lock of commits for too long", "Check that its synchronous standbys are connected (pg_stat_replication), and pg_locks for the holder"},
	"57014": {Busy, "a statement took too long", "Check the load of the server, and the locks in pg_locks"},
	"25P03": {Busy, "this broker did not continue its transaction in time", "Check that it has enough processor time"},
	"53300": {Unreachable, "the server has no free connection", "Raise max_connections of the server, or the pool size of PgBouncer"},
	"53100": {NoSpace, "the disk of the server is full", "Free space, or enlarge its volume"},
	"53200": {Other, "the server has no free memory", "Check work_mem and shared_buffers of the server"},
	"57P01": {Unreachable, "the server shuts down", "The broker connects again; check the server if this lasts"},
	"57P02": {Unreachable, "the server restarts after a crash", "The broker connects again; check the log of the server"},
	"57P03": {Unreachable, "the server starts or stops", "The broker connects again; check the server if this lasts"},
	"XX001": {Damaged, "the server read damaged data", "Restore a backup, or fail over to a standby; see the log of the server"},
	"XX002": {Damaged, "an index of the server is damaged", "Run REINDEX DATABASE \"$database\"; see the log of the server"},
	"08P01": {Rejected, "the server or the pooler does not accept the parameters of this connection", "Check the connection string, and the log of the server or the pooler"},
}

// diagnose returns the diagnosis of an error.
func diagnose(err error) diagnosis {
	if d, ok := diagnoseTLS(err); ok {
		return d
	}
	var server *pgconn.PgError
	switch {
	case errors.Is(err, errPasswordFile):
		return diagnosis{Rejected, "the password file cannot be used", "Check its path, its content and its permissions"}
	case errors.Is(err, errStandby):
		return readOnly
	case errors.As(err, &server):
		if d, ok := bySQLState[server.Code]; ok {
			return d
		}
		return diagnosis{Other, "the server reports an error", "See the log of the server"}
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err):
		return diagnosis{Unreachable, "the server does not answer in time", "Check that it runs, and the network and its policies between the broker and it"}
	}
	return diagnosis{Unreachable, "the server cannot be reached", "Check that it runs, its host name and port, and the network and its policies between the broker and it"}
}

func diagnoseTLS(err error) (diagnosis, bool) {
	var host x509.HostnameError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return diagnosis{Untrusted, "the certificate of the server is signed by an unknown authority", "Name the file of its authority with sslrootcert"}, true
	case errors.As(err, &host):
		return diagnosis{Untrusted, "the certificate of the server is for other host names", "Use one of its names in the connection string, or issue a certificate for this one"}, true
	case errors.As(err, new(x509.CertificateInvalidError)):
		return diagnosis{Untrusted, "the certificate of the server is not valid", "Renew it"}, true
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return diagnosis{Untrusted, "the server has no TLS", "Switch ssl on at the server. Only on a trusted network, use sslmode=disable"}, true
	}
	return diagnosis{}, false
}

// isConnectionLost reports whether an error ended an established connection, so that another one may succeed.
func isConnectionLost(err error) bool {
	var server *pgconn.PgError
	var network *net.OpError
	switch {
	case errors.As(err, &server):
		return strings.HasPrefix(server.Code, "57P") || strings.HasPrefix(server.Code, "08") || server.Code == "25P03"
	case errors.As(err, new(*pgconn.ConnectError)), pgconn.Timeout(err):
		return false
	}
	return pgconn.SafeToRetry(err) || errors.As(err, &network) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
