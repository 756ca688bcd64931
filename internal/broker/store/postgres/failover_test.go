package postgres_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	local "github.com/hawser-io/hawser/internal/local/postgres"
)

// pair starts a primary server and a standby, and returns the connection string that names both.
func pair(t *testing.T) (primary, standby *local.Server, url string) {
	t.Helper()
	primary = start(t, map[string]string{"wal_keep_size": "64"})
	standby, err := primary.Standby(t.Context(), filepath.Join(t.TempDir(), "standby"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, standby)
	return primary, standby, local.URL(primary.Addr()+","+standby.Addr(), local.Superuser, primary.Password(), local.Superuser)
}

// TestFailover_Synchronous: a failover to a synchronous standby loses nothing, and all cursors stay valid.
func TestFailover_Synchronous(t *testing.T) {
	t.Parallel()
	primary, standby, url := pair(t)
	if err := primary.Synchronous(t.Context(), "standby"); err != nil {
		t.Fatal(err)
	}
	st := open(t, postgres.Options{URL: url})
	put(t, st, 1, 2)
	before := st.Head()
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, st, 3)
	after := st.Head()
	if after.Incarnation == before.Incarnation || after.FirstRevision != 3 || after.Revision != 3 {
		t.Errorf("head %+v after the failover, before %+v", after, before)
	}
	if !st.ValidCursor(cursor(before)) || !st.ValidCursor(cursor(after)) {
		t.Error("a cursor is not valid any more")
	}
}

// TestFailover_Asynchronous: a failover that loses commits ends the validity of the cursors of these commits only. A
// replica that has seen them ends.
func TestFailover_Asynchronous(t *testing.T) {
	t.Parallel()
	primary, standby, url := pair(t)
	st := open(t, postgres.Options{URL: url})
	put(t, st, 1, 2)
	kept := cursor(st.Head())
	if err := primary.Synchronous(t.Context(), "standby"); err != nil {
		t.Fatal(err)
	}
	put(t, st, 3) // the standby has all up to here
	kept.Revision = 3
	if err := primary.Synchronous(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.Stop(); err != nil {
		t.Fatal(err)
	}
	put(t, st, 4, 5)
	lost := cursor(st.Head())
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	run(t, standby)
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := open(t, postgres.Options{URL: url}) // it has not seen the lost commits
	put(t, other, 6, 7, 8)
	_, err := st.Commit(t.Context(), []store.Op{work(1, 9, []byte("x"))})
	wantFailure(t, err, postgres.Lost, "synchronous standby")
	if _, err := st.Changes(t.Context(), 5, 1); !errors.Is(err, <-st.Fatal()) {
		t.Errorf("the feed of a replica with lost commits: %v", err)
	}
	if h := st.Head(); h.Revision != lost.Revision || h.Incarnation != lost.Incarnation {
		t.Errorf("the replica with lost commits has head %+v", h)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	st = open(t, postgres.Options{URL: url})
	put(t, st, 9)
	await(t, other, 7)
	if d := cmp.Diff(memory(st), memory(other)); d != "" {
		t.Errorf("memory of the replicas (-opened again +not seen):\n%s", d)
	}
	if !st.ValidCursor(kept) {
		t.Error("a cursor from before the loss is not valid")
	}
	if st.ValidCursor(lost) || other.ValidCursor(lost) {
		t.Error("a cursor of lost commits is valid")
	}
}

// TestCommit_StandbyMissing: while the synchronous standby is missing, nothing is acknowledged and nothing becomes
// visible. When it is back, the commit is complete.
func TestCommit_StandbyMissing(t *testing.T) {
	t.Parallel()
	primary, standby, _ := pair(t)
	if err := primary.Synchronous(t.Context(), "standby"); err != nil {
		t.Fatal(err)
	}
	a := open(t, postgres.Options{URL: primary.URL(local.Superuser)})
	b := open(t, postgres.Options{URL: primary.URL(local.Superuser)})
	put(t, a, 1)
	if err := standby.Pause(); err != nil {
		t.Fatal(err)
	}
	type result struct {
		out []store.Outcome
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := a.Commit(context.WithoutCancel(t.Context()), []store.Op{work(1, 2, []byte("x"))})
		done <- result{out, err}
	}()
	_, err := b.Commit(t.Context(), []store.Op{work(2, 1, []byte("y"))})
	wantFailure(t, err, postgres.Busy, "pg_stat_replication")
	select {
	case r := <-done:
		t.Errorf("the commit was acknowledged without its standby: %+v", r)
	default:
	}
	if m, err := b.Meta(t.Context(), work(1, 1, nil).Key); err != nil || m.Version != 1 {
		t.Errorf("version %d is visible, %v", m.Version, err)
	}
	if err := standby.Resume(); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.err != nil || r.out[0].Result != store.Accepted {
		t.Errorf("commit: %+v", r)
	}
}

// TestCommit_ConnectionBreaks: a commit whose connection breaks is executed once, whether the server got its end or
// not.
func TestCommit_ConnectionBreaks(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for what, forward := range map[string]bool{"before COMMIT arrives": false, "before its answer arrives": true} {
		t.Run(what, func(t *testing.T) {
			database := newDatabase(t, s)
			p := newProxy(t, s.Addr(), forward)
			// Without prepared statements, the proxy can read the statements.
			url := local.URL(p.addr, local.Superuser, s.Password(), database) + "&default_query_exec_mode=exec"
			st := open(t, postgres.Options{URL: url})
			put(t, st, 1)
			p.breaks.Store(1)
			put(t, st, 2)
			if n := p.breaks.Load(); n != 0 {
				t.Fatalf("%d connections are still to break", n)
			}
			if h := st.Head(); h.Revision != 2 {
				t.Errorf("head %+v", h)
			}
			if d := cmp.Diff(memory(open(t, postgres.Options{URL: s.URL(database)})), memory(st)); d != "" {
				t.Errorf("memory (-snapshot +log):\n%s", d)
			}
		})
	}
}

// proxy forwards connections to a server. It breaks the next connections that send the second round trip of a commit.
type proxy struct {
	addr    string
	breaks  atomic.Int64
	forward bool // the server gets the round trip, and its answer is lost
}

func newProxy(t *testing.T, to string, forward bool) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // nothing was written to it
	p := &proxy{addr: l.Addr().String(), forward: forward}
	go func() { // ends with the listener
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := new(net.Dialer).Dial("tcp", to)
			if err != nil {
				_ = client.Close() // the client sees the end
				continue
			}
			go answer(client, server) // both end with one of the connections
			go p.serve(client, server)
		}
	}()
	return p
}

// answer forwards what the server sends.
func answer(client, server net.Conn) {
	_, _ = io.Copy(client, server) // the client sees the end
	_ = client.Close()
}

// serve forwards what the client sends, until it is to break the connection.
func (p *proxy) serve(client, server net.Conn) {
	defer func() {
		_ = client.Close() // both ends see it
		_ = server.Close()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := client.Read(b)
		if err != nil {
			return
		}
		if strings.Contains(string(b[:n]), "pg_notify") && p.breaks.CompareAndSwap(1, 0) {
			_ = client.Close() // the client gets no answer
			if p.forward {
				_, _ = server.Write(b[:n])
			}
			return
		}
		if _, err := server.Write(b[:n]); err != nil {
			return
		}
	}
}
