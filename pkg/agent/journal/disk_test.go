package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
)

func TestOpen_OneProcessAtATime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "by", "Open")
	j, _, _ := open(t, Config{Dir: dir})
	var locked *LockedError
	if _, err := Open(Config{Dir: dir}); !errors.As(err, &locked) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a second Journal: %v, want an error that names %s", err, dir)
	}
	must(t, j.Close())
	open(t, Config{Dir: dir})
}

func TestOpen_NoDirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	var failed *Error
	if _, err := Open(Config{Dir: filepath.Join(file, "state")}); !errors.As(err, &failed) || Reason(err) != ReasonFailed || !strings.Contains(err.Error(), file) {
		t.Fatalf("below a file: %v", err)
	}
}

func TestJournal_FilesAreForTheOwnerOnly(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	j, _, _ := open(t, Config{Dir: dir})
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.SaveReported(Reported{Sequence: "1"}))
	must(t, j.Checkpoint(cursor(1)))
	seen := 0
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		want := os.FileMode(0o600)
		if e.IsDir() {
			want = os.ModeDir | 0o700
		}
		if seen++; err == nil && info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
		return err
	}))
	// The directory, works, a, and the five files beside it.
	if seen != 8 {
		t.Errorf("%d files and directories, want 8", seen)
	}
}

func TestJournal_OrderOfUse(t *testing.T) {
	t.Parallel()
	j, err := Open(Config{Dir: t.TempDir()})
	must(t, err)
	unusable := func(when string) {
		t.Helper()
		for name, err := range map[string]error{
			"Put": j.Put(spec(t, "a", 1)), "Remove": j.Remove("a"), "Checkpoint": j.Checkpoint(cursor(1)),
			"DropCursor": j.DropCursor(), "SaveReported": j.SaveReported(Reported{}), "Reserve": j.Reserve("1"),
		} {
			if !errors.Is(err, errNotLoaded) {
				t.Errorf("%s %s: %v", name, when, err)
			}
		}
	}
	unusable("before Load")
	_, err = j.Load(testBinding, ignore)
	must(t, err)
	if _, err := j.Load(testBinding, ignore); !errors.Is(err, errLoaded) {
		t.Errorf("a second Load: %v", err)
	}
	if err := j.Checkpoint(codec.Cursor{}); !errors.Is(err, errNoCursor) {
		t.Errorf("a checkpoint without a cursor: %v", err)
	}
	nameless := spec(t, "a", 1)
	nameless.SetExtension(codec.ExtResourceID, nil)
	if err := j.Put(nameless); err == nil {
		t.Error("an event that names no work: stored")
	}
	must(t, j.Close())
	must(t, j.Close())
	unusable("after Close")
}

func TestJournal_FullAndBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind   effect
		reason string
	}{{full, ReasonFull}, {refused, ReasonFailed}, {torn, ReasonFailed}} {
		t.Run(c.reason+fmt.Sprint(c.kind), func(t *testing.T) {
			t.Parallel()
			d := newMemDisk()
			j, _, _ := open(t, Config{Dir: "state", disk: d, width: 1})
			must(t, j.Put(spec(t, "a", 1)))
			must(t, j.Checkpoint(cursor(1)))
			d.fault = func(op, _ string) effect {
				if op == "write" {
					return c.kind
				}
				return well
			}
			var failed *Error
			err := j.Put(spec(t, "a", 2))
			if !errors.As(err, &failed) || failed.Op != "write" || Reason(err) != c.reason {
				t.Fatalf("got %v", err)
			}
			if diff := cmp.Diff([]string{"a"}, j.Dirty()); diff != "" {
				t.Errorf("dirty (-want +got):\n%s", diff)
			}
			if err := j.Checkpoint(cursor(2)); Reason(err) != c.reason || !strings.Contains(err.Error(), "1 works") {
				t.Errorf("a checkpoint: %v", err)
			}
			d.fault = nil
			if err := j.Checkpoint(cursor(2)); err == nil {
				t.Error("a checkpoint, but a is not on disk")
			}
			must(t, j.Put(spec(t, "a", 2)))
			must(t, j.Checkpoint(cursor(2)))
			if len(j.Dirty()) > 0 {
				t.Errorf("dirty: %q", j.Dirty())
			}
			for name := range d.files {
				if strings.HasSuffix(name, draftSuffix) {
					t.Errorf("the draft %s is left", name)
				}
			}
		})
	}
}

// A directory that is full from the first moment serves once there is room.
func TestJournal_FullAtTheStart(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	d.fault = func(op, _ string) effect {
		if op == "write" {
			return full
		}
		return well
	}
	j, _, _ := open(t, Config{Dir: "state", disk: d, width: 1})
	if j.Instance() == "" {
		t.Error("no instance id")
	}
	for _, err := range []error{j.Put(spec(t, "a", 1)), j.Checkpoint(cursor(1)), j.SaveReported(Reported{})} {
		if Reason(err) != ReasonFull {
			t.Errorf("got %v", err)
		}
	}
	d.fault = nil
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Checkpoint(cursor(1)))
}

// A directory that cannot be used at the start serves once it can; what was in
// it is not relied on any more.
func TestJournal_UnusableAtTheStart(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	first, _, _ := open(t, Config{Dir: "state", disk: d, width: 1})
	must(t, first.Put(spec(t, "a", 1)))
	must(t, first.Checkpoint(cursor(1)))
	must(t, first.Close())

	d.fault = func(op, _ string) effect {
		if op == "mkdir" {
			return well
		}
		return refused
	}
	var log bytes.Buffer
	j, s, h := open(t, Config{Dir: "state", disk: d, width: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if diff := cmp.Diff(State{}, s) + cmp.Diff(holding{}, h); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	if j.Instance() == "" || j.Instance() == first.Instance() || !strings.Contains(log.String(), "cannot be used") {
		t.Errorf("instance %q, the log:\n%s", j.Instance(), &log)
	}
	for _, err := range []error{j.Put(spec(t, "b", 1)), j.Remove("a"), j.Checkpoint(cursor(2)), j.DropCursor(), j.SaveReported(Reported{})} {
		var failed *Error
		if !errors.As(err, &failed) || Reason(err) != ReasonFailed {
			t.Errorf("got %v", err)
		}
	}
	d.fault = nil
	must(t, j.Put(spec(t, "b", 1)))
	must(t, j.Checkpoint(cursor(3)))
	must(t, j.Close())
	_, s, h = open(t, Config{Dir: "state", disk: d, width: 1})
	if diff := cmp.Diff(State{Cursor: cursor(3), Works: 1}, s) + cmp.Diff(holding{"b": 1}, h); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
}

// Nor does it take a directory from a newer release, or from another process,
// that it could not look into at the start.
func TestJournal_UnusableAtTheStartAndNotOurs(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*memDisk){
		"newer": func(d *memDisk) {
			d.files[bindingFile] = &inode{data: withHead(bindingFile, [2]byte{format + 1, 0}, nil)}
		},
		"locked": func(d *memDisk) { d.locked = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newMemDisk()
			d.fault = func(op, _ string) effect {
				if op == "lock" {
					return refused
				}
				return well
			}
			j, _, _ := open(t, Config{Dir: "state", disk: d, width: 1})
			d.fault = nil
			change(d)
			before := len(d.files)
			if err := j.Put(spec(t, "a", 1)); err == nil || Reason(err) != ReasonFailed {
				t.Errorf("got %v", err)
			}
			if len(d.files) != before {
				t.Error("files changed")
			}
		})
	}
}

// The cursor is not written before the works, and not at all if nothing changed.
func TestCheckpoint_OrderOfOperations(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	j, _, _ := open(t, Config{Dir: "state", disk: d, width: 1})
	must(t, j.Put(spec(t, "a", 1)))
	var ops []string
	d.fault = func(op, name string) effect {
		ops = append(ops, op+" "+strings.ReplaceAll(name, entryName("a"), "a"))
		return well
	}
	must(t, j.Checkpoint(cursor(1)))
	want := []string{"sync works/a", "sync works", "write cursor.new", "sync cursor.new", "rename cursor.new", "sync ."}
	if diff := cmp.Diff(want, ops); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	ops = nil
	must(t, j.Checkpoint(cursor(1)))
	if len(ops) > 0 {
		t.Errorf("nothing changed, but %q", ops)
	}
}

// What is in a work appears neither in a log nor in an error.
func TestJournal_TellsNoSecret(t *testing.T) {
	t.Parallel()
	const secret = "c2VjcmV0LXZhbHVl"
	dir := t.TempDir()
	var log bytes.Buffer
	c := Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, hurt := range []func(b []byte) []byte{
		func(b []byte) []byte { return b[:len(b)/2] },
		func(b []byte) []byte { // an event that lacks what it needs, with a good checksum
			return seal(entryName("a"), bytes.ReplaceAll(b[fileHead:len(b)-fileTail], []byte("resourceid"), []byte("resourcexx")))
		},
	} {
		j, _, _ := open(t, c)
		e := spec(t, "a", 1)
		must(t, e.SetData(codec.ContentTypeJSON, map[string]any{"manifests": []any{secret}}))
		e.SetExtension(codec.ExtMetadata, secret)
		must(t, j.Put(e))
		must(t, j.Checkpoint(cursor(1)))
		must(t, j.Close())
		b, err := os.ReadFile(entryPath(dir, "a"))
		must(t, err)
		if !bytes.Contains(b, []byte(secret)) {
			t.Fatal("the test is no test: the secret is not in the file as it is")
		}
		must(t, os.WriteFile(entryPath(dir, "a"), hurt(b), 0o600))
		j, s, _ := open(t, c)
		if s.Damaged != 1 {
			t.Errorf("got %+v", s)
		}
		must(t, j.Close())
	}
	if strings.Contains(log.String(), secret) || log.Len() == 0 {
		t.Errorf("the log:\n%s", &log)
	}
}

func TestJournal_ConcurrentUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _, _ := open(t, Config{Dir: dir})
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for n := range 30 {
				id := fmt.Sprint(w)
				err := j.Put(spec(t, id, n+1))
				if n%7 == 3 {
					err = errors.Join(err, j.Remove(id))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for n := range 10 {
			if err := errors.Join(j.Checkpoint(cursor(n+1)), j.SaveReported(Reported{Sequence: fmt.Sprint(n)})); err != nil {
				t.Error(err)
			}
			if dirty := j.Dirty(); len(dirty) > 0 {
				t.Errorf("dirty: %q", dirty)
			}
		}
	})
	all.Wait()
	must(t, j.Close())
	_, s, h := open(t, Config{Dir: dir})
	if diff := cmp.Diff(State{Cursor: cursor(10), Works: 4, Reported: Reported{Sequence: "9", Accepted: map[string]string{}}}, s); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(holding{"0": 30, "1": 30, "2": 30, "3": 30}, h); diff != "" {
		t.Errorf("works (-want +got):\n%s", diff)
	}
}

// TestJournal_Killed kills a process in the middle of its work, again and again.
// What it said that it stored is there. It is that process too.
func TestJournal_Killed(t *testing.T) {
	t.Parallel()
	const variable = "HAWSER_TEST_JOURNAL"
	if dir := os.Getenv(variable); dir != "" {
		storeForEver(t, dir)
		return
	}
	dir := t.TempDir()
	stored, checkpoint := holding{}, uint64(0)
	hear := func(line string) {
		var id string
		var version int32
		if _, err := fmt.Sscanf(line, "put %s %d.", &id, &version); err == nil {
			stored[id] = version
		}
		var n uint64
		if _, err := fmt.Sscanf(line, "checkpoint %d.", &n); err == nil {
			checkpoint = n
		}
	}
	for life := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestJournal_Killed$")
		cmd.Env = append(os.Environ(), variable+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for read := 0; read < 40+13*life && lines.Scan(); read++ {
			hear(lines.Text())
		}
		must(t, cmd.Process.Kill())
		for lines.Scan() { // what was said before the end counts too
			hear(lines.Text())
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the process ended by itself")
		}
		j, s, h := open(t, Config{Dir: dir})
		for id, version := range stored {
			if h[id] < version {
				t.Errorf("work %s is %d, stored was %d", id, h[id], version)
			}
		}
		if s.Damaged != 0 || s.Cursor.Revision < checkpoint || len(stored) == 0 || checkpoint == 0 {
			t.Errorf("got %+v, stored %d works and checkpoint %d", s, len(stored), checkpoint)
		}
		must(t, j.Close())
	}
}

func storeForEver(t *testing.T, dir string) {
	j, s, h := open(t, Config{Dir: dir})
	version := int32(s.Cursor.Revision)
	for _, v := range h {
		version = max(version, v)
	}
	for {
		version++
		id := fmt.Sprint(version % 5)
		must(t, j.Put(spec(t, id, int(version))))
		fmt.Fprintf(os.Stdout, "put %s %d.\n", id, version)
		if version%4 == 0 {
			must(t, j.Checkpoint(cursor(int(version))))
			fmt.Fprintf(os.Stdout, "checkpoint %d.\n", version)
		}
	}
}
