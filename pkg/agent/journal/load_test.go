package journal

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
)

// agedLeft is what aged says of objects.
var agedLeft = map[string]string{"a": "left"}

// aged returns a directory with works a and b, a cursor and reported statuses.
func aged(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	j, _, _ := open(t, Config{Dir: dir})
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Put(spec(t, "b", 1)))
	must(t, j.SaveReported(Reported{Sequence: "1", Accepted: map[string]string{"a": "x"}}))
	must(t, j.SaveLeft(agedLeft))
	must(t, j.Reserve("2"))
	must(t, j.Checkpoint(cursor(5)))
	must(t, j.Close())
	return dir
}

func entryPath(dir, id string) string { return filepath.Join(dir, worksDir, entryName(id)) }

func TestLoad_DamageIsDroppedWithTheCursor(t *testing.T) {
	t.Parallel()
	truncate := func(t *testing.T, path string) { t.Helper(); must(t, os.Truncate(path, 20)) }
	replace := func(with func(path string) error) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			t.Helper()
			must(t, os.Remove(path))
			must(t, with(path))
		}
	}
	for name, c := range map[string]struct {
		file  func(dir string) string
		hurt  func(t *testing.T, path string)
		left  holding
		state State
	}{
		"an entry cut off": {func(d string) string { return entryPath(d, "a") }, truncate, holding{"b": 1}, State{Reserved: "2", Works: 1, Damaged: 1}},
		"an empty entry": {
			func(d string) string { return entryPath(d, "a") },
			replace(func(p string) error { return os.WriteFile(p, nil, 0o600) }), holding{"b": 1}, State{Reserved: "2", Works: 1, Damaged: 1},
		},
		"an entry that is a directory": {
			func(d string) string { return entryPath(d, "a") },
			replace(func(p string) error { return os.Mkdir(p, 0o700) }), holding{"b": 1}, State{Reserved: "2", Works: 1, Damaged: 1},
		},
		"an entry that is a pipe": {
			func(d string) string { return entryPath(d, "a") },
			replace(func(p string) error { return syscall.Mkfifo(p, 0o600) }), holding{"b": 1}, State{Reserved: "2", Works: 1, Damaged: 1},
		},
		"an entry that points elsewhere": {
			func(d string) string { return entryPath(d, "a") },
			replace(func(p string) error { return os.Symlink(entryName("b"), p) }), holding{"b": 1}, State{Reserved: "2", Works: 1, Damaged: 1},
		},
		"an entry under another name": {
			func(d string) string { return entryPath(d, "a") },
			replace(func(p string) error { return os.Link(filepath.Join(filepath.Dir(p), entryName("b")), p) }), holding{"b": 1}, State{Reserved: "2", Works: 1, Damaged: 1},
		},
		"a cursor cut off": {func(d string) string { return filepath.Join(d, cursorFile) }, func(t *testing.T, p string) { t.Helper(); must(t, os.Truncate(p, 3)) }, holding{"a": 1, "b": 1}, State{Reserved: "2", Works: 2, Damaged: 1}},
		"no works":         {func(d string) string { return filepath.Join(d, worksDir) }, func(t *testing.T, p string) { t.Helper(); must(t, os.RemoveAll(p)) }, holding{}, State{Reserved: "2", Damaged: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := aged(t)
			c.hurt(t, c.file(dir))
			c.state.Reported, c.state.Left = Reported{Sequence: "1", Accepted: map[string]string{"a": "x"}}, agedLeft
			var log bytes.Buffer
			j, s, h := open(t, Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if diff := cmp.Diff(c.state, s); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.left, h); diff != "" {
				t.Errorf("works (-want +got):\n%s", diff)
			}
			if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), c.file(dir)) {
				t.Errorf("%d lines in the log, want one that names %s:\n%s", n, c.file(dir), &log)
			}
			if _, err := os.Lstat(filepath.Join(dir, cursorFile)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the cursor is still there: %v", err)
			}
			// The broker sends it again.
			must(t, j.Put(spec(t, "a", 2)))
			must(t, j.Put(spec(t, "b", 2)))
			must(t, j.Checkpoint(cursor(9)))
			must(t, j.Close())
			_, s, h = open(t, Config{Dir: dir})
			c.state.Works, c.state.Damaged, c.state.Cursor = 2, 0, cursor(9)
			if diff := cmp.Diff(c.state, s) + cmp.Diff(holding{"a": 2, "b": 2}, h); diff != "" {
				t.Errorf("later (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoad_DamagedReportedCostsOnlyItself(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	must(t, os.Truncate(filepath.Join(dir, reportedFile), 9))
	_, s, _ := open(t, Config{Dir: dir})
	if diff := cmp.Diff(State{Cursor: cursor(5), Reserved: "2", Left: agedLeft, Works: 2, Damaged: 1}, s); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}

func TestLoad_DamagedLeftCostsOnlyItself(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	must(t, os.Truncate(filepath.Join(dir, leftFile), 9))
	_, s, _ := open(t, Config{Dir: dir})
	if s.Left != nil || s.Damaged != 1 || s.Cursor != cursor(5) || s.Works != 2 || s.Reported.Sequence != "1" {
		t.Errorf("got %+v", s)
	}
}

func TestLoad_DamagedSequenceCostsOnlyItself(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	must(t, os.Truncate(filepath.Join(dir, sequenceFile), 3))
	_, s, _ := open(t, Config{Dir: dir})
	if s.Reserved != "" || s.Damaged != 1 || s.Cursor != cursor(5) || s.Works != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestLoad_EntryThatTheCallerCannotUse(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	j, err := Open(Config{Dir: dir})
	must(t, err)
	h := holding{}
	s, err := j.Load(testBinding, func(e codec.Event) error {
		if id, _ := resourceID(e); id == "a" {
			return errors.New("no good")
		}
		return h.take(e)
	})
	if err != nil || s.Damaged != 1 || s.Cursor != (codec.Cursor{}) || s.Works != 1 {
		t.Fatalf("got %+v, %v", s, err)
	}
	must(t, j.Close())
	_, s, _ = open(t, Config{Dir: dir})
	if s.Works != 1 || s.Damaged != 0 {
		t.Errorf("next: %+v", s)
	}
}

func TestLoad_AnotherBinding(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Binding){
		"cluster uid": func(b *Binding) { b.ClusterUID = "uid-2" }, "cluster": func(b *Binding) { b.Cluster = "cluster2" },
		"hub": func(b *Binding) { b.HubHash = "hub2" }, "agent": func(b *Binding) { b.AgentID = "agent2" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := aged(t)
			other := testBinding
			change(&other)
			var log bytes.Buffer
			j, err := Open(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
			must(t, err)
			h := holding{}
			s, err := j.Load(other, h.take)
			if err != nil || len(h) > 0 {
				t.Fatalf("got %v, %v", h, err)
			}
			if diff := cmp.Diff(State{Reserved: "2"}, s); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if !strings.Contains(log.String(), "discarded") {
				t.Errorf("the log does not say so:\n%s", &log)
			}
			must(t, j.Put(spec(t, "c", 1)))
			must(t, j.Close())
			_, s, h = open(t, Config{Dir: dir}) // and back again
			if diff := cmp.Diff(State{Reserved: "2"}, s) + cmp.Diff(holding{}, h); diff != "" {
				t.Errorf("back again (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoad_NewerFormatIsRefused(t *testing.T) {
	t.Parallel()
	for _, file := range []string{bindingFile, cursorFile, reportedFile, leftFile, sequenceFile, instanceFile, worksDir + "/" + entryName("a")} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			dir := aged(t)
			path := filepath.Join(dir, file)
			must(t, os.WriteFile(path, withHead(filepath.Base(file), [2]byte{format + 1, 0}, []byte("new")), 0o600))
			j, err := Open(Config{Dir: dir})
			if err == nil {
				_, err = j.Load(testBinding, ignore)
				must(t, j.Close())
			}
			var newer *FormatError
			if !errors.As(err, &newer) || newer.Path != path || !strings.Contains(err.Error(), "newer release") {
				t.Fatalf("got %v", err)
			}
			// The newer release finds everything.
			for _, f := range []string{bindingFile, cursorFile, reportedFile, leftFile, sequenceFile, instanceFile, worksDir + "/" + entryName("a"), worksDir + "/" + entryName("b")} {
				if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
					t.Error(err)
				}
			}
			if _, err := Open(Config{Dir: dir}); file == instanceFile && !errors.As(err, &newer) {
				t.Errorf("the lock was kept: %v", err)
			}
		})
	}
}

func TestLoad_LeavesStrangersAlone(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	stranger, draft := filepath.Join(dir, worksDir, "lost+found"), entryPath(dir, "c")+draftSuffix
	must(t, os.WriteFile(stranger, nil, 0o600))
	must(t, os.WriteFile(draft, []byte("half"), 0o600))
	_, s, _ := open(t, Config{Dir: dir})
	if s.Damaged != 0 || s.Cursor != cursor(5) || s.Works != 2 {
		t.Errorf("got %+v", s)
	}
	if _, err := os.Stat(stranger); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(draft); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the draft is still there: %v", err)
	}
}
