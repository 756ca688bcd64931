package cli_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/cli"
	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
)

// TestStoreScripts: each script in testdata/store is a terminal session on the machine of a broker that holds
// three works. One of them is being deleted. $DATA is its data directory; stop-broker stops it cleanly.
func TestStoreScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/store", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"stop-broker": func(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(ts.Value(brokerKey{}).(*stored).stop()) },
			"damage":      damage,
			"cmpmasked":   compareMasked,
		},
		Setup: func(e *testscript.Env) error {
			s, err := startStored(t, filepath.Join(e.WorkDir, "data"))
			if err != nil {
				return err
			}
			e.Values[brokerKey{}] = s
			e.Defer(func() {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			})
			ca, cert, key := s.broker.CA.Write(t.TempDir(), operator)
			_, viewerCert, viewerKey := s.broker.CA.Write(t.TempDir(), viewer)
			for name, value := range map[string]string{
				"HAWSER_BROKER": s.broker.Addr, "HAWSER_CA": ca, "HAWSER_CERT": cert, "HAWSER_KEY": key,
				"VIEWER_CERT": viewerCert, "VIEWER_KEY": viewerKey, "DATA": "data",
			} {
				e.Setenv(name, value)
			}
			return nil
		},
	})
}

// TestStore_BackupIsPrivate checks also a target directory that exists with access for all.
func TestStore_BackupIsPrivate(t *testing.T) {
	data, to := filepath.Join(t.TempDir(), "data"), t.TempDir()
	s, err := pebble.Open(pebble.Options{Dir: data})
	if err == nil {
		err = s.Close()
	}
	if err = errors.Join(err, os.Chmod(to, 0o755)); err != nil { //nolint:gosec // open to all is what is tested
		t.Fatal(err)
	}
	syscall.Umask(0o022)
	env := cli.Env{Stdout: io.Discard, Stderr: t.Output(), Now: time.Now}
	if status := cli.Main(t.Context(), env, []string{"store", "backup", "--data-dir", data, "--to", to}); status != 0 {
		t.Fatalf("status %d", status)
	}
	if open, err := cmdline.MakePrivate(to); open != 0 || err != nil {
		t.Errorf("others can read %d files, %v", open, err)
	}
}

type brokerKey struct{}

// stored is a broker with its store on disk.
type stored struct {
	broker  *testkit.Broker
	store   *pebble.Store
	stopped bool
}

func startStored(t *testing.T, dir string) (*stored, error) {
	t.Helper()
	s, err := pebble.Open(pebble.Options{Dir: dir})
	if err != nil {
		return nil, err
	}
	b := testkit.StartBroker(t, testkit.Options{
		Broker: broker.Config{Store: s}, Port: true, Known: []identity.Identity{operator, viewer, hub1},
	})
	fill(t, b)
	return &stored{broker: b, store: s}, nil
}

func (s *stored) stop() error {
	if s.stopped {
		return nil
	}
	s.stopped = true
	s.broker.Stop()
	return s.store.Close()
}

// damage flips one bit in the middle of each table of a store.
func damage(ts *testscript.TestScript, _ bool, args []string) {
	tables, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*.sst"))
	ts.Check(err)
	if len(tables) == 0 {
		ts.Fatalf("no tables in %s", args[0])
	}
	for _, name := range tables {
		b, err := os.ReadFile(name)
		ts.Check(err)
		b[len(b)/4] ^= 1
		ts.Check(os.WriteFile(name, b, 0o600))
	}
}
