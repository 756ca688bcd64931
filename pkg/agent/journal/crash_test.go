package journal

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// script is a process in TestJournal_CrashAnywhere. It records which steps succeeded, and check compares that
// with the disk.
type script struct {
	t testing.TB
	d *memDisk
	// past has the states of each work in order; 0 means no work. done is the index of the latest state that the
	// next process certainly sees. stable is that of the latest state that survives a power loss.
	past         map[string][]int32
	done, stable map[string]int
	// cursors has the states covered by each stored cursor, by revision. kept is the latest stable cursor.
	cursors map[uint64]map[string]int
	kept    uint64
}

func newScript(t testing.TB, d *memDisk, start holding) *script {
	s := &script{t: t, d: d, past: map[string][]int32{}, done: map[string]int{}, stable: map[string]int{}, cursors: map[uint64]map[string]int{}}
	for _, id := range []string{"a", "b", "c"} {
		s.past[id] = []int32{start[id]}
	}
	return s
}

func (s *script) now() map[string]int {
	now := map[string]int{}
	for id, past := range s.past {
		now[id] = len(past) - 1
	}
	return now
}

// run performs the steps until one fails, and reports whether all succeeded.
func (s *script) run() bool {
	j, err := Open(Config{Dir: "state", disk: s.d})
	if err != nil {
		return false
	}
	h := holding{}
	state, err := j.Load(testBinding, h.put, h.removed)
	must(s.t, err)
	change := func(id string, version int32, do func() error) bool {
		s.past[id] = append(s.past[id], version)
		if do() != nil {
			return false
		}
		h[id], s.done[id] = version, len(s.past[id])-1
		if version == 0 {
			delete(h, id)
		}
		return true
	}
	put := func(id string, version int) bool {
		return change(id, int32(version), func() error { return j.Put(spec(s.t, id, version)) })
	}
	checkpoint := func(n int) bool {
		s.cursors[uint64(n)] = s.now()
		if j.Checkpoint(cursor(n)) != nil {
			return false
		}
		s.stable, s.kept = s.now(), uint64(n)
		return true
	}
	renew := func() bool {
		if j.Compact(content(s.t, h, state)) != nil {
			return false
		}
		s.stable = s.now()
		return true
	}
	return renew() && put("a", 11) && put("b", 11) && checkpoint(11) && put("a", 12) && put("c", 11) &&
		change("b", 0, func() error { return j.Remove("b") }) && checkpoint(12) && renew() && put("c", 12) && j.Reserve("9") == nil && checkpoint(13)
}

// check loads the directory and compares it with the recorded steps.
func (s *script) check(at string, lost bool) {
	j, err := Open(Config{Dir: "state", disk: s.d})
	must(s.t, err)
	h := holding{}
	state, err := j.Load(testBinding, h.put, h.removed)
	must(s.t, err)
	from := maps.Clone(s.done)
	if lost {
		from = s.stable
	}
	covered := s.cursors[state.Cursor.Revision]
	if state.Cursor.Revision < s.kept && state.Damaged == 0 {
		s.t.Fatalf("%s: cursor %v, stable was %d", at, state.Cursor, s.kept)
	}
	for id, past := range s.past {
		if !slices.Contains(past[max(from[id], covered[id]):], h[id]) {
			s.t.Fatalf("%s: work %s is %d, want one of %v (%+v)", at, id, h[id], past[max(from[id], covered[id]):], state)
		}
	}
	must(s.t, j.Compact(content(s.t, h, state)))
	must(s.t, j.Close())
}

// TestJournal_CrashAnywhere ends a process before, in and after each operation of the file system, with each
// result that a power loss can have. It also fails each operation. It runs in an empty directory, and in one of
// a former version.
func TestJournal_CrashAnywhere(t *testing.T) {
	t.Parallel()
	formerFiles := map[string][]byte{}
	dir := former(t)
	must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		must(t, err)
		formerFiles[name], err = os.ReadFile(path)
		return err
	}))
	for name, start := range map[string]struct {
		files map[string][]byte
		has   holding
		at    codec.Cursor
	}{"empty": {}, "former": {formerFiles, holding{"a": 2, "b": 2}, cursor(7)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			total := 0
			for reached := true; reached; total++ {
				reached = false
				for _, kind := range []effect{refused, full, torn, crashBefore, crashAfter} {
					for remains := range 7 { // 6: there is no power loss
						d := newMemDisk()
						for name, b := range start.files {
							d.files[name] = &inode{data: b, stable: b}
						}
						s := newScript(t, d, start.has)
						if s.kept = start.at.Revision; s.kept > 0 {
							s.cursors[s.kept] = s.now()
						}
						n := 0
						d.fault = func(string, string) effect {
							if n++; n-1 == total {
								return kind
							}
							return well
						}
						(&model{}).survive(func() { s.run() })
						d.fault, reached = nil, reached || n > total
						if remains < 6 {
							d.powerLoss(func(n int) int { return min(remains, n-1) })
						}
						d.endProcess()
						s.check(fmt.Sprintf("operation %d, effect %d, remains %d", total, kind, remains), remains < 6)
					}
				}
			}
			if total < 40 {
				t.Errorf("%d operations", total)
			}
		})
	}
}
