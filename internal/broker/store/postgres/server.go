package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// oldestServer is the oldest version of PostgreSQL that the store is tested with.
const oldestServer = 150000

// server is what a broker checks of a server and its database before it uses them.
type server struct {
	version     int
	versionText string
	encoding    string
	isStandby   bool
	checksums   string
	fsync       string
	fullPages   string
	synchronous string
	standbys    string
	isPooled    bool // a pooler is between broker and server
}

const selectServer = `SELECT current_setting('server_version_num')::int, current_setting('server_version'),
	(SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()), pg_is_in_recovery(),
	current_setting('data_checksums'), current_setting('fsync'), current_setting('full_page_writes'),
	current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), pg_backend_pid()`

// readServer asks the server about itself. A pooler gives its clients other process ids than the server has.
func readServer(ctx context.Context, conn *pgx.Conn) (s server, err error) {
	var pid uint32
	err = conn.QueryRow(ctx, selectServer).Scan(&s.version, &s.versionText, &s.encoding, &s.isStandby,
		&s.checksums, &s.fsync, &s.fullPages, &s.synchronous, &s.standbys, &pid)
	s.isPooled = pid != conn.PgConn().PID()
	return s, err
}

// problem returns the reason why the store cannot use the server, nil if it can.
func (s server) problem() *diagnosis {
	switch {
	case s.version < oldestServer:
		return &diagnosis{Unsuitable, "the server has version " + s.versionText, fmt.Sprintf("Upgrade it to PostgreSQL %d or newer", oldestServer/10000)}
	case s.isStandby:
		d := diagnose(errStandby)
		return &d
	case s.encoding != "UTF8":
		return &diagnosis{
			Unsuitable, "the database has encoding " + s.encoding,
			"Create another one: CREATE DATABASE \"$database\" OWNER \"$user\" ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0",
		}
	}
	return nil
}

// warnings returns what an operator should know: what can be lost, and what goes unnoticed.
func (s server) warnings() []string {
	var w []string
	add := func(is bool, text string) {
		if is {
			w = append(w, text)
		}
	}
	add(s.fsync == "off", "fsync is off: a crash of the server loses what was acknowledged, or damages it. Switch it on")
	add(s.fullPages == "off", "full_page_writes is off: a crash of the server can damage pages. Switch it on")
	add(s.checksums == "off", "the server has no data checksums, so that damage of its disk goes unnoticed for longer. Stop it and run pg_checksums --enable")
	add(s.synchronous == "off", "synchronous_commit is off for this user. The broker switches it on for its own commits")
	add(s.loses(), noStandby)
	add(s.isPooled, "a pooler is between the broker and the server: the broker uses no prepared statements, and polls instead of LISTEN")
	return w
}

const noStandby = "no standby is synchronous: what was acknowledged can be lost at a failover. Set synchronous_standby_names and synchronous_commit=on"

// loses reports whether a failover can lose what was acknowledged.
func (s server) loses() bool {
	return strings.TrimSpace(s.standbys) == "" || s.synchronous == "local"
}
