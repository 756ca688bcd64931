package postgres_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	local "github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/pkg/codec"
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
	defer func() { _ = standby.Resume() }() // fails if it was resumed; else the commit would never end
	type result struct {
		out []store.Outcome
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := a.Commit(context.WithoutCancel(t.Context()), []store.Op{work(1, 2, []byte("x"))})
		done <- result{out, err}
	}()
	awaitSyncRep(t, primary)
	_, err := b.Commit(t.Context(), []store.Op{work(2, 1, []byte("y"))})
	wantFailure(t, err, postgres.Busy, "pg_stat_replication")
	if err := b.Cut(t.Context()); err != nil { // a heartbeat that waited would hold its connection, and the next one too
		t.Errorf("report of the position without the standby: %v", err)
	}
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

// awaitSyncRep waits until a commit waits for the synchronous standby.
func awaitSyncRep(t *testing.T, s *local.Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(local.Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }() // it has written nothing
	for n := 0; n == 0; {
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity, pg_sleep(0.01) WHERE wait_event = 'SyncRep'").Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCommit_ConnectionBreaks: a commit whose connection breaks is executed once, whether the server got its end or
// not. The last one takes one round trip.
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
			for version := int64(2); version < 10; version++ {
				p.breaks.Store(1)
				put(t, st, version)
				if n := p.breaks.Load(); n != 0 {
					t.Fatalf("%d connections are still to break", n)
				}
				if h := st.Head(); h.Revision != uint64(version) {
					t.Errorf("version %d: head %+v", version, h)
				}
			}
			if d := cmp.Diff(memory(open(t, postgres.Options{URL: s.URL(database)})), memory(st)); d != "" {
				t.Errorf("memory (-snapshot +log):\n%s", d)
			}
		})
	}
}

// TestCommit_AnswerIsLost: a commit succeeded, and its answer is lost. Other commits do not decide on what this replica
// remembered before.
func TestCommit_AnswerIsLost(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	deletion := func(n int, version int64) store.Op {
		o := work(n, version, nil)
		o.Deleting, o.DeletedAt = true, o.At
		o.Tag[0]++
		return o
	}
	commit := func(s store.Store, op store.Op) (store.ResultCode, error) {
		out, err := s.Commit(t.Context(), []store.Op{op})
		if err != nil {
			return 0, err
		}
		return out[0].Result, nil
	}
	setup := func(t *testing.T) (p *proxy, st, direct *postgres.Store) {
		database := newDatabase(t, s)
		p = newProxy(t, s.Addr(), true)
		st = open(t, postgres.Options{URL: local.URL(p.addr, local.Superuser, s.Password(), database) + "&default_query_exec_mode=exec"})
		put(t, st, 1, 2, 3, 4, 5, 6, 7, 8)
		return p, st, open(t, postgres.Options{URL: s.URL(database)})
	}
	wantStale := func(t *testing.T, st, direct store.Store) {
		t.Helper()
		late := work(1, 8, []byte("late"))
		late.Tag[0] += 7
		if r, err := commit(st, late); err != nil || r != store.Stale {
			t.Errorf("result %d, %v, want Stale", r, err)
		}
		await(t, direct, st.Head().Revision)
		if d := cmp.Diff(direct.Digests(codec.ManifestBundles, "hub"), st.Digests(codec.ManifestBundles, "hub")); d != "" {
			t.Errorf("digests (-other replica +this one):\n%s", d)
		}
	}
	t.Run("the retry finds a deletion", func(t *testing.T) {
		p, st, direct := setup(t)
		p.breaks.Store(1)
		if r, err := commit(st, deletion(1, 8)); err != nil || r != store.Confirmed {
			t.Fatalf("result %d, %v", r, err)
		}
		wantStale(t, st, direct)
	})
	t.Run("there is no retry, and the follower finds it", func(t *testing.T) {
		p, st, direct := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		p.beforeBreak = func() { await(t, st, 9); cancel() }
		p.breaks.Store(1)
		if _, err := st.Commit(ctx, []store.Op{work(1, 9, []byte("nine"))}); err == nil {
			t.Fatal("the answer was not lost")
		}
		wantStale(t, st, direct)
	})
	t.Run("the follower passes it before the retry", func(t *testing.T) {
		p, st, direct := setup(t)
		p.beforeBreak = func() {
			for _, op := range []store.Op{deletion(2, 1), {Kind: store.Forget, Key: work(2, 1, nil).Key, At: work(2, 1, nil).At}} {
				if r, err := commit(direct, op); err != nil || r == store.Stale {
					t.Errorf("result %d, %v", r, err)
				}
			}
			await(t, st, direct.Head().Revision)
		}
		p.breaks.Store(1)
		if _, err := commit(st, work(2, 1, []byte("x"))); err != nil {
			t.Fatal(err)
		}
		if m, err := st.Meta(t.Context(), work(2, 1, nil).Key); err == nil {
			t.Errorf("it was executed twice: %+v", m)
		}
	})
}

// proxy forwards connections to a server. It breaks the next connections that send the second round trip of a commit.
type proxy struct {
	addr    string
	breaks  atomic.Int64
	forward bool // the server gets the round trip, and its answer is lost
	// beforeBreak is called after the server got the round trip, and before the client sees the end.
	beforeBreak func()
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
			muted := new(atomic.Bool)
			go answer(client, server, muted) // both end with one of the connections
			go p.serve(client, server, muted)
		}
	}()
	return p
}

// answer forwards what the server sends, until it is muted.
func answer(client, server net.Conn, muted *atomic.Bool) {
	defer func() {
		if !muted.Load() {
			_ = client.Close() // it sees the end
		}
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := server.Read(b)
		if err != nil {
			return
		}
		if muted.Load() {
			continue
		}
		if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
}

// serve forwards what the client sends, until it is to break the connection.
func (p *proxy) serve(client, server net.Conn, muted *atomic.Bool) {
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
			muted.Store(true)
			if p.forward {
				_, _ = server.Write(b[:n]) // the client sees the end in any case
			}
			if p.beforeBreak != nil {
				p.beforeBreak()
			}
			return
		}
		if _, err := server.Write(b[:n]); err != nil {
			return
		}
	}
}
