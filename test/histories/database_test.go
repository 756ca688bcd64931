package histories

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/test/histories/judge"
)

// database is a PostgreSQL server with a standby. Commits wait for the standby. A failover makes the standby the
// primary server, and a new standby replaces the former primary.
type database struct {
	t       *testing.T
	trace   *trace
	dir     string
	servers [2]*postgres.Server
	dirs    [2]string // their directories
	primary int
	copies  int
	proxies [][2]*proxy // of each replica, to both servers
}

// settings of the servers. The page cache outlives a killed server, so nothing has to be synced.
var settings = map[string]string{"fsync": "off", "wal_keep_size": "64", "max_connections": "60", "shared_buffers": "32MB"}

func newDatabase(t *testing.T, x *trace, dir string) *database {
	t.Helper()
	ctx := t.Context()
	programs, err := postgres.Fetch(ctx, "../..", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &database{t: t, trace: x, dir: dir, dirs: [2]string{filepath.Join(dir, "server0")}}
	first, err := postgres.Create(ctx, postgres.Config{Programs: programs, Dir: d.dirs[0], Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	d.servers[0] = first
	d.start(first)
	t.Cleanup(func() {
		for _, s := range d.servers {
			if s != nil {
				d.check(s.Stop())
			}
		}
	})
	d.follow()
	return d
}

func (d *database) check(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Error(err)
	}
}

func (d *database) start(s *postgres.Server) {
	d.t.Helper()
	if err := s.Start(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

// follow starts a standby of the primary server, and makes commits wait for it.
func (d *database) follow() {
	d.t.Helper()
	d.copies++
	name := fmt.Sprintf("server%d", d.copies)
	dir := filepath.Join(d.dir, name)
	s, err := d.servers[d.primary].Standby(d.t.Context(), dir)
	if err != nil {
		d.t.Fatal(err)
	}
	d.start(s)
	if d.copies > 1 {
		d.check(os.RemoveAll(d.dirs[1-d.primary])) // of the former primary server: an hour has a hundred
	}
	d.servers[1-d.primary], d.dirs[1-d.primary] = s, dir
	for _, p := range d.proxies {
		p[1-d.primary].forward(s.Addr())
	}
	d.wait(name)
}

// wait makes commits wait for a standby, or for none.
func (d *database) wait(standby ...string) {
	d.t.Helper()
	if err := d.servers[d.primary].Synchronous(d.t.Context(), standby...); err != nil {
		d.t.Fatal(err)
	}
}

// connect returns the connection string for a replica, whose connections pass proxies of its own.
func (d *database) connect(t *testing.T) (url string, proxies [2]*proxy) {
	t.Helper()
	for i, s := range d.servers {
		proxies[i] = newProxy(t)
		proxies[i].forward(s.Addr())
	}
	d.proxies = append(d.proxies, proxies)
	s := d.servers[0]
	return postgres.URL(proxies[0].addr+","+proxies[1].addr, postgres.Superuser, s.Password(), postgres.Superuser), proxies
}

// kill kills the primary server and starts it again.
func (d *database) kill() {
	d.check(d.servers[d.primary].Kill())
	d.start(d.servers[d.primary])
}

// restart stops the primary server in order and starts it again.
func (d *database) restart() {
	d.check(d.servers[d.primary].Stop())
	d.start(d.servers[d.primary])
}

// lostWrites is the number of acknowledged writes that a failover to an asynchronous standby loses at least.
const lostWrites = 5

// fallBehind ends the standby, and waits until writes were acknowledged without it.
func (d *database) fallBehind() {
	d.wait()
	d.check(d.servers[1-d.primary].Stop())
	for range lostWrites {
		select {
		case <-d.trace.nextAcked():
		case <-time.After(patience):
			d.t.Errorf("no write was acknowledged in %s without a standby", patience)
			return
		}
	}
}

// failOver kills the primary server and promotes the standby. No replica reaches a server meanwhile, so the head of
// the standby is what survived.
func (d *database) failOver(lossy bool) {
	if lossy {
		d.fallBehind()
	}
	from := d.trace.now()
	for _, p := range d.proxies {
		p[0].cut()
		p[1].cut()
	}
	d.check(d.servers[d.primary].Kill())
	d.primary = 1 - d.primary
	if lossy {
		d.start(d.servers[d.primary])
	}
	d.check(d.servers[d.primary].Promote(d.t.Context()))
	head, err := d.head(d.t.Context())
	d.check(err)
	d.trace.add(judge.Event{Kind: judge.Failover, From: from, Lossy: lossy, Revision: head})
	for _, p := range d.proxies {
		p[0].reset()
		p[1].reset()
		p[0].heal()
		p[1].heal()
	}
	d.follow()
}

// head returns the revision of the last commit.
func (d *database) head(ctx context.Context) (head uint64, err error) {
	conn, err := pgx.Connect(ctx, d.servers[d.primary].URL(postgres.Superuser))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }() // the answer is read
	err = conn.QueryRow(ctx, "SELECT head FROM hawser.log ORDER BY number DESC LIMIT 1").Scan(&head)
	return head, err
}
