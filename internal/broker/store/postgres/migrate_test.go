package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/broker/store/storecopy"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/internal/cli"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

var errKilled = errors.New("killed")

// killed is a target that is killed after one call of Write, or at Finish.
type killed struct {
	storecopy.Target
	writes int
}

func (k *killed) Write(ctx context.Context, values []value.Stored) error {
	if k.writes++; k.writes > 1 {
		return errKilled
	}
	return k.Target.Write(ctx, values)
}

func (*killed) Finish(context.Context, store.Head) error { return errKilled }

// endpoint is a source or a target that the caller must close.
type endpoint interface{ Close() error }

func closing[T endpoint](t *testing.T) func(T, error) (T, func()) {
	return func(e T, err error) (T, func()) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return e, func() {
			t.Helper()
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func toDatabase(t *testing.T, dir, url string) storecopy.Content {
	t.Helper()
	return migrateAll(t, func() (storecopy.Source, storecopy.Target, func()) {
		from, end := closing[*pebble.Source](t)(pebble.OpenSource(t.Context(), dir))
		to, endTo := closing[*postgres.Target](t)(postgres.OpenTarget(t.Context(), postgres.Options{URL: url}))
		return from, to, func() { end(); endTo() }
	})
}

func toDirectory(t *testing.T, url, dir string) storecopy.Content {
	t.Helper()
	return migrateAll(t, func() (storecopy.Source, storecopy.Target, func()) {
		from, end := closing[*postgres.Source](t)(postgres.OpenSource(t.Context(), postgres.Options{URL: url}))
		to, endTo := closing[*pebble.Target](t)(pebble.OpenTarget(dir))
		return from, to, func() { end(); endTo() }
	})
}

// migrateAll migrates, and is killed after each write and before the end.
func migrateAll(t *testing.T, endpoints func() (storecopy.Source, storecopy.Target, func())) storecopy.Content {
	t.Helper()
	for attempts := 1; ; attempts++ {
		from, to, end := endpoints()
		k := &killed{Target: to}
		_, err := storecopy.Copy(t.Context(), from, k)
		end()
		if !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		if k.writes > 1 {
			continue
		}
		if attempts < 3 {
			t.Errorf("killed only %d times", attempts)
		}
		from, to, end = endpoints()
		defer end()
		c, err := storecopy.Copy(t.Context(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// fill commits works with statuses, a tombstone, one with a queued spec, a confirmed one, bookmarks and bindings.
func fill(t *testing.T, s store.Store) {
	t.Helper()
	dt := codec.ManifestBundles
	ops := []store.Op{
		{Kind: store.SetBookmark, Name: "denied/agent/c", Value: []byte("denial")},
		{Kind: store.BindCluster, Key: store.Key{DataType: dt, Cluster: "cluster-0"}, UID: "uid"},
	}
	for n := range 40 {
		ops = append(ops, work(n*5, 1, []byte(strings.Repeat(fmt.Sprint(n), 40_000))))
	}
	status := work(5, 1, []byte("status"))
	status.Kind, status.Owner, status.Sequence, status.StatusHash = store.PutStatus, "", "4198400", "h"
	final := work(10, 1, []byte("final"))
	final.Kind, final.Owner, final.Sequence, final.Deleted = store.PutStatus, "", "4198401", true
	ops = append(ops, status)
	for _, n := range []int{10, 15, 20} {
		gone := work(n, 2, []byte("deleted"))
		gone.Deleting, gone.Action, gone.DeletedAt = true, codec.DeleteRequest, gone.At
		ops = append(ops, gone)
	}
	final.Version = 2
	again := work(20, 3, []byte("again"))
	again.Action = codec.CreateRequest
	ops = append(ops, final, again)
	for i, o := range commit(t, s, ops) {
		if o.Result != store.Accepted && o.Result != store.Queued && o.Result != store.Confirmed {
			t.Fatalf("op %d: %+v", i, o)
		}
	}
}

func commit(t *testing.T, s store.Store, ops []store.Op) []store.Outcome {
	t.Helper()
	out, err := s.Commit(t.Context(), ops)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// content is what a store has, as its users see it.
type content struct {
	StoreID   string
	Revision  uint64
	Records   map[string]store.Record
	Digests   []codec.ClusterDigest
	Heads     []store.ClusterHead
	Bookmarks map[string][]byte
	UIDs      []string
	Rows      []quota.Row
}

func contentOf(t *testing.T, s store.Store) content {
	t.Helper()
	dt := codec.ManifestBundles
	c := content{
		StoreID: s.Head().StoreID, Revision: s.Head().Revision, Records: map[string]store.Record{}, Digests: s.Digests(dt, "hub"),
		Bookmarks: s.Bookmarks(""), Rows: append(s.Rows(quota.Source, "", 10), s.Rows(quota.Cluster, "", 10)...),
	}
	for _, cluster := range s.Clusters(dt) {
		uid, _ := s.Subscribed(dt, cluster)
		c.Heads, c.UIDs = append(c.Heads, s.ClusterHead(dt, cluster)), append(c.UIDs, cluster+uid)
	}
	err := s.Scan(t.Context(), store.Scope{DataType: dt}, func(m store.Meta) error {
		r, err := s.Get(t.Context(), m.Key)
		c.Records[m.ResourceID] = r
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openDirectory(t *testing.T, dir string) *pebble.Store {
	t.Helper()
	s, err := pebble.Open(pebble.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t *testing.T, s store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestMigrate_ThereAndBack: a store that was migrated to PostgreSQL and back has the same content and digests, and all
// cursors stay valid. Each migration is killed after each of its writes.
func TestMigrate_ThereAndBack(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	url := server.URL(newDatabase(t, server))
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	s := openDirectory(t, first)
	fill(t, s)
	before, cursors := contentOf(t, s), []store.Cursor{cursor(s.Head())}
	closeStore(t, s)
	there := toDatabase(t, first, url)

	p := open(t, postgres.Options{URL: url})
	same := func(s store.Store) {
		t.Helper()
		if d := cmp.Diff(before, contentOf(t, s)); d != "" {
			t.Errorf("content (-before +after):\n%s", d)
		}
		for _, c := range cursors {
			if !s.ValidCursor(c) {
				t.Errorf("cursor %s is not valid at %+v", c, s.Head())
			}
		}
		if s.Head().FirstRevision != before.Revision+1 {
			t.Errorf("the incarnation begins at %d behind %d", s.Head().FirstRevision, before.Revision)
		}
	}
	same(p)
	checked := closingCheck(t, url)
	if checked.Digest == there.Digest { // the broker has begun an incarnation
		t.Errorf("an incarnation changed nothing: %+v", checked)
	}
	commit(t, p, []store.Op{work(0, 9, []byte("at PostgreSQL"))})
	before, cursors = contentOf(t, p), append(cursors, cursor(p.Head()))
	closeStore(t, p)

	toDirectory(t, url, second)
	s = openDirectory(t, second)
	same(s)
	commit(t, s, []store.Op{work(0, 10, []byte("back"))})
	closeStore(t, s)
	if r, err := pebble.Check(t.Context(), second); err != nil || r.Err() != nil || !r.Closed {
		t.Errorf("%+v, %v", r, err)
	}
}

func closingCheck(t *testing.T, url string) storecopy.Content {
	t.Helper()
	s, end := closing[*postgres.Source](t)(postgres.OpenSnapshot(t.Context(), postgres.Options{URL: url}))
	defer end()
	c, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMigrate_Command: hawser store migrate moves a store to PostgreSQL and back, and check reads both.
func TestMigrate_Command(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	url := server.URL(newDatabase(t, server))
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	s := openDirectory(t, first)
	fill(t, s)
	closeStore(t, s)
	hawser := func(want string, args ...string) {
		t.Helper()
		var out bytes.Buffer
		env := cli.Env{Stdout: &out, Stderr: &out, Now: time.Now}
		status := cli.Main(t.Context(), env, append([]string{"store"}, args...))
		if !strings.Contains(out.String(), want) || (status == 0) != !strings.Contains(out.String(), "hawser:") {
			t.Errorf("hawser store %q: status %d\n%s", args, status, &out)
		}
	}
	hawser("no store", "check", "--store-url", url)
	hawser("migrated: 37 works of 2 clusters", "migrate", "--to", "postgres", "--data-dir", first, "--store-url", url)
	hawser("the target of the migration is not empty", "migrate", "--to", "postgres", "--data-dir", first, "--store-url", url)
	hawser("is sound: 37 works of 2 clusters", "check", "--store-url", url)
	hawser("migrated: 37 works of 2 clusters", "migrate", "--to", "pebble", "--data-dir", second, "--store-url", url)
	hawser("the target of the migration is not empty", "migrate", "--to", "pebble", "--data-dir", second, "--store-url", url)
	hawser("is sound: 37 works of 2 clusters", "check", "--data-dir", second)
}

// TestMigrate_AgentResumes: an agent with a cursor of the embedded store continues at PostgreSQL and gets what changed
// only; it sends no list. So it does after the way back.
func TestMigrate_AgentResumes(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	url := server.URL(newDatabase(t, server))
	dirs := []string{filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")}
	var cursor codec.Cursor
	serve := func(s store.Store, works int) {
		t.Helper()
		defer closeStore(t, s)
		b := testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Store: s}})
		defer b.Stop()
		var known string
		if works > 1 {
			known = cursor.String()
		}
		agent := subscribe(t, b, transport.Hello{Cursor: known})
		if works == 1 {
			agent.list()
		} else if agent.accepted.Resync != codec.ResyncCursor {
			t.Errorf("work %d: resync %q", works, agent.accepted.Resync)
		}
		name := fmt.Sprintf("work-%d", works)
		publishWork(t, b, name)
		cursor = agent.until(uint64(works), name)
	}
	serve(openDirectory(t, dirs[0]), 1)
	copyAll(t, dirs[0], url)
	serve(open(t, postgres.Options{URL: url}), 2)
	from, end := closing[*postgres.Source](t)(postgres.OpenSource(t.Context(), postgres.Options{URL: url}))
	to, endTo := closing[*pebble.Target](t)(pebble.OpenTarget(dirs[1]))
	_, err := storecopy.Copy(t.Context(), from, to)
	end()
	endTo()
	if err != nil {
		t.Fatal(err)
	}
	serve(openDirectory(t, dirs[1]), 3)
}

// copyAll migrates a directory to a database.
func copyAll(t *testing.T, dir, url string) {
	t.Helper()
	from, end := closing[*pebble.Source](t)(pebble.OpenSource(t.Context(), dir))
	defer end()
	to, endTo := closing[*postgres.Target](t)(postgres.OpenTarget(t.Context(), postgres.Options{URL: url}))
	defer endTo()
	if _, err := storecopy.Copy(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
}

// TestMigrate_Refuses: a store that is in use is not read, and a target with another content is not touched.
func TestMigrate_Refuses(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	newURL := func() string { return server.URL(newDatabase(t, server)) }
	dir := filepath.Join(t.TempDir(), "store")
	s := openDirectory(t, dir)
	fill(t, s)
	if _, err := pebble.OpenSource(t.Context(), dir); !errors.Is(err, pebble.ErrInUse) {
		t.Errorf("an open directory: %v", err)
	}
	closeStore(t, s)

	url := newURL()
	p := open(t, postgres.Options{URL: url})
	put(t, p, 1)
	_, err := postgres.OpenSource(t.Context(), postgres.Options{URL: url})
	wantFailure(t, err, postgres.Busy, "brokers use it", "Stop them")
	_, err = postgres.OpenTarget(t.Context(), postgres.Options{URL: url})
	wantFailure(t, err, postgres.Busy, "brokers use it")
	closeStore(t, p)

	begin := func(to storecopy.Target, of store.Head) error {
		t.Helper()
		_, err := to.Begin(t.Context(), of)
		return err
	}
	source, end := closing[*postgres.Source](t)(postgres.OpenSource(t.Context(), postgres.Options{URL: url}))
	if _, err := postgres.Open(t.Context(), postgres.Options{URL: url}); err == nil {
		t.Error("a broker starts during a migration")
	} else {
		wantFailure(t, err, postgres.Busy, "holds the lock")
	}
	end()
	target, end := closing[*postgres.Target](t)(postgres.OpenTarget(t.Context(), postgres.Options{URL: url}))
	if err := begin(target, source.Head()); !errors.Is(err, storecopy.ErrNotEmpty) || !strings.Contains(err.Error(), source.Head().StoreID) || errors.As(err, new(*postgres.DatabaseError)) {
		t.Errorf("a database with a store: %v", err)
	}
	end()

	half := newURL()
	_, err = postgres.OpenSnapshot(t.Context(), postgres.Options{URL: half})
	wantFailure(t, err, postgres.Unsuitable, "no store")
	target, end = closing[*postgres.Target](t)(postgres.OpenTarget(t.Context(), postgres.Options{URL: half}))
	if err := begin(target, store.Head{StoreID: "one"}); err != nil {
		t.Error(err)
	}
	if err := begin(target, store.Head{StoreID: "other"}); !errors.Is(err, storecopy.ErrOther) {
		t.Errorf("another source: %v", err)
	}
	end()
	_, err = postgres.Open(t.Context(), postgres.Options{URL: half})
	wantFailure(t, err, postgres.Unsuitable, "hawser store migrate")
	_, err = postgres.OpenSource(t.Context(), postgres.Options{URL: half})
	wantFailure(t, err, postgres.Unsuitable, "has not ended")

	files, end := closing[*pebble.Target](t)(pebble.OpenTarget(dir))
	if err := begin(files, source.Head()); !errors.Is(err, storecopy.ErrNotEmpty) {
		t.Errorf("a directory with a store: %v", err)
	}
	end()
	other := filepath.Join(t.TempDir(), "other")
	files, end = closing[*pebble.Target](t)(pebble.OpenTarget(other))
	if err := begin(files, store.Head{StoreID: "one"}); err != nil {
		t.Error(err)
	}
	end()
	files, end = closing[*pebble.Target](t)(pebble.OpenTarget(other))
	if err := begin(files, store.Head{StoreID: "other"}); !errors.Is(err, storecopy.ErrOther) {
		t.Errorf("another source: %v", err)
	}
	end()
	if _, err := pebble.Open(pebble.Options{Dir: other}); !errors.Is(err, pebble.ErrIncomplete) {
		t.Errorf("a broker with half a copy: %v", err)
	}
}

// TestCheck_FindsDamage: a check reads all values, columns and entries of the feed.
func TestCheck_FindsDamage(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	for damage, want := range map[string]string{
		"UPDATE hawser.payload SET event = set_byte(event, 10, 255 - get_byte(event, 10)) WHERE resource_id LIKE '%001'": "s/",
		"UPDATE hawser.record SET owner = 'other' WHERE resource_id LIKE '%001'":                                         "another owner",
		"DELETE FROM hawser.change": "it is missing",
		"INSERT INTO hawser.change SELECT 1000, part, state, data_type, cluster, resource_id, owner FROM hawser.change": "belongs to no record",
		"UPDATE hawser.log SET head = 0": "above the head",
	} {
		database := newDatabase(t, server)
		p := open(t, postgres.Options{URL: server.URL(database)})
		put(t, p, 1, 2)
		closeStore(t, p)
		if c := closingCheck(t, server.URL(database)); c.Live != 1 {
			t.Errorf("content %+v", c)
		}
		execute(t, server, database, damage)
		s, end := closing[*postgres.Source](t)(postgres.OpenSnapshot(t.Context(), postgres.Options{URL: server.URL(database)}))
		if _, err := s.Check(t.Context()); !errors.As(err, new(*store.DamageError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", damage, err)
		}
		end()
	}
}
