package postgres_test

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/broker/store/storecopy"
	"github.com/hawser-io/hawser/pkg/codec"
)

// runAsHawser is the environment variable with which this test program is the program hawser.
const runAsHawser = "RUN_AS_HAWSER"

// migration is the command that migrates a store, in a process that can be killed.
type migration struct {
	to, dir, url string
	// size returns the bytes in the target.
	size func(*testing.T) int64
	// last returns the key of the last value in the target, which is incomplete.
	last func(*testing.T) []byte
}

// run runs the command. It is killed when the target has some bytes, if that is not 0.
func (m migration) run(t *testing.T, until int64) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "store", "migrate", "--to", m.to, "--data-dir", m.dir, "--store-url", m.url)
	cmd.Env = append(os.Environ(), runAsHawser+"=1")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for killed := false; ; {
		select {
		case err := <-ended:
			t.Logf("to %s: %s, killed: %t", m.to, time.Since(began).Round(time.Millisecond), killed)
			if (err != nil) != (until > 0) || killed != (until > 0) {
				t.Fatalf("the command ended with %v", err)
			}
			return
		case <-tick.C:
			if until > 0 && !killed && m.size(t) >= until {
				killed = true
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// resume runs the command again and again. It is killed at three points of its way to whole bytes, and then it completes.
func (m migration) resume(t *testing.T, whole int64) {
	t.Helper()
	var before []byte
	for n := range int64(3) {
		m.run(t, whole*(n+1)/5)
		last := m.last(t)
		if last == nil || bytes.Equal(last, before) {
			t.Fatalf("the killed command left the target at %q, after %q", last, before)
		}
		before = last
	}
	m.run(t, 0)
}

// lastOf returns the key at which a migration into the target continues.
func lastOf(t *testing.T, source storecopy.Source, target storecopy.Target) []byte {
	t.Helper()
	last, err := target.Begin(t.Context(), source.Head())
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(last)
}

func toPostgres(t *testing.T, dir, url string) migration {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) }) // it has written nothing
	return migration{to: "postgres", dir: dir, url: url, size: func(t *testing.T) (size int64) {
		t.Helper()
		err := conn.QueryRow(t.Context(), "SELECT coalesce(pg_total_relation_size(to_regclass('hawser.payload')), 0)").Scan(&size)
		if err != nil {
			t.Fatal(err)
		}
		return size
	}, last: func(t *testing.T) []byte {
		t.Helper()
		from, end := closing[*pebble.Source](t)(pebble.OpenSource(t.Context(), dir))
		defer end()
		to, endTo := closing[*postgres.Target](t)(postgres.OpenTarget(t.Context(), postgres.Options{URL: url}))
		defer endTo()
		return lastOf(t, from, to)
	}}
}

func toPebble(dir, url string) migration {
	return migration{to: "pebble", dir: dir, url: url, size: func(*testing.T) (size int64) {
		_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { // the command makes and removes files meanwhile
			if err == nil {
				if i, err := d.Info(); err == nil && i.Mode().IsRegular() {
					size += i.Size()
				}
			}
			return nil
		})
		return size
	}, last: func(t *testing.T) []byte {
		t.Helper()
		from, end := closing[*postgres.Source](t)(postgres.OpenSource(t.Context(), postgres.Options{URL: url}))
		defer end()
		to, endTo := closing[*pebble.Target](t)(pebble.OpenTarget(dir))
		defer endTo()
		return lastOf(t, from, to)
	}}
}

func contentOfDirectory(t *testing.T, dir string) storecopy.Content {
	t.Helper()
	s, end := closing[*pebble.Source](t)(pebble.OpenSource(t.Context(), dir))
	defer end()
	return contentOfSource(t, s)
}

func contentOfDatabase(t *testing.T, url string) storecopy.Content {
	t.Helper()
	s, end := closing[*postgres.Source](t)(postgres.OpenSource(t.Context(), postgres.Options{URL: url}))
	defer end()
	return contentOfSource(t, s)
}

func contentOfSource(t *testing.T, s storecopy.Source) storecopy.Content {
	t.Helper()
	c, err := storecopy.ContentOf(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMigrate_Killed: a migration of many works (WORKS, default 100,000) ends with the same content and valid cursors,
// there and back, although its process is killed several times. Each run continues where the one before was killed.
func TestMigrate_Killed(t *testing.T) {
	works, err := strconv.Atoi(cmp.Or(os.Getenv("WORKS"), "100000"))
	if err != nil {
		t.Fatal(err)
	}
	server := sharedServer(t)
	dir := func(name string) string { return filepath.Join(t.TempDir(), name) }
	first, second, third := dir("first"), dir("second"), dir("third")
	s := openDirectory(t, first)
	for n := 0; n < works; n += 500 {
		var ops []store.Op
		for i := n; i < min(n+500, works); i++ {
			event := make([]byte, 2<<10)
			_, _ = rand.Read(event) // it never fails
			spec := work(i, 1, event)
			status := spec
			status.Kind, status.Owner, status.Sequence, status.StatusHash, status.Event = store.PutStatus, "", "4198400", "h", event[:700]
			ops = append(ops, spec, status)
		}
		commit(t, s, ops)
	}
	digests, before := s.Digests(codec.ManifestBundles, "hub"), cursor(s.Head())
	closeStore(t, s)
	content := contentOfDirectory(t, first)
	opens := func(s store.Store) {
		t.Helper()
		if !slices.Equal(digests, s.Digests(codec.ManifestBundles, "hub")) || !s.ValidCursor(before) {
			t.Errorf("the digests differ, or the cursor is no longer valid (valid: %t)", s.ValidCursor(before))
		}
		closeStore(t, s)
	}
	same := func(c storecopy.Content) {
		t.Helper()
		if c != content {
			t.Errorf("content %+v, want %+v", c, content)
		}
	}
	url, again := server.URL(newDatabase(t, server)), server.URL(newDatabase(t, server))
	there, back := toPostgres(t, first, url), toPebble(second, url)
	there.run(t, 0)
	back.run(t, 0)
	same(contentOfDirectory(t, second))
	toPostgres(t, second, again).resume(t, there.size(t))
	same(contentOfDatabase(t, again))
	opens(open(t, postgres.Options{URL: again})) // it begins an incarnation
	content = contentOfDatabase(t, again)
	toPebble(third, again).resume(t, back.size(t))
	same(contentOfDirectory(t, third))
	opens(openDirectory(t, third))
}
