package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	if seen != 3 {
		t.Errorf("%d files and directories, want the directory, lock and log", seen)
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
			"Note": j.Note(Reported{}, nil), "Reserve": j.Reserve("1"), "Renew": j.Compact(Content{}),
		} {
			if !errors.Is(err, errNotLoaded) && !errors.Is(err, errClosed) {
				t.Errorf("%s %s: %v", name, when, err)
			}
		}
	}
	unusable("before Load")
	_, err = j.Load(testBinding, ignore, ignoreID)
	must(t, err)
	if _, err := j.Load(testBinding, ignore, ignoreID); err == nil {
		t.Error("a second Load")
	}
	unnamed := spec(t, "a", 1)
	unnamed.SetExtension(codec.ExtResourceID, nil)
	if err := j.Put(unnamed); err == nil {
		t.Error("an event that names no work: stored")
	}
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Close())
	must(t, j.Close())
	unusable("after Close")
}

// failing returns a fault for each operation with one of these names.
func failing(kind effect, ops ...string) func(op, name string) effect {
	return func(op, _ string) effect {
		if slices.Contains(ops, op) {
			return kind
		}
		return well
	}
}

// After a failure the content on disk is unknown, so nothing is appended before the log is compacted.
func TestJournal_FullAndBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		op     string
		kind   effect
		reason string
	}{{"append", full, ReasonFull}, {"append", refused, ReasonFailed}, {"append", torn, ReasonFailed}, {"sync", refused, ReasonFailed}} {
		t.Run(c.op+c.reason+fmt.Sprint(c.kind), func(t *testing.T) {
			t.Parallel()
			d := newMemDisk()
			j, _, _ := open(t, Config{Dir: "state", disk: d})
			must(t, j.Put(spec(t, "a", 1)))
			must(t, j.Checkpoint(cursor(1)))
			d.fault = failing(c.kind, c.op)
			var failed *Error
			err := errors.Join(j.Put(spec(t, "a", 2)), j.Checkpoint(cursor(2)))
			if !errors.As(err, &failed) || Reason(err) != c.reason {
				t.Fatalf("got %v", err)
			}
			for _, err := range []error{j.Compact(content(t, holding{"a": 2}, LoadResult{})), j.Put(spec(t, "b", 1)), j.Checkpoint(cursor(2)), j.Reserve("1")} {
				if Reason(err) != c.reason {
					t.Errorf("got %v", err)
				}
			}
			d.fault = nil
			if err := j.Checkpoint(cursor(2)); Reason(err) != c.reason || !j.NeedsCompaction() {
				t.Errorf("before Renew: %v", err)
			}
			if len(d.files) != 1 {
				t.Errorf("half of a log is left: %v", slices.Sorted(maps.Keys(d.files)))
			}
			must(t, j.Compact(content(t, holding{"a": 2}, LoadResult{})))
			must(t, j.Checkpoint(cursor(2)))
			must(t, j.Close())
			_, s, h := open(t, Config{Dir: "state", disk: d})
			if diff := cmp.Diff(holding{"a": 2}, h); diff != "" || s.Cursor != cursor(2) || s.Damaged != 0 {
				t.Errorf("got %+v (-want +got):\n%s", s, diff)
			}
		})
	}
}

// Without space for a second log the first one continues to work.
func TestCompact_NoSpace(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	j, _, _ := open(t, Config{Dir: "state", disk: d})
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Close())
	j, s, h := open(t, Config{Dir: "state", disk: d})
	if !j.NeedsCompaction() {
		t.Error("what an earlier process left is to be renewed")
	}
	d.fault = func(op, name string) effect {
		if name == draftFile {
			return failing(full, "write", "append")(op, name)
		}
		return well
	}
	if err := j.Compact(content(t, h, s)); Reason(err) != ReasonFull || !j.NeedsCompaction() {
		t.Errorf("got %v", err)
	}
	must(t, j.Put(spec(t, "b", 1)))
	must(t, j.Checkpoint(cursor(1)))
	must(t, j.Close())
	_, s, h = open(t, Config{Dir: "state", disk: d})
	if diff := cmp.Diff(holding{"a": 1, "b": 1}, h); diff != "" || s.Cursor != cursor(1) {
		t.Errorf("got %+v (-want +got):\n%s", s, diff)
	}
}

// A work that cannot be encoded ends Compact, and affects no other work.
func TestCompact_FailsOnUnencodableWork(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	j, _, _ := open(t, Config{Dir: "state", disk: d})
	must(t, j.Put(spec(t, "a", 1)))
	errWork := errors.New("no bytes")
	for _, yielded := range []struct {
		e   codec.Event
		err error
	}{{codec.Event{}, errWork}, {codec.Event{}, nil}} {
		err := j.Compact(Content{Works: func(yield func(codec.Event, error) bool) {
			if yield(yielded.e, yielded.err) {
				t.Error("it goes on")
			}
		}})
		if err == nil || yielded.err != nil && !errors.Is(err, errWork) {
			t.Errorf("got %v", err)
		}
	}
	must(t, j.Close())
	if _, _, h := open(t, Config{Dir: "state", disk: d}); len(h) != 1 {
		t.Errorf("got %v", h)
	}
}

// A directory that is full from the start is used once there is space.
func TestJournal_FullAtTheStart(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	d.fault = failing(full, "write", "append")
	j, _, _ := open(t, Config{Dir: "state", disk: d})
	if j.Instance() == "" {
		t.Error("no instance id")
	}
	for _, err := range []error{j.Put(spec(t, "a", 1)), j.Checkpoint(cursor(1)), j.Note(Reported{}, nil)} {
		if Reason(err) != ReasonFull {
			t.Errorf("got %v", err)
		}
	}
	d.fault = nil
	must(t, j.Compact(content(t, nil, LoadResult{})))
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Checkpoint(cursor(1)))
}

// A directory that is unusable at the start is used once it can be. Its content is no longer relied on, except
// the limit of used sequence ids.
func TestJournal_UnusableAtTheStart(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	first, _, _ := open(t, Config{Dir: "state", disk: d})
	must(t, first.Put(spec(t, "a", 1)))
	must(t, first.Reserve("7"))
	must(t, first.Compact(content(t, holding{"a": 1}, LoadResult{})))
	must(t, first.Checkpoint(cursor(1)))
	must(t, first.Close())

	d.fault = func(op, _ string) effect {
		if op == "mkdir" {
			return well
		}
		return refused
	}
	var log bytes.Buffer
	j, s, h := open(t, Config{Dir: "state", disk: d, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if diff := cmp.Diff(LoadResult{}, s) + cmp.Diff(holding{}, h); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	if j.Instance() == "" || j.Instance() == first.Instance() || !strings.Contains(log.String(), "cannot be used") {
		t.Errorf("instance %q, the log:\n%s", j.Instance(), &log)
	}
	for _, err := range []error{j.Put(spec(t, "b", 1)), j.Remove("a"), j.Checkpoint(cursor(2)), j.Note(Reported{}, nil)} {
		var failed *Error
		if !errors.As(err, &failed) || Reason(err) != ReasonFailed {
			t.Errorf("got %v", err)
		}
	}
	d.fault = nil
	must(t, j.Compact(content(t, holding{"b": 1}, LoadResult{})))
	must(t, j.Checkpoint(cursor(3)))
	must(t, j.Close())
	_, s, h = open(t, Config{Dir: "state", disk: d})
	if diff := cmp.Diff(LoadResult{Cursor: cursor(3), Reserved: "7"}, s) + cmp.Diff(holding{"b": 1}, h); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
}

// The directory is unreadable at the start. Later it turns out to be of a newer version, or in use by another
// process. It is not used then either.
func TestJournal_UnusableAtTheStartAndNotOurs(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*memDisk){
		"newer": func(d *memDisk) {
			d.files[logFile] = &inode{data: slices.Concat(newline, withFormat(format+1), newline)}
		},
		"locked": func(d *memDisk) { d.locked = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newMemDisk()
			d.fault = failing(refused, "lock")
			j, _, _ := open(t, Config{Dir: "state", disk: d})
			d.fault = nil
			change(d)
			before := len(d.files)
			for _, err := range []error{j.Compact(content(t, nil, LoadResult{})), j.Put(spec(t, "a", 1))} {
				if err == nil || Reason(err) != ReasonFailed {
					t.Errorf("got %v", err)
				}
			}
			if len(d.files) != before {
				t.Error("files changed")
			}
		})
	}
}

// The cursor is written only after the works are on stable storage.
func TestCheckpoint_OrderOfOperations(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	j, _, _ := open(t, Config{Dir: "state", disk: d})
	var ops []string
	d.fault = func(op, name string) effect {
		ops = append(ops, op+" "+name)
		return well
	}
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Checkpoint(cursor(1)))
	must(t, j.Checkpoint(cursor(1)))
	want := []string{"append log", "sync log", "append log", "sync log", "sync log"}
	if diff := cmp.Diff(want, ops); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	ops = nil
	must(t, j.Compact(content(t, holding{"a": 1}, LoadResult{})))
	want = []string{"remove log.new", "write log.new", "append log.new", "sync log.new", "rename log.new", "sync ."}
	if diff := cmp.Diff(want, ops[:len(want)]); diff != "" {
		t.Errorf("operations of Renew (-want +got):\n%s", diff)
	}
}

// The content of a work appears neither in a log nor in an error.
func TestJournal_LogsNoSecret(t *testing.T) {
	t.Parallel()
	const secret = "c2VjcmV0LXZhbHVl"
	dir := t.TempDir()
	var log bytes.Buffer
	c := Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, hurt := range []func(r record) []byte{
		func(r record) []byte { return append(r.line()[:30], '\n') },
		func(r record) []byte { r.value = r.value[:len(r.value)-5]; return r.line() }, // not an event, although the checksum is correct
	} {
		j, _, _ := open(t, c)
		e := spec(t, "a", 1)
		must(t, e.SetData(codec.ContentTypeJSON, map[string]any{"manifests": []any{secret}}))
		e.SetExtension(codec.ExtMetadata, secret)
		must(t, j.Put(e))
		must(t, j.Close())
		file := filepath.Join(dir, logFile)
		all := lines(t, file)
		last := all[len(all)-1]
		if !bytes.Contains(last, []byte(secret)) {
			t.Fatal("the test is no test: the secret is not in the file as it is")
		}
		r, err := decodeRecord(without(last))
		must(t, err)
		all[len(all)-1] = hurt(r)
		must(t, os.WriteFile(file, bytes.Join(all, nil), 0o600))
		j, s, h := open(t, c)
		if s.Damaged != 1 {
			t.Errorf("got %+v", s)
		}
		must(t, j.Compact(content(t, h, s)))
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
			if err := errors.Join(j.Checkpoint(cursor(n+1)), j.Note(Reported{Sequence: fmt.Sprint(n)}, nil)); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	must(t, j.Close())
	_, s, h := open(t, Config{Dir: dir})
	if diff := cmp.Diff(LoadResult{Cursor: cursor(10), Reported: Reported{Sequence: "9"}}, s); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(holding{"0": 30, "1": 30, "2": 30, "3": 30}, h); diff != "" {
		t.Errorf("works (-want +got):\n%s", diff)
	}
}

// TestJournal_Killed repeatedly kills a process in the middle of its work. Everything that it reported as
// stored is on disk. The test binary itself is that process.
func TestJournal_Killed(t *testing.T) {
	t.Parallel()
	const variable = "HAWSER_TEST_JOURNAL"
	if dir := os.Getenv(variable); dir != "" {
		storeForEver(t, dir)
		return
	}
	dir := t.TempDir()
	stored, checkpoint := holding{}, uint64(0)
	noteLine := func(line string) {
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
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestJournal_Killed$")
		cmd.Env = append(os.Environ(), variable+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for read := 0; read < 40+13*round && lines.Scan(); read++ {
			noteLine(lines.Text())
		}
		must(t, cmd.Process.Kill())
		for lines.Scan() { // reports before the kill count too
			noteLine(lines.Text())
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
