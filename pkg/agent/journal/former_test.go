package journal

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
)

// formerLog is a directory that the agent of commit 0647681f wrote, by TestFormer_Write of package agent in that
// commit. It has records of all kinds. testdata/former-2.txt is the output of describe for it.
const formerLog = "testdata/former-2"

var formerLogBinding = Binding{
	ClusterUID: "uid-of-kube-system", Cluster: "cluster1",
	HubHash: "40cec1a8e5ea99a037d9b28af3b4adfd461d0eeda669126e016cab30ce28a227", AgentID: "agent-id",
}

// entries collects what Load finds: the attributes of each work, and what was removed.
type entries struct {
	works   map[string]string
	removed []string
}

func (n *entries) put(e codec.Event) error {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(e.Extensions())) {
		value, _, err := codec.StringExtension(e, name)
		if err != nil { // the attribute is a number or a time
			value = "*"
		}
		parts = append(parts, name+"="+value)
	}
	action := e.Type()[strings.LastIndexByte(e.Type(), '.')+1:]
	n.works[idOf(e)] = strings.Join(append(parts, action, e.Source(), e.ID(), string(e.Data())), "\n")
	return nil
}

func (n *entries) drop(id string) {
	delete(n.works, id)
	n.removed = append(n.removed, id)
}

// loadFormer opens and loads a copy of the directory.
func loadFormer(t *testing.T, dir string, b Binding) (*Journal, LoadResult, entries) {
	t.Helper()
	j, err := Open(Config{Dir: dir})
	must(t, err)
	n := entries{works: map[string]string{}}
	s, err := j.Load(b, n.put, n.drop)
	must(t, err)
	return j, s, n
}

// describe returns one line for each loaded item.
func describe(j *Journal, s LoadResult, n entries) (lines []string) {
	send := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	send("instance %s", j.Instance())
	send("cursor %s reserved %s damaged %d", s.Cursor, s.Reserved, s.Damaged)
	send("reported up to %s", s.Reported.Sequence)
	for _, id := range slices.Sorted(maps.Keys(s.Reported.Accepted)) {
		send("accepted %s %s", id, s.Reported.Accepted[id])
	}
	for _, key := range slices.Sorted(maps.Keys(s.Left)) {
		for _, object := range slices.Sorted(maps.Keys(s.Left[key])) {
			send("left %s %s %s", key, object, s.Left[key][object])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(n.works)) {
		for _, line := range strings.Split(n.works[id], "\n") {
			send("work %s %s", id, line)
		}
	}
	send("removed %q", n.removed)
	return lines
}

// TestFormer_Log checks the directory of a former agent. It contains the instance, the cursor, the accepted
// statuses, and the states of objects. Each work has the attributes with which it was written.
func TestFormer_Log(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	must(t, os.CopyFS(dir, os.DirFS(formerLog)))
	b, err := os.ReadFile(formerLog + ".txt")
	must(t, err)
	want := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for range 2 { // reading changes nothing, so the second result is the same
		j, s, n := loadFormer(t, dir, formerLogBinding)
		got := describe(j, s, n)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		must(t, j.Close())
	}
}

// TestFormer_LogGoesOn checks that new works, statuses and cursors are read together with what a former agent
// wrote. This also holds after the log is rewritten.
func TestFormer_LogGoesOn(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	must(t, os.CopyFS(dir, os.DirFS(formerLog)))
	j, s, n := loadFormer(t, dir, formerLogBinding)
	must(t, j.Put(spec(t, "w-4", 2)))
	must(t, j.Remove("w-3"))
	must(t, j.Reserve("2006925224309694464"))
	must(t, j.Checkpoint(cursor(20)))
	instance := j.Instance()
	must(t, j.Close())
	for range 2 {
		again, t2, m := loadFormer(t, dir, formerLogBinding)
		want := s
		want.Cursor, want.Reserved = cursor(20), "2006925224309694464"
		if diff := cmp.Diff(want, t2); diff != "" || again.Instance() != instance {
			t.Errorf("instance %s, state (-want +got):\n%s", again.Instance(), diff)
		}
		if len(m.works) != len(n.works)-1 || m.works["w-1"] != n.works["w-1"] || m.works["w-4"] == n.works["w-4"] || m.works["w-3"] != "" {
			t.Errorf("works %v", slices.Sorted(maps.Keys(m.works)))
		}
		must(t, again.Close())
	}
}

// TestFormer_LogOfAnotherBinding: the content is discarded, except the reserved sequence ids.
func TestFormer_LogOfAnotherBinding(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	must(t, os.CopyFS(dir, os.DirFS(formerLog)))
	other := formerLogBinding
	other.ClusterUID = "another"
	j, s, n := loadFormer(t, dir, other)
	if diff := cmp.Diff(LoadResult{Reserved: "2006925224309694463"}, s); diff != "" || len(n.works) != 0 {
		t.Errorf("%d works, state (-want +got):\n%s", len(n.works), diff)
	}
	must(t, j.Close())
}
