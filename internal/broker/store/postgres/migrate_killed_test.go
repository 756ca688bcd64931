package postgres_test

import (
	"cmp"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/pkg/codec"
)

// runAsHawser is the environment variable with which this test program is the program hawser.
const runAsHawser = "RUN_AS_HAWSER"

// migration is the command that migrates a store, in a process that can be killed.
type migration struct{ to, dir, url string }

// run runs the command. It is killed after a while, if that is not 0. It returns how long the command ran, and whether it
// was killed.
func (m migration) run(t *testing.T, kill time.Duration) (took time.Duration, killed bool) {
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
	if kill > 0 {
		defer time.AfterFunc(kill, func() { _ = cmd.Process.Kill() }).Stop() // it may have ended
	}
	err = cmd.Wait()
	took, killed = time.Since(began), err != nil && kill > 0 && cmd.ProcessState.ExitCode() < 0
	if err != nil && !killed {
		t.Fatal(err)
	}
	usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	t.Logf("to %s: %s, killed: %t, %d MiB", m.to, took.Round(time.Millisecond), killed, usage.Maxrss>>10)
	return took, killed
}

// resume runs the command again and again. It is killed at three points of its way, and then it completes.
func (m migration) resume(t *testing.T, whole time.Duration) {
	t.Helper()
	for _, part := range []float64{.2, .4, .6} {
		_, killed := m.run(t, time.Duration(part*float64(whole)))
		if !killed {
			t.Fatal("the command ended before it was killed")
		}
	}
	m.run(t, 0)
}

// TestMigrate_Killed: a migration of many works (WORKS, default 100,000) ends with equal digests and valid cursors, there
// and back, although its process is killed several times.
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
	same := func(s store.Store) {
		t.Helper()
		if !slices.Equal(digests, s.Digests(codec.ManifestBundles, "hub")) || !s.ValidCursor(before) {
			t.Errorf("the digests differ, or the cursor is no longer valid (valid: %t)", s.ValidCursor(before))
		}
		closeStore(t, s)
	}
	url, again := server.URL(newDatabase(t, server)), server.URL(newDatabase(t, server))
	there, _ := migration{"postgres", first, url}.run(t, 0)
	back, _ := migration{"pebble", second, url}.run(t, 0)
	migration{"postgres", second, again}.resume(t, there)
	same(open(t, postgres.Options{URL: again}))
	migration{"pebble", third, again}.resume(t, back)
	same(openDirectory(t, third))
}
