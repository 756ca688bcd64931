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

// A record that lacks only its last newline is valid. The next record begins with a newline, so both are
// readable.
func TestLoad_CutOffAtTheEnd(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	j, _, _ := open(t, Config{Dir: "state", disk: d})
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Put(spec(t, "a", 2)))
	must(t, j.Close())
	cut := bytes.TrimSuffix(d.files[logFile].data, newline)
	d.files[logFile] = &inode{data: cut, stable: cut}
	for _, next := range []string{"b", "c"} {
		j, _, h := open(t, Config{Dir: "state", disk: d})
		if h["a"] != 2 {
			t.Fatalf("a is %d before %s is put", h["a"], next)
		}
		must(t, j.Put(spec(t, next, 1)))
		must(t, j.Close())
	}
}

var agedLeft = map[string]map[string]string{"a": {"object": "left"}}

var agedState = LoadResult{Cursor: cursor(5), Reserved: "2", Reported: Reported{Sequence: "1", Accepted: map[string]string{"a": "x"}}, Left: agedLeft}

// aged returns a directory with works a and b, a cursor and reported statuses.
func aged(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	j, _, _ := open(t, Config{Dir: dir})
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Put(spec(t, "b", 1)))
	must(t, j.Note(agedState.Reported, agedLeft))
	must(t, j.Reserve("2"))
	must(t, j.Checkpoint(cursor(5)))
	must(t, j.Close())
	return dir
}

// lines returns the records of a log, with their newlines.
func lines(t *testing.T, log string) (all [][]byte) {
	t.Helper()
	b, err := os.ReadFile(log)
	must(t, err)
	for _, line := range bytes.Split(b, newline) {
		if len(line) > 0 {
			all = append(all, bytes.Join([][]byte{nil, line, nil}, newline))
		}
	}
	return all
}

// A flipped bit of a log costs only the record that contains it, and the cursor.
func TestLoad_DamageCostsOneRecord(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	whole := lines(t, filepath.Join(dir, logFile))
	for i := range whole {
		for at := range whole[i] {
			damaged := bytes.Clone(whole[i])
			damaged[at] ^= 1 << (at % 8)
			log := bytes.Join(append(append(append([][]byte{}, whole[:i]...), damaged), whole[i+1:]...), nil)
			d := newMemDisk()
			d.files[logFile] = &inode{data: log, stable: log}
			_, s, h := open(t, Config{Dir: "state", disk: d})

			want, works := agedState, holding{"a": 1, "b": 1}
			hit, err := decodeRecord(without(whole[i]))
			must(t, err)
			want.Damaged, want.Cursor = 1, codec.Cursor{}
			if damaged[at] == '\n' { // a line that is cut in two; not at an end, because the last byte of a checksum is any byte
				want.Damaged = len(bytes.FieldsFunc(damaged, func(r rune) bool { return r == '\n' }))
			}
			switch {
			case i == len(whole)-1 && at == len(damaged)-1: // only the last newline is missing
				want.Damaged, want.Cursor = 0, agedState.Cursor
			case hit.kind == recordWork:
				delete(works, hit.key)
			case hit.kind == recordReported && i > 2: // after the empty one
				want.Reported = Reported{}
			case hit.kind == recordLeft && i > 2:
				want.Left = nil
			}
			if diff := cmp.Diff(want, s) + cmp.Diff(works, h); diff != "" {
				t.Fatalf("byte %d of record %d (%c %s) (-want +got):\n%s", at, i, hit.kind, hit.key, diff)
			}
		}
	}
}

// Unreadable content is reported once, and gone after Compact.
func TestLoad_DamageIsReportedAndGoes(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	log := filepath.Join(dir, logFile)
	all := lines(t, log)
	for i, line := range all {
		if r, err := decodeRecord(without(line)); err == nil && r.key == "a" {
			all[i] = append(line[:20:20], '\n')
		}
	}
	must(t, os.WriteFile(log, bytes.Join(all, nil), 0o600))
	for n, want := range []LoadResult{agedState, agedState} {
		if want.Cursor = (codec.Cursor{}); n == 0 {
			want.Damaged = 1
		}
		var reported bytes.Buffer
		j, s, h := renewed(t, Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&reported, nil))})
		if diff := cmp.Diff(want, s) + cmp.Diff(holding{"b": 1}, h); diff != "" {
			t.Errorf("start %d (-want +got):\n%s", n, diff)
		}
		if lines := strings.Count(reported.String(), "\n"); lines != 1-n || n == 0 && !strings.Contains(reported.String(), log) {
			t.Errorf("start %d: %d lines in the log:\n%s", n, lines, &reported)
		}
		must(t, j.Close())
	}
}

// The last write before a crash was never confirmed: its damage affects nothing else.
func TestLoad_CutOff(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	log := filepath.Join(dir, logFile)
	whole, err := os.ReadFile(log)
	must(t, err)
	late := record{recordWork, "a", []byte("late")}
	for n := range len(late.line()) - 1 {
		d := newMemDisk()
		cut := append(bytes.Clone(whole), late.line()[:n]...)
		d.files[logFile] = &inode{data: cut, stable: cut}
		j, s, h := open(t, Config{Dir: "state", disk: d})
		if diff := cmp.Diff(agedState, s) + cmp.Diff(holding{"a": 1, "b": 1}, h); diff != "" {
			t.Fatalf("cut to %d bytes (-want +got):\n%s", n, diff)
		}
		// A record that is appended without a compaction begins on a new line.
		must(t, j.Put(spec(t, "a", 2)))
		must(t, j.Close())
		_, _, h = open(t, Config{Dir: "state", disk: d})
		if diff := cmp.Diff(holding{"a": 2, "b": 1}, h); diff != "" {
			t.Fatalf("cut to %d bytes, and added to (-want +got):\n%s", n, diff)
		}
	}
}

func TestLoad_SurvivesInvalidLogFile(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]func(path string) error{
		"empty":     func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"pipe":      func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"link":      func(p string) error { return os.Symlink(lockFile, p) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := aged(t)
			log := filepath.Join(dir, logFile)
			must(t, os.Remove(log))
			must(t, with(log))
			var reported bytes.Buffer
			_, s, h := open(t, Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&reported, nil))})
			if diff := cmp.Diff(LoadResult{}, s) + cmp.Diff(holding{}, h); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if name != "empty" && !strings.Contains(reported.String(), "the owner of its works is unreadable") {
				t.Errorf("the log does not report it:\n%s", &reported)
			}
		})
	}
}

func TestLoad_SkipsRejectedWork(t *testing.T) {
	t.Parallel()
	dir := aged(t)
	j, err := Open(Config{Dir: dir})
	must(t, err)
	h := holding{}
	s, err := j.Load(testBinding, func(e codec.Event) error {
		if idOf(e) == "a" {
			return errors.New("no good")
		}
		return h.put(e)
	}, h.removed)
	if err != nil || s.Damaged != 1 || s.Cursor != (codec.Cursor{}) || len(h) != 1 {
		t.Fatalf("got %+v, %v, %v", s, h, err)
	}
	must(t, j.Compact(content(t, h, s)))
	must(t, j.Close())
	_, s, h = open(t, Config{Dir: dir})
	if len(h) != 1 || s.Damaged != 0 {
		t.Errorf("next: %+v, %v", s, h)
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
			instance := j.Instance()
			h := holding{}
			s, err := j.Load(other, h.put, h.removed)
			if err != nil || len(h) > 0 {
				t.Fatalf("got %v, %v", h, err)
			}
			if diff := cmp.Diff(LoadResult{Reserved: "2"}, s); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if !strings.Contains(log.String(), "discarded") {
				t.Errorf("the log does not report it:\n%s", &log)
			}
			must(t, j.Put(spec(t, "c", 1)))
			must(t, j.Close())
			j, s, h = open(t, Config{Dir: dir}) // the first binding again
			if diff := cmp.Diff(LoadResult{Reserved: "2"}, s) + cmp.Diff(holding{}, h); diff != "" || j.Instance() != instance {
				t.Errorf("back again as %s (-want +got):\n%s", j.Instance(), diff)
			}
		})
	}
}

// While a directory of another binding cannot be emptied, nothing is appended to it.
func TestLoad_AnotherBindingOnAFullDisk(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	j, _, _ := open(t, Config{Dir: "state", disk: d})
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Close())
	before := bytes.Clone(d.files[logFile].data)
	d.fault = func(op, _ string) effect {
		if op == "write" {
			return full
		}
		return well
	}
	other := testBinding
	other.ClusterUID = "uid-2"
	j, err := Open(Config{Dir: "state", disk: d})
	must(t, err)
	_, err = j.Load(other, ignore, ignoreID)
	must(t, err)
	for _, err := range []error{j.Put(spec(t, "b", 1)), j.Remove("a"), j.Checkpoint(cursor(1))} {
		if Reason(err) != ReasonFull {
			t.Errorf("got %v", err)
		}
	}
	if !bytes.Equal(before, d.files[logFile].data) {
		t.Error("the log of another was changed")
	}
}

func TestLoad_NewerFormatIsRefused(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int{"at the beginning": 0, "at the end": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := aged(t)
			path := filepath.Join(dir, logFile)
			log, err := os.ReadFile(path)
			must(t, err)
			at := min(at, len(log))
			log = bytes.Join([][]byte{log[:at], newline, withFormat(format + 1), newline, log[at:]}, nil)
			must(t, os.WriteFile(path, log, 0o600))
			j, err := Open(Config{Dir: dir})
			if err == nil {
				_, err = j.Load(testBinding, ignore, ignoreID)
				must(t, j.Close())
			}
			var newer *FormatError
			if !errors.As(err, &newer) || newer.Path != path || !strings.Contains(err.Error(), "newer version") {
				t.Fatalf("got %v", err)
			}
			// The log is unchanged, so the newer version can read it, and the lock is free.
			if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, log) {
				t.Errorf("the log was changed: %v", err)
			}
			if _, err := Open(Config{Dir: dir}); at == 0 && !errors.As(err, &newer) {
				t.Errorf("the lock was kept: %v", err)
			}
		})
	}
}

// former returns a copy of testdata/former, a directory of a former version. That version put and removed c,
// stored a cursor, and then put b again.
func former(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "former"))))
	return dir
}

const formerInstance = "7F2JMBZW4U4SDWFRHZORCUUKHQ"

var formerState = LoadResult{Cursor: cursor(7), Reserved: "14"}

func TestLoad_FormerVersion(t *testing.T) {
	t.Parallel()
	dir := former(t)
	draft := filepath.Join(dir, formerWorks, strings.Repeat("0f", 32)+formerDraft)
	must(t, os.WriteFile(draft, []byte("half"), 0o600))
	for range 2 { // nothing is changed until Compact
		j, s, h := open(t, Config{Dir: dir})
		if diff := cmp.Diff(formerState, s) + cmp.Diff(holding{"a": 2, "b": 2}, h); diff != "" || j.Instance() != formerInstance {
			t.Fatalf("instance %s (-want +got):\n%s", j.Instance(), diff)
		}
		if !j.NeedsCompaction() {
			t.Error("it is not to be renewed")
		}
		must(t, j.Close())
	}
	for range 2 {
		j, s, h := renewed(t, Config{Dir: dir})
		if diff := cmp.Diff(formerState, s) + cmp.Diff(holding{"a": 2, "b": 2}, h); diff != "" || j.Instance() != formerInstance {
			t.Fatalf("instance %s (-want +got):\n%s", j.Instance(), diff)
		}
		must(t, j.Close())
		files, err := os.ReadDir(dir)
		must(t, err)
		if len(files) != 2 {
			t.Errorf("%d files, want lock and log: %v", len(files), files)
		}
	}
}

func TestLoad_FormerVersionOfAnotherBinding(t *testing.T) {
	t.Parallel()
	dir := former(t)
	j, err := Open(Config{Dir: dir})
	must(t, err)
	other := testBinding
	other.AgentID = "other"
	s, err := j.Load(other, func(codec.Event) error { t.Error("loaded"); return nil }, ignoreID)
	must(t, err)
	if diff := cmp.Diff(LoadResult{Reserved: "14"}, s); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	must(t, j.Close())
	if _, err := os.Stat(filepath.Join(dir, formerWorks)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the works are still there: %v", err)
	}
}

func TestLoad_FormerVersionDamaged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state LoadResult
		works int
	}{
		"cursor":   {LoadResult{Reserved: "14", Damaged: 1}, 2},
		"sequence": {LoadResult{Damaged: 1}, 2},
		"instance": {LoadResult{Reserved: "14", Damaged: 1}, 2},
		"binding":  {LoadResult{Reserved: "14"}, 0},
		"works/ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb": {LoadResult{Reserved: "14", Damaged: 1}, 1},
	} {
		dir := former(t)
		must(t, os.Truncate(filepath.Join(dir, name), 4))
		_, s, h := open(t, Config{Dir: dir})
		if diff := cmp.Diff(c.state, s); diff != "" || len(h) != c.works {
			t.Errorf("%s: %d works (-want +got):\n%s", name, len(h), diff)
		}
	}
}

func TestLoad_LegacyVersionLeavesUnknownFilesAlone(t *testing.T) {
	t.Parallel()
	dir := former(t)
	quarantined := filepath.Join(dir, formerWorks, "lost+found")
	must(t, os.WriteFile(quarantined, nil, 0o600))
	j, s, h := open(t, Config{Dir: dir})
	if diff := cmp.Diff(formerState, s); diff != "" || len(h) != 2 {
		t.Errorf("%d works (-want +got):\n%s", len(h), diff)
	}
	must(t, j.Compact(content(t, h, s)))
	if files, err := os.ReadDir(filepath.Join(dir, formerWorks)); err != nil || len(files) != 1 {
		t.Errorf("left: %v, %v", files, err)
	}
}
