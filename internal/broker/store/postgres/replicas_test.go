package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	local "github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/pkg/codec"
)

// replicas opens n stores in one new database.
func replicas(t *testing.T, n int) (s *local.Server, database string, stores []*postgres.Store) {
	s = sharedServer(t)
	database = newDatabase(t, s)
	for range n {
		stores = append(stores, open(t, postgres.Options{URL: s.URL(database)}))
	}
	return s, database, stores
}

// TestReplicas_ShareOneStore: each replica reads what the other one commits, and keeps the same in memory.
func TestReplicas_ShareOneStore(t *testing.T) {
	t.Parallel()
	server, database, r := replicas(t, 2)
	a, b := r[0], r[1]
	if a.Head() != b.Head() {
		t.Fatalf("heads %+v and %+v", a.Head(), b.Head())
	}
	last := put(t, a, 1, 2)
	await(t, b, last.Revision)
	if err := storetest.Bind(t.Context(), a, codec.ManifestBundles, "cluster-0", "uid"); err != nil {
		t.Fatal(err)
	}
	if err := store.WriteBookmarks(t.Context(), a, map[string][]byte{"denied/x": []byte("1")}); err != nil {
		t.Fatal(err)
	}
	last = put(t, b, 3)
	await(t, a, last.Revision)
	if d := cmp.Diff(memory(a), memory(b)); d != "" {
		t.Errorf("memory of the replicas (-a +b):\n%s", d)
	}
	if uid, ok := b.Subscribed(codec.ManifestBundles, "cluster-0"); uid != "uid" || !ok {
		t.Errorf("the other replica knows uid %q, %v", uid, ok)
	}
	reopened := open(t, postgres.Options{URL: server.URL(database)})
	if d := cmp.Diff(memory(a), memory(reopened)); d != "" {
		t.Errorf("memory after a snapshot (-log +snapshot):\n%s", d)
	}
}

// memory returns what a replica keeps in memory, as readers see it.
func memory(s store.Store) map[string]any {
	return map[string]any{
		"head":      s.Head(),
		"cluster":   s.ClusterHead(codec.ManifestBundles, "cluster-0"),
		"clusters":  s.Clusters(codec.ManifestBundles),
		"digests":   s.Digests(codec.ManifestBundles, "hub"),
		"sources":   s.Rows("source", "", 100),
		"bookmarks": s.Bookmarks(""),
	}
}

// TestReplicas_NoLostUpdate: commits of several replicas on one record are decided one after the other. Each names the
// revision that it replaces, so of two commits that replace the same revision only one is accepted.
func TestReplicas_NoLostUpdate(t *testing.T) {
	t.Parallel()
	const each = 40
	_, _, r := replicas(t, 3)
	put(t, r[0], 1)
	var mu sync.Mutex
	replaced := map[uint64]int{}
	var writers sync.WaitGroup
	for i, s := range r {
		writers.Go(func() {
			for n := range each {
				m, err := s.Meta(t.Context(), work(1, 1, nil).Key)
				if err != nil {
					t.Error(err)
					return
				}
				op := work(1, int64(2+i*each+n), []byte("x"))
				op.Supersedes = m.SpecRevision
				out, err := s.Commit(t.Context(), []store.Op{op})
				if err != nil {
					t.Error(err)
					return
				}
				if out[0].Result == store.Accepted {
					mu.Lock()
					replaced[m.SpecRevision]++
					mu.Unlock()
				}
			}
		})
	}
	writers.Wait()
	for revision, n := range replaced {
		if n > 1 {
			t.Errorf("revision %d was replaced %d times", revision, n)
		}
	}
	if len(replaced) == 0 {
		t.Error("no commit was accepted")
	}
}

// TestCommit_Alone: a replica that commits alone does not read the records that it wrote: it does not see that one is
// damaged. It reads all records of a batch if it does not remember one of them.
func TestCommit_Alone(t *testing.T) {
	t.Parallel()
	s, database, r := replicas(t, 2)
	put(t, r[0], 1, 2, 3, 4, 5)
	const damage = "UPDATE hawser.record SET meta = 'damaged'"
	execute(t, s, database, damage)
	put(t, r[0], 6)
	execute(t, s, database, damage)
	if out, err := r[0].Commit(t.Context(), []store.Op{work(1, 7, []byte("x")), work(2, 1, []byte("x"))}); !errors.As(err, new(*store.DamageError)) {
		t.Errorf("a batch with another record: %+v, %v", out, err)
	}
}

// TestReplicas_Alternate: a replica that has committed alone decides on what another one has committed since, also before
// it follows the log.
func TestReplicas_Alternate(t *testing.T) {
	t.Parallel()
	_, _, r := replicas(t, 2)
	version := int64(0)
	for range 20 {
		for range 6 {
			version++
			put(t, r[0], version)
		}
		version += 2
		put(t, r[1], version)
		out, err := r[0].Commit(t.Context(), []store.Op{work(1, version-1, []byte("x"))})
		if err != nil || out[0].Result != store.Stale {
			t.Fatalf("version %d after %d: %+v, %v", version-1, version, out, err)
		}
	}
}

// TestReplicas_OtherIsolation: replicas start, commit and report their positions beside each other in a database whose
// default is another isolation level. In that level a statement after a lock has a snapshot from before it.
func TestReplicas_OtherIsolation(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		database := newDatabase(t, server)
		execute(t, server, local.Superuser, "ALTER DATABASE "+database+" SET default_transaction_isolation TO '"+level+"'")
		var opening, committing sync.WaitGroup
		r := make([]*postgres.Store, 3)
		for n := range r {
			opening.Go(func() {
				s, err := postgres.Open(t.Context(), postgres.Options{URL: server.URL(database)})
				if err != nil {
					t.Errorf("%s: %v", level, err)
				}
				r[n] = s
			})
		}
		opening.Wait()
		if t.Failed() {
			return
		}
		for n, s := range r {
			defer closeStore(t, s)
			committing.Go(func() {
				for version := range int64(40) {
					out, err := s.Commit(t.Context(), []store.Op{work(n, version+1, []byte("x"))})
					if err != nil || out[0].Result != store.Accepted {
						t.Errorf("%s: work %d, version %d: %+v, %v", level, n, version+1, out, err)
						return
					}
					if err := s.Cut(t.Context()); err != nil {
						t.Errorf("%s: report of the position: %v", level, err)
					}
				}
			})
		}
		committing.Wait()
	}
}

// TestFollower_BesideAHangingCommit: a replica whose commit has failed, and whose next one hangs, applies what other
// replicas commit.
func TestFollower_BesideAHangingCommit(t *testing.T) {
	t.Parallel()
	s, database, r := replicas(t, 2)
	execute(t, s, database,
		"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$",
		"CREATE TRIGGER fail BEFORE INSERT ON hawser.log FOR EACH ROW EXECUTE FUNCTION fail()")
	release := r[0].HangCommits()
	defer release()
	if err := r[0].CommitLocked(t.Context(), work(1, 1, []byte("x"))); err == nil {
		t.Fatal("no error")
	}
	execute(t, s, database, "DROP TRIGGER fail ON hawser.log")
	for version := range int64(3) {
		await(t, r[0], put(t, r[1], version+1).Revision)
	}
	release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for r[0].Err() != nil { // until the empty commit
		if err := r[0].Reach(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCommit_HungReplica: a replica that hangs inside a commit delays the others by little more than a second.
func TestCommit_HungReplica(t *testing.T) {
	t.Parallel()
	s, database, r := replicas(t, 1)
	hung, err := pgx.Connect(t.Context(), s.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hung.Close(t.Context()) }() // the server closed it
	for _, sql := range postgres.CommitBegin {
		if _, err := hung.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	put(t, r[0], 1)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the commit took %s", took)
	}
	if _, err := hung.Exec(t.Context(), "COMMIT"); err == nil {
		t.Error("the server did not end the transaction of the replica that hung")
	}
}

// TestReplica_LogWasCut: a replica that hung while the log was cut loads its memory again, and is not in another
// incarnation.
func TestReplica_LogWasCut(t *testing.T) {
	t.Parallel()
	s, database, r := replicas(t, 2)
	a, b := r[0], r[1]
	head := a.Head()
	put(t, a, 1, 2, 3)
	execute(t, s, database, "DELETE FROM hawser.log WHERE number < (SELECT max(number) FROM hawser.log)")
	put(t, b, 4)
	put(t, a, 5)
	await(t, b, 5)
	if d := cmp.Diff(memory(a), memory(b)); d != "" {
		t.Errorf("memory of the replicas (-a +b):\n%s", d)
	}
	if now := b.Head(); now.Incarnation != head.Incarnation || now.Revision != 5 {
		t.Errorf("head %+v, before %+v", now, head)
	}
}

// TestReach: a replica that reaches the head has what another one committed before.
func TestReach(t *testing.T) {
	t.Parallel()
	_, _, r := replicas(t, 2)
	for version := int64(1); version <= 20; version++ {
		last := put(t, r[0], version)
		var callers sync.WaitGroup
		for range 4 { // they share their reads
			callers.Go(func() {
				if err := r[1].Reach(t.Context()); err != nil {
					t.Error(err)
				}
				if h := r[1].Head(); h.Revision < last.Revision {
					t.Errorf("revision %d is committed, and the head is %+v", last.Revision, h)
				}
			})
		}
		callers.Wait()
	}
}

// TestReplicas_KeepRemovals: a removal stays until all replicas have passed it.
func TestReplicas_KeepRemovals(t *testing.T) {
	t.Parallel()
	s, database, r := replicas(t, 2)
	a, b := r[0], r[1]
	put(t, a, 1)
	if _, err := a.Commit(t.Context(), []store.Op{{Kind: store.Drop, Key: work(1, 1, nil).Key}}); err != nil {
		t.Fatal(err)
	}
	cut := func(want int) {
		t.Helper()
		for _, of := range r {
			if err := errors.Join(of.Reach(t.Context()), of.Cut(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Cut(t.Context()); err != nil { // with the position of b
			t.Fatal(err)
		}
		execute(t, s, database, fmt.Sprintf("DO $$ BEGIN ASSERT (SELECT count(*) FROM hawser.removal) = %d; END $$", want))
	}
	a.Passed(2)
	cut(1)
	b.Passed(2)
	cut(0)
	if ids, err := a.Replicas(t.Context()); len(ids) != 2 || ids[0] == ids[1] || err != nil {
		t.Errorf("replicas %q, %v", ids, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if ids, err := a.Replicas(t.Context()); len(ids) != 1 || err != nil {
		t.Errorf("replicas %q after the other one was closed, %v", ids, err)
	}
}

// TestOpen_SameServer: another broker at the same server continues the incarnation, so that its cursors stay valid.
func TestOpen_SameServer(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := s.URL(newDatabase(t, s))
	a := open(t, postgres.Options{URL: url})
	put(t, a, 1, 2)
	head := a.Head()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(head, open(t, postgres.Options{URL: url}).Head()); d != "" {
		t.Errorf("head after another opening (-before +after):\n%s", d)
	}
}

// TestCommit_LargeBatch: a batch of many records is one row of the log, and is read again completely.
func TestCommit_LargeBatch(t *testing.T) {
	t.Parallel()
	_, _, r := replicas(t, 2)
	var ops []store.Op
	for n := range 2000 {
		ops = append(ops, work(n, 1, fmt.Appendf(nil, "spec %d", n)))
	}
	if _, err := r[0].Commit(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	await(t, r[1], 2000)
	if d := cmp.Diff(memory(r[0]), memory(r[1])); d != "" {
		t.Errorf("memory of the replicas (-a +b):\n%s", d)
	}
	seen := 0
	if err := r[1].Scan(t.Context(), store.Scope{DataType: codec.ManifestBundles}, func(store.Meta) error { seen++; return nil }); err != nil || seen != 2000 {
		t.Errorf("the scan shows %d records, %v", seen, err)
	}
}
